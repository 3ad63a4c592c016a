"""The paper's claims: sweep files contain their runs, and paired tests decide them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.analysis.inference import ALPHA
from ascl_sweep.contracts import RunRow
from ascl_sweep.reproduction.claims import (
    CLAIMS,
    CURVES,
    SWEEPS,
    Claim,
    Contest,
    CurveScores,
    early_score,
    growth,
)
from ascl_sweep.reproduction.compare import TABLES, find_cell
from ascl_sweep.reproduction.duels import Side
from ascl_sweep.reproduction.judge import Finding, judge_claim, judge_claims
from ascl_sweep.search.study import Study
from ascl_sweep.spec.sweep import SweepSpec, load_sweep
from tests.paths import ROOT
from tests.stores import ASCL, MOCO, run

SPACES = ROOT / "search_spaces"
Score = Callable[[RunRow], float | None]
NOISE = (0.0, 0.05, -0.05)  # points, by seed: small enough that half a point is significant


@cache
def spec(name: str) -> SweepSpec:
    return load_sweep(SPACES / f"{name}.yaml")


@cache
def planned(name: str) -> tuple[RunRow, ...]:
    """Return the runs of one of the paper's sweeps, as the controller would record them."""
    return tuple(
        RunRow(
            task.run_id,
            (name,),
            task.config.flat_values(),
            task.phase,
            "full",
            "done",
            idle=task.config.idle_keys(),
        )
        for task in Study(spec(name), {}, {}).wanted()
    )


def scored(names: Iterator[str] | frozenset[str], score: Score, seeds: int = 3) -> list[RunRow]:
    """Return complete runs with these scores in percent; runs with score None are omitted.

    Seeds beyond the planned three are copies of seed 0.
    """
    rows = []
    for row in (row for name in names for row in planned(name)):
        if (value := score(row)) is not None:
            noise = NOISE[int(row.config["seed"] or 0)]
            share = (value + noise * (1 + hash_of(row))) / 100
            speed = float(np.exp(share))
            rows.append(
                replace(row, probe_top1=share, knn_last_top1=share, images_per_second=speed)
            )
    for seed in range(3, seeds):
        first = [row for row in rows if row.config["seed"] == 0]
        rows += [
            replace(row, run_id=f"{row.run_id}-{seed}", config={**row.config, "seed": seed})
            for row in first
        ]
    return rows


def hash_of(row: RunRow) -> float:
    """Return a number in [0, 1] per configuration, because paired differences must vary."""
    return int(row.run_id[:4], 16) / 0xFFFF


def as_printed(row: RunRow) -> float | None:
    """Return the paper's value for a run."""
    for name in row.sweeps:
        table = TABLES.get(name, TABLES["neighbours"])
        if cell := find_cell(table, row.config, row.idle):
            return cell.value
    return None


def judged(
    rows: list[RunRow], sweeps: frozenset[str] = SWEEPS, region: float = 0.5
) -> dict[str, Finding]:
    values = {row.run_id: row.knn_last_top1 or 0.0 for row in rows}
    curves: CurveScores = dict.fromkeys(CURVES, values)
    levels = dict.fromkeys(sweeps, ALPHA)
    return {found.claim.text: found for found in judge_claims(rows, levels, curves, region)}


def of(found: dict[str, Finding], words: str) -> Finding:
    return next(finding for text, finding in found.items() if words in text)


def test_every_claim_rests_on_sweep_files_that_have_its_runs() -> None:
    found = judged(scored(SWEEPS, lambda row: 50.0))
    for claim in CLAIMS:
        if not claim.settled:
            duels = found[claim.text].duels
            assert len(duels) >= len(claim.contests), claim.text
            assert all(duel.result.n == 3 for duel in duels), claim.text


def test_the_papers_numbers_support_its_tables_and_refute_its_overstatements() -> None:
    found = judged(scored(SWEEPS - {"imagenet"}, as_printed), region=0.5)
    assert of(found, "A weak key view").outcome == "supported"
    assert of(found, "better than MoCo with either key").outcome == "supported"
    assert of(found, "better than MoCo at every K").outcome == "supported"
    assert of(found, "ASCL improves BYOL on CIFAR-10").outcome == "supported"
    assert of(found, "ASCL degrades BYOL on CIFAR-100").outcome == "supported"
    assert of(found, "narrows the gap to BYOL").outcome == "supported"
    # The paper's text disagrees with its table on CIFAR-10.
    assert of(found, "AHCL is always better than Hard").outcome != "supported"
    assert of(found, "ASCL is more robust to K").outcome == "contradicted"
    assert of(found, "fall below MoCo").outcome == "contradicted"
    assert of(found, "ImageNet").outcome == "not tested"


def test_a_claim_of_always_is_refuted_by_one_setting() -> None:
    def score(row: RunRow) -> float:
        ascl = row.config["method.relabel"] == "ascl"
        lost = row.config["data.name"] == "cifar100" and row.config["method.num_neighbours"] == 5
        return 50.0 + (ascl and (-3 if lost else 3))

    found = of(judged(scored(frozenset({"neighbours"}), score)), "better than MoCo at every K")
    assert (found.outcome, found.agreeing, len(found.duels)) == ("contradicted", 7, 8)


def test_what_seeds_cannot_tell_apart_stays_undecided() -> None:
    rows = scored(frozenset({"neighbours"}), lambda row: 50.0 + 3 * hash_of(row))
    wild = [
        replace(row, probe_top1=(row.probe_top1 or 0) + 0.1 * (i % 7)) for i, row in enumerate(rows)
    ]
    assert of(judged(wild), "better than MoCo at every K").outcome == "inconclusive"


def test_equivalence_is_counted_and_contradicts_nothing() -> None:
    found = judged(scored(SWEEPS, lambda row: 50.0))
    same = of(found, "better than MoCo at every K")
    assert (same.outcome, sum(duel.equivalent for duel in same.duels)) == ("inconclusive", 8)
    assert of(found, "initially learn as fast as MoCo").outcome == "supported"


def test_a_claim_is_tested_at_the_smallest_level_of_its_sweeps() -> None:
    """Seeds that looks or results have chosen leave a claim less than 5%."""
    weak = duels(0.45, 0.45)
    assert judge_claim(BETTER, weak, region=0.5).outcome == "supported"
    assert judge_claim(BETTER, weak, region=0.5, level=0.0125).outcome == "inconclusive"
    against = duels(-0.45)
    assert judge_claim(BETTER, against, region=0.5).outcome == "contradicted"
    assert judge_claim(BETTER, against, region=0.5, level=0.0125).outcome == "inconclusive"
    rows = scored(SWEEPS, lambda row: 50.0)
    levels = {sweep: 0.025 if sweep == "byol" else ALPHA for sweep in SWEEPS}
    for finding in judge_claims(rows, levels, {}, 0.5):
        assert finding.level == (0.025 if "byol" in finding.claim.sweeps else ALPHA)


@pytest.mark.parametrize("level", [ALPHA, 0.0125])
@pytest.mark.parametrize("lead", [0.1, 0.2, 0.3])
def test_the_seeds_needed_would_support_the_claim(lead: float, level: float) -> None:
    found = judge_claim(BETTER, duels(lead, 5.0), 0.5, level)
    assert found.outcome == "inconclusive" and found.seeds_needed is not None
    weak = next(duel for duel in found.duels if not duel.supports).result
    assert weak.se is not None and weak.df is not None
    n = weak.n + found.seeds_needed
    for count, enough in ((n, True), (n - 1, n - 1 == weak.n)):
        se, df = weak.se * math.sqrt(weak.n / count), weak.df + count - weak.n
        interval = replace(weak, n=count, se=se, df=df).interval(level / 2)
        assert interval is not None and (interval.low > 0) == enough
    assert judge_claim(BETTER, duels(-0.1, 5.0), region=0.5).seeds_needed is None
    assert judge_claim(BETTER, duels(5.0), region=0.5).seeds_needed is None


def test_small_but_significant_differences_support_and_are_equivalent() -> None:
    found = judged(scored(frozenset({"neighbours"}), lambda row: 50.3 - 0.3 * is_moco(row)))
    small = of(found, "better than MoCo at every K")
    assert small.outcome == "supported"
    assert all(duel.supports and duel.equivalent for duel in small.duels)


def is_moco(row: RunRow) -> bool:
    return row.config["method.relabel"] == "none"


# ---------------------------------------------------------------- the logic of a claim

BETTER = Claim("it", "tab:it", ("it",), (Contest({"arm": 1}, {"arm": 0}),))
NO_WORSE = replace(BETTER, kind="no worse")
SPREAD = (0.0, 0.3, -0.3, 0.2, -0.2)


def side(arm: int, scores: list[float], lost: bool = False, **config: str | int) -> Side:
    return Side({"arm": arm, **config}, frozenset(), dict(enumerate(scores)), lost)


def duels(*leads: float, spread: float = 1.0) -> list[Side]:
    """Return sides of several settings, in each of which the winner has a lead over the loser."""
    noises = [[spread * x * (1 + i / 40) for x in SPREAD] for i in range(len(leads))]
    return [
        made
        for i, (lead, noise) in enumerate(zip(leads, noises, strict=True))
        for made in (
            side(1, [50 + lead + x for x in noise], setting=i),
            side(0, [50.0] * len(noise), setting=i),
        )
    ]


def test_each_comparison_of_a_conjunction_is_tested_without_correction() -> None:
    """Twenty comparisons, each with p below 0.05 and above 0.05/20, support a claim."""
    found = judge_claim(BETTER, duels(*[0.45] * 20), region=0.5)
    assert found.outcome == "supported"
    assert all((duel.corrected_p or 0) > 0.05 for duel in found.duels)


def test_a_contradiction_is_corrected_over_the_planned_comparisons() -> None:
    alone = judge_claim(BETTER, duels(-0.3), region=0.5).duels[0]
    assert alone.p == pytest.approx(alone.corrected_p)
    several = judge_claim(BETTER, duels(-0.4, *[1.0] * 19), region=0.5)
    (against,) = (duel for duel in several.duels if duel.result.mean < 0)
    assert (against.p or 1) < 0.05 < (against.corrected_p or 0)
    assert several.outcome == "inconclusive"
    assert judge_claim(BETTER, duels(-3, *[1.0] * 19), region=0.5).outcome == "contradicted"


def test_planned_comparisons_without_runs_count_in_the_correction() -> None:
    ready = duels(-0.45, 1.0)
    waiting = [replace(made, scores={}) for made in duels(*[0.0] * 40)]
    waiting = [
        replace(made, config={**made.config, "setting": 100 + int(made.config["setting"] or 0)})
        for made in waiting
    ]
    assert judge_claim(BETTER, ready, region=0.5).outcome == "contradicted"
    found = judge_claim(BETTER, [*ready, *waiting], region=0.5)
    assert found.outcome == "inconclusive"
    assert "no complete runs yet in 40 of 42 comparisons" in found.why


def test_a_contest_without_any_runs_prevents_support() -> None:
    claim = replace(BETTER, contests=(*BETTER.contests, Contest({"arm": 1}, {"arm": 2})))
    assert judge_claim(BETTER, duels(5.0), region=0.5).outcome == "supported"
    found = judge_claim(claim, duels(5.0), region=0.5)
    assert (found.outcome, len(found.duels)) == ("inconclusive", 1)
    assert "no complete runs yet in 1 of 2 comparisons" in found.why


@pytest.mark.parametrize("claim", [BETTER, NO_WORSE])
def test_lost_seeds_are_evidence_against_their_own_side(claim: Claim) -> None:
    """Diverged seeds of the winner prevent support, those of the loser contradiction."""
    for lead, outcome, harmed in ((5.0, "supported", 1), (-5.0, "contradicted", 0)):
        sides = duels(lead)
        assert judge_claim(claim, sides, region=0.5).outcome == outcome
        for arm in (0, 1):
            lost = [replace(made, lost=made.config["arm"] == arm) for made in sides]
            found = judge_claim(claim, lost, region=0.5)
            assert found.outcome == ("inconclusive" if arm == harmed else outcome)
            if arm == harmed:
                assert found.why == "diverged or failed seeds in 1 of 1 comparisons"


def test_a_claim_is_not_decided_while_its_pool_is_filling() -> None:
    """A comparison borrows from the others, so its p changes with every run that ends."""
    sides = [
        replace(made, config={**made.config, "data.name": data})
        for data, lead in (("a", -5.0), ("b", 5.0))
        for made in duels(lead, 5.0)
    ]
    assert judge_claim(BETTER, sides, region=0.5).outcome == "contradicted"
    for place, outcome in ((2, "inconclusive"), (6, "contradicted")):
        sides[place] = replace(sides[place], waiting=True)
        assert judge_claim(BETTER, sides, region=0.5).outcome == outcome
        scores, sides[place] = sides[place].scores, replace(sides[place], scores={})
        assert judge_claim(BETTER, sides, region=0.5).outcome == outcome
        sides[place] = replace(sides[place], waiting=False, scores=scores)


def test_fewer_than_three_pairs_decide_nothing() -> None:
    sides = [
        side(1, [55.0, 55.1], setting=0),
        side(0, [50.0, 50.0], setting=0),
        *(made for made in duels(0, 5.0) if made.config["setting"] == 1),
    ]
    found = judge_claim(BETTER, sides, region=0.5)
    assert found.outcome == "inconclusive"
    assert found.why == "fewer than 3 paired seeds in 1 of 2 comparisons"


def test_identical_differences_prove_nothing() -> None:
    sides = [side(1, [51.0] * 3), side(0, [50.0] * 3)]
    found = judge_claim(BETTER, sides, region=0.5)
    assert (found.outcome, found.duels[0].p) == ("inconclusive", None)


def test_no_worse_is_tested_at_its_margin() -> None:
    for lead, outcome in ((-0.3, "supported"), (-0.5, "inconclusive"), (-0.9, "contradicted")):
        assert judge_claim(NO_WORSE, duels(lead, spread=0.3), region=0.5).outcome == outcome


def test_extra_cost_is_tested_at_five_percent() -> None:
    (cost,) = (claim for claim in CLAIMS if claim.margin)
    rows = scored(frozenset({"learning_speed"}), lambda row: 50.0)
    for slower, outcome in ((1.02, "supported"), (1.05, "inconclusive"), (1.2, "contradicted")):
        timed = [
            replace(
                row,
                images_per_second=1000
                / (1 + 0.002 * (row.config["seed"] or 0) * hash_of(row))
                / (1 if is_moco(row) else slower),
            )
            for row in rows
        ]
        assert judged(timed)[cost.text].outcome == outcome


def test_a_score_that_should_grow_needs_no_rival() -> None:
    claim = replace(BETTER, contests=(Contest({"arm": 1}, None),))
    for rise, outcome in ((3.0, "supported"), (0.0, "inconclusive"), (-3.0, "contradicted")):
        sides = [side(1, [rise + x for x in SPREAD])]
        assert judge_claim(claim, sides, region=0.5).outcome == outcome


def test_steadier_is_the_smaller_range_over_k() -> None:
    claim = replace(BETTER, kind="steadier")

    def ranges(winner: float, loser: float) -> list[Side]:
        return [
            side(arm, [50 + width * k + x * (1 + arm) * k for x in SPREAD], k=k)
            for arm, width in ((1, winner), (0, loser))
            for k in (0, 1)
        ]

    assert judge_claim(claim, ranges(1, 4), region=0.5).outcome == "supported"
    assert judge_claim(claim, ranges(4, 1), region=0.5).outcome == "contradicted"
    (duel,) = judge_claim(claim, ranges(1, 4), region=0.5).duels
    assert duel.result.mean == pytest.approx(3, abs=0.3)


def test_a_gap_narrows_if_the_winner_gains_more_from_the_larger_batch() -> None:
    claim = replace(BETTER, kind="narrows")

    def batches(gain: float, lost: tuple[int, int] | None = None) -> list[Side]:
        return [
            side(
                arm,
                [50 + gain * arm * (batch > 256) + x * batch * (1 + arm) / 256 for x in SPREAD],
                lost=(arm, batch) == lost,
                batch_size=batch,
            )
            for arm in (0, 1)
            for batch in (256, 512)
        ]

    assert judge_claim(claim, batches(2.0), region=0.5).outcome == "supported"
    assert judge_claim(claim, batches(-2.0), region=0.5).outcome == "contradicted"
    # Lost seeds of a side whose high score helps the claim prevent support, else contradiction.
    for lost, harmed in (((1, 512), 2.0), ((0, 256), 2.0), ((0, 512), -2.0), ((1, 256), -2.0)):
        assert judge_claim(claim, batches(harmed, lost), region=0.5).outcome == "inconclusive"
        assert judge_claim(claim, batches(-harmed, lost), region=0.5).outcome != "inconclusive"


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=6),
    st.floats(0, 2),
    st.sampled_from([0.05, 0.025, 0.0001]),
)
def test_outcomes_agree_with_the_verdicts_of_the_comparisons(
    leads: list[float], region: float, level: float
) -> None:
    found = judge_claim(BETTER, duels(*leads), region, level)
    assert (found.outcome == "contradicted") == any(duel.opposes for duel in found.duels)
    assert (found.outcome == "supported") == all(duel.supports for duel in found.duels)
    for duel in found.duels:
        assert not (duel.supports and duel.opposes)
        assert not duel.supports or (duel.result.mean > 0 and (duel.p or 1) <= 0.05)
        assert not duel.opposes or (duel.result.mean < 0 and (duel.corrected_p or 1) <= 0.05)


# ---------------------------------------------------------------- runs


def test_a_claim_holds_only_when_all_of_its_comparisons_are_run() -> None:
    rows = scored(frozenset({"augmentation"}), as_printed)
    assert of(judged(rows), "A weak key view").outcome == "supported"
    early_on = [
        replace(row, state="running") if row.config["epochs"] == 800 else row for row in rows
    ]
    found = of(judged(early_on), "A weak key view")
    assert (found.outcome, len(found.duels)) == ("inconclusive", 4)
    assert "4 of 8 comparisons" in found.why


def test_one_seed_decides_nothing() -> None:
    rows = [r for r in scored(SWEEPS, as_printed) if r.config["seed"] == 0]
    for finding in judged(rows).values():
        assert finding.claim.settled or finding.outcome in ("inconclusive", "not tested")


def test_a_claim_waits_for_all_of_its_sweeps() -> None:
    rows = scored(frozenset({"tau_prime"}), as_printed)
    only = judged(rows, frozenset({"tau_prime"}))
    assert "ASCL with any of these τ' is better than MoCo" not in only
    assert of(only, "τ' = 0.05").duels
    assert of(only, "similar to label smoothing").outcome == "settled"
    assert not judged(rows, frozenset({"mine"}))


def test_scores_that_are_not_finite_are_lost_seeds() -> None:
    rows = scored(frozenset({"augmentation"}), as_printed)
    for value in (math.nan, math.inf):
        bad = [replace(rows[0], probe_top1=value), *rows[1:]]
        found = of(judged(bad), "A weak key view")
        assert found.outcome != "supported"
        assert sorted({duel.result.n for duel in found.duels}) == [2, 3]


@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_a_claim_is_not_supported_where_a_seed_of_its_winner_was_lost(state: str) -> None:
    rows = [
        replace(row, state=state)  # type: ignore[arg-type]
        if row.config["augment.key"] == "weak" and row.config["seed"] == 3
        else row
        for row in scored(frozenset({"augmentation"}), as_printed, seeds=4)
    ]
    found = of(judged(rows), "A weak key view")
    assert (found.outcome, {duel.result.n for duel in found.duels}) == ("inconclusive", {3})


def test_the_claim_on_temperatures_is_about_one_neighbor() -> None:
    rows = scored(frozenset({"neighbours", "tau_prime"}), lambda row: 50.0)
    found = of(judged(rows), "ASCL with any of these τ' is better than MoCo")
    assert len(found.duels) == 10, "five temperatures on two datasets"


def test_stopped_runs_and_those_of_a_search_have_no_say() -> None:
    rows = scored(frozenset({"neighbours"}), lambda row: 50.0)
    for change in ({"state": "stopped"}, {"phase": "search"}):
        others = [replace(row, **change) for row in rows]  # type: ignore[arg-type]
        assert of(judged(others), "better than MoCo at every K").outcome == "not tested"


@given(st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_the_order_of_runs_changes_nothing(random: object) -> None:
    rows = scored(frozenset({"neighbours"}), as_printed)
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    before, after = judged(rows), judged(shuffled)
    assert {t: f.outcome for t, f in before.items()} == {t: f.outcome for t, f in after.items()}


def test_runs_that_differ_in_more_than_the_contest_are_not_compared() -> None:
    sides = [({**ASCL, "optim.lr": 0.03}, 60.0), ({**MOCO}, 50.0)]
    rows = [run("neighbours", values, seed, score) for values, score in sides for seed in (0, 1, 2)]
    assert of(judged(rows), "better than MoCo at every K").outcome == "not tested"


def test_the_first_epochs_are_a_fifth_of_the_run_and_at_least_one() -> None:
    epochs = np.arange(1.0, 11.0)
    scores = np.array([0.1, 0.3, *([0.9] * 8)])
    assert early_score(epochs, scores) == pytest.approx(0.2)
    assert early_score(epochs[:3], scores[:3]) == pytest.approx(0.1)
    assert early_score(epochs, np.array([np.nan, 0.3, *([0.9] * 8)])) == pytest.approx(0.3)
    assert early_score(np.array([]), np.array([])) is None


def test_growth_compares_the_last_fifth_of_the_epochs_with_the_first() -> None:
    epochs = np.arange(1.0, 11.0)
    assert growth(epochs, epochs) == pytest.approx(9.5 - 1.5)
    assert growth(epochs[:3], epochs[:3]) == pytest.approx(2.0)
    assert growth(epochs, np.full(10, np.nan)) is None
    assert growth(np.array([]), np.array([])) is None
