"""The paper's claims: each has its runs in the sweep files, and is judged by seeds alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.agenda import Agenda, config_values, idle_keys
from ascl_sweep.claims import CLAIMS, SWEEPS
from ascl_sweep.ledger import RunRow
from ascl_sweep.paper import TABLES, find
from ascl_sweep.report.judged import Finding, early, findings
from ascl_sweep.spec import SweepSpec, load_spec
from tests.ledgers import ASCL, MOCO, run

SPACES = Path(__file__).parents[3] / "search_spaces"
Score = Callable[[RunRow], float | None]
NOISE = (0.0, 0.05, -0.05)  # points, by seed: a spread that decides a difference of half a point


@cache
def spec(name: str) -> SweepSpec:
    return load_spec(SPACES / f"{name}.yaml")


@cache
def planned(name: str) -> tuple[RunRow, ...]:
    """The runs of one of the paper's sweeps, as the driver would record them."""
    return tuple(
        RunRow(
            task.run_id,
            (name,),
            config_values(task.config),
            task.phase,
            "full",
            "done",
            idle=idle_keys(task.config),
        )
        for task in Agenda(spec(name), {}, {}).wanted()
    )


def scored(names: Iterator[str] | frozenset[str], score: Score) -> list[RunRow]:
    """Complete runs, each with the score in percent that it is given; without one, none."""
    rows = []
    for row in (row for name in names for row in planned(name)):
        if (value := score(row)) is not None:
            noise = NOISE[int(row.config["seed"] or 0)]
            share = (value + noise * (1 + hash_of(row))) / 100
            rows.append(replace(row, probe_top1=share, knn_last_top1=share))
    return rows


def hash_of(row: RunRow) -> float:
    """Between 0 and 1, another for each configuration: paired differences need a spread."""
    return int(row.run_id[:4], 16) / 0xFFFF


def as_printed(row: RunRow) -> float | None:
    """What the paper has for a run."""
    for name in row.sweeps:
        table = TABLES.get(name, TABLES["neighbours"])
        if cell := find(table, row.config, row.idle):
            return cell.value
    return None


def judged(
    rows: list[RunRow], sweeps: frozenset[str] = SWEEPS, region: float = 0.5
) -> dict[str, Finding]:
    speeds = {row.run_id: row.knn_last_top1 or 0.0 for row in rows}
    return {found.claim.text: found for found in findings(rows, sweeps, speeds, region)}


def of(found: dict[str, Finding], words: str) -> Finding:
    return next(finding for text, finding in found.items() if words in text)


def test_every_claim_rests_on_sweep_files_that_have_its_runs() -> None:
    found = judged(scored(SWEEPS, lambda row: 50.0))
    for claim in CLAIMS:
        if claim.settled is None:
            duels = found[claim.text].duels
            assert len(duels) >= len(claim.contests) or claim.kind == "narrows", claim.text
            assert all(duel.result.n == 3 for duel in duels), claim.text


def test_the_papers_own_numbers_bear_out_its_tables_and_refute_its_overstatements() -> None:
    found = judged(scored(SWEEPS - {"imagenet"}, as_printed), region=0.2)
    assert of(found, "A weak key view").outcome == "holds"
    assert of(found, "better than MoCo with either key").outcome == "holds"
    assert of(found, "better than MoCo at every K").outcome == "holds"
    assert of(found, "ASCL improves BYOL on CIFAR-10").outcome == "holds"
    assert of(found, "ASCL harms BYOL on CIFAR-100").outcome == "holds"
    assert of(found, "gains on BYOL").outcome == "holds"
    # Its text, against its table on CIFAR-10.
    assert of(found, "AHCL is always better than Hard").outcome == "does not hold"
    assert of(found, "fall below MoCo").outcome == "does not hold"
    assert of(found, "ImageNet").outcome == "not run"


def test_a_claim_of_always_is_refuted_by_one_setting() -> None:
    def score(row: RunRow) -> float:
        ascl = row.config["method.relabel"] == "ascl"
        lost = row.config["data.name"] == "cifar100" and row.config["method.num_neighbours"] == 5
        return 50.0 + (ascl and (-3 if lost else 3))

    found = of(judged(scored(frozenset({"neighbours"}), score)), "better than MoCo at every K")
    assert (found.outcome, found.agreeing, len(found.duels)) == ("does not hold", 7, 8)


def test_what_seeds_cannot_tell_apart_stays_undecided() -> None:
    rows = scored(frozenset({"neighbours"}), lambda row: 50.0 + 3 * hash_of(row))
    wild = [
        replace(row, probe_top1=(row.probe_top1 or 0) + 0.1 * (i % 7)) for i, row in enumerate(rows)
    ]
    assert of(judged(wild), "better than MoCo at every K").outcome == "undecided"


def test_practically_the_same_is_not_better_but_is_no_worse() -> None:
    found = judged(scored(SWEEPS, lambda row: 50.0))
    assert of(found, "better than MoCo at every K").outcome == "does not hold"
    assert of(found, "keep MoCo's speed").outcome == "holds"


def test_a_claim_holds_only_when_all_of_its_comparisons_are_run() -> None:
    rows = scored(frozenset({"augmentation"}), as_printed)
    assert of(judged(rows), "A weak key view").outcome == "holds"
    early_on = [
        replace(row, state="running") if row.config["epochs"] == 800 else row for row in rows
    ]
    found = of(judged(early_on), "A weak key view")
    assert (found.outcome, len(found.duels)) == ("undecided", 4)
    assert "4 of its 8 comparisons" in found.why


def test_one_seed_decides_nothing() -> None:
    rows = [r for r in scored(SWEEPS, as_printed) if r.config["seed"] == 0]
    for finding in judged(rows).values():
        assert finding.claim.settled or finding.outcome in ("undecided", "not run")


def test_a_claim_waits_for_all_of_its_sweeps() -> None:
    rows = scored(frozenset({"tau_prime"}), as_printed)
    only = judged(rows, frozenset({"tau_prime"}))
    assert "ASCL with any of these τ' is better than MoCo" not in only
    assert of(only, "τ' = 0.05").outcome in ("holds", "does not hold")
    assert not judged(rows, frozenset({"mine"}))


def test_stopped_runs_and_those_of_a_search_have_no_say() -> None:
    rows = scored(frozenset({"neighbours"}), lambda row: 50.0)
    for change in ({"state": "stopped"}, {"phase": "search"}):
        others = [replace(row, **change) for row in rows]  # type: ignore[arg-type]
        assert of(judged(others), "better than MoCo at every K").outcome == "not run"


@given(st.randoms(use_true_random=False))
def test_the_order_of_runs_changes_nothing(random: object) -> None:
    rows = scored(frozenset({"neighbours"}), as_printed)
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    before, after = judged(rows), judged(shuffled)
    assert {t: f.outcome for t, f in before.items()} == {t: f.outcome for t, f in after.items()}


def test_runs_that_differ_in_more_than_the_contest_are_not_compared() -> None:
    sides = [({**ASCL, "optim.lr": 0.03}, 60.0), ({**MOCO}, 50.0)]
    rows = [run("neighbours", values, seed, score) for values, score in sides for seed in (0, 1, 2)]
    assert of(judged(rows), "better than MoCo at every K").outcome == "not run"


def test_the_first_epochs_are_a_fifth_of_the_run_and_at_least_one() -> None:
    epochs = np.arange(1.0, 11.0)
    scores = np.array([0.1, 0.3, *([0.9] * 8)])
    assert early(epochs, scores) == pytest.approx(0.2)
    assert early(epochs[:3], scores[:3]) == pytest.approx(0.1)
    assert early(epochs, np.array([np.nan, 0.3, *([0.9] * 8)])) == pytest.approx(0.3)
    assert early(np.array([]), np.array([])) is None
