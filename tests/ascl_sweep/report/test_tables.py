"""Tables: what enters a mean, what is compared with what, and what a reader is told of it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, distribution_to_json

from ascl_sweep import stats
from ascl_sweep.ledger import RunRow, SweepRow
from ascl_sweep.report.ablation import AblationTable, Arm, Options, StepCost
from ascl_sweep.report.alike import letter
from ascl_sweep.report.searches import SearchSummary, search_of
from ascl_sweep.report.tables import table_of
from tests.ledgers import (
    ASCL,
    EXAMPLE_ROWS,
    EXAMPLE_SWEEPS,
    LAPTOP,
    MOCO,
    NEIGHBOURS,
    RELABEL,
    SEEDS,
    TEMPERATURE,
    arm,
    in_order,
    run,
    sweep,
    table,
)

TAUS = sweep("it", (TEMPERATURE,))
SYSTEMS = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO))


def made(sweep_row: SweepRow, rows: Sequence[RunRow], **options: Any) -> AblationTable:
    found = table_of(sweep_row, in_order(rows), Options(**options))
    assert found is not None
    return found


def arms(found: AblationTable) -> dict[str, Arm]:
    return {arm.label: arm for arm in found.arms}


def said(found: AblationTable) -> str:
    return "\n".join(found.remarks)


# ---------------------------------------------------------------- what enters a mean


@pytest.mark.parametrize("state", ["planned", "running", "stopped", "diverged", "failed", "lost"])
def test_only_complete_runs_enter_a_mean(state: str) -> None:
    rows = arm("it", ASCL, [90.0, 91.0, 99.0])
    rows[2] = replace(rows[2], state=state)
    (only,) = made(TAUS, rows).arms
    assert only.mean == pytest.approx(90.5)
    assert (only.n, only.planned) == (2, 3)
    assert only.states == ({state: 1} if state not in ("planned", "running") else {})


def test_a_seed_that_the_sweep_wants_and_no_run_has_is_missing() -> None:
    (only,) = made(TAUS, arm("it", ASCL, [90.0, 91.0])).arms
    assert (only.n, only.planned) == (2, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_is_no_number_is_no_score(value: float | None) -> None:
    rows = arm("it", ASCL, [90.0, 91.0, 92.0])
    rows[0] = replace(rows[0], probe_top1=value)
    found = made(TAUS, rows, metric="probe_top1")
    assert found.arms[0].scores == {1: pytest.approx(91.0), 2: pytest.approx(92.0)}
    assert "complete without a number for linear-probe top-1" in said(found)


def test_runs_of_another_scale_phase_or_sweep_never_enter() -> None:
    own = arm("it", ASCL, [90.0, 91.0, 92.0])
    others = [
        replace(row, run_id=f"{row.run_id}-{i}", **changes)
        for i, changes in enumerate(
            [{"scale": "laptop"}, {"phase": "search"}, {"sweeps": ("other",)}]
        )
        for row in arm("it", ASCL, [10.0, 11.0, 12.0])
    ]
    assert made(TAUS, [*own, *others]).arms == made(TAUS, own).arms


def test_a_search_without_finalists_has_no_table() -> None:
    rows = [replace(row, phase="search") for row in arm("it", ASCL, [90.0])]
    assert table_of(sweep("it", search=True), rows) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"metric": "probe_top1"}, 90.0),
        ({"metric": "probe_top1", "epoch": "best"}, 90.1),
        ({"metric": "knn_top1"}, 85.0),
        ({"metric": "knn_top1", "epoch": "best"}, 85.5),
        ({"metric": "images_per_second"}, 1600.0),
    ],
)
def test_the_metric_and_its_epoch_are_those_asked_for(
    options: dict[str, str], expected: float
) -> None:
    rows = [replace(row, images_per_second=1600.0) for row in arm("it", ASCL, [90.0, 90.0])]
    assert made(TAUS, rows, **options).arms[0].mean == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["purity", "test_top1"])
def test_a_metric_that_only_epochs_have_is_that_of_the_last_one(metric: str) -> None:
    rows = in_order(arm("it", ASCL, [90.0, 90.0]))
    last = {row.run_id: {metric: 0.25} for row in rows}
    found = table_of(TAUS, rows, Options(metric=metric), last)
    assert found is not None and found.arms[0].mean == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "knn_top"}, "no metric named 'knn_top' (did you mean 'knn_top1'?)"),
        ({"epoch": "first"}, "--epoch must be last or best, got 'first'"),
        ({"epoch": "best", "metric": "purity"}, "--epoch best goes with knn_top1, probe_top1"),
        ({"region": -1.0}, "--region must be 0 points or more"),
        ({"region": math.nan}, "--region must be 0 points or more"),
    ],
)
def test_what_no_table_can_be_of_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message[:20]) as refused:
        made(TAUS, arm("it", ASCL, [90.0]), **options)
    assert message in str(refused.value)


@pytest.mark.parametrize("place", ["rows", "columns"])
def test_a_table_of_a_key_that_no_run_has_is_refused(place: str) -> None:
    asked = sweep("it", (RELABEL,), table={**table(RELABEL), place: "method.beta"})
    with pytest.raises(ValueError, match=f"table.{place} must be a key that runs have"):
        made(asked, arm("it", ASCL, [90.0]))


# ---------------------------------------------------------------- arms


def test_where_the_data_lie_and_on_which_device_makes_no_other_arm() -> None:
    rows = arm("it", ASCL, [90.0, 91.0, 92.0])
    here = {"data.root": "/data", "runtime.device": "cuda", "preset": "code"}
    rows[1] = replace(rows[1], config={**rows[1].config, **here})
    assert len(made(TAUS, rows).arms) == 1


def test_a_key_that_is_idle_makes_no_other_arm() -> None:
    rows = arm("it", MOCO, [88.0, 88.1, 88.2])
    rows[1] = replace(rows[1], config={**rows[1].config, NEIGHBOURS: 10})
    assert len(made(sweep("it", (NEIGHBOURS,)), rows).arms) == 1


def test_arms_are_named_by_what_the_sweep_varies() -> None:
    rows = [
        *arm("it", MOCO, [88.0]),
        *arm("it", {**ASCL, TEMPERATURE: 0.02}, [89.0]),
        *arm("it", {**ASCL, TEMPERATURE: 0.05}, [90.0]),
    ]
    found = made(sweep("it", (RELABEL, TEMPERATURE)), rows)
    assert list(arms(found)) == ["MoCo", "ASCL, τ' = 0.02", "ASCL, τ' = 0.05"]


def test_arms_that_vary_many_keys_are_named_by_what_departs_from_the_base() -> None:
    base = {"optim.lr": 0.06, "epochs": 200, "batch_size": 256, "encoder.width": 64}
    others = [{"optim.lr": 0.03}, {"epochs": 100}, {"batch_size": 64, "encoder.width": 32}]
    rows = [row for changes in ({}, *others) for row in arm("it", changes, [90.0, 91.0])]
    factors = sweep("it", tuple(base), base=base)
    names = ["base", "lr = 0.03", "epochs = 100", "batch = 64, width = 32"]
    found = made(factors, rows)
    assert [arm.label for arm in found.arms] == names
    assert list(found.grid.rows) == names and found.grid.corner == "arm"


def test_no_two_arms_have_the_same_name() -> None:
    """Of keys that the sweep does not vary, those that tell its arms apart, and no other."""
    rows = [
        *arm("it", {TEMPERATURE: 0.05, "optim.lr": 0.1, "batch_size": 64}, [88.0]),
        *arm("it", {TEMPERATURE: 0.05, "optim.lr": 0.2, "batch_size": 64}, [89.0]),
        *arm("it", {TEMPERATURE: 0.0512345678, "optim.lr": 0.2, "batch_size": 64}, [90.0]),
        *arm("it", {TEMPERATURE: 0.0512345679, "optim.lr": 0.2, "batch_size": 64}, [91.0]),
    ]
    names = list(arms(made(TAUS, rows)))
    assert names[:2] == ["τ' = 0.05, lr = 0.1", "τ' = 0.05, lr = 0.2"]
    assert len(set(names)) == 4 and not any("batch" in name for name in names)


def test_arms_stand_in_the_order_of_the_file() -> None:
    """A run that another sweep trained first is older, and stands where the file has it."""
    rows = [row for tau in (0.05, 0.01, 0.1) for row in arm("it", {TEMPERATURE: tau}, [90.0, 91.0])]
    order = tuple(f"it-{tau}-0" for tau in (0.01, 0.05, 0.1))
    found = made(sweep("it", (TEMPERATURE,), order=order), rows)
    assert list(arms(found)) == ["τ' = 0.01", "τ' = 0.05", "τ' = 0.1"]
    assert list(arms(made(TAUS, rows))) == ["τ' = 0.05", "τ' = 0.01", "τ' = 0.1"]


@given(st.permutations(EXAMPLE_ROWS))
@settings(max_examples=25)
def test_the_order_of_rows_does_not_matter(rows: list[RunRow]) -> None:
    for sweep_row in EXAMPLE_SWEEPS:
        assert table_of(sweep_row, rows) == table_of(sweep_row, EXAMPLE_ROWS)
        assert search_of(sweep_row, rows) == search_of(sweep_row, EXAMPLE_ROWS)


@given(st.sets(st.sampled_from([s.name for s in EXAMPLE_SWEEPS])))
def test_what_other_sweeps_ran_changes_nothing(others: set[str]) -> None:
    for sweep_row in EXAMPLE_SWEEPS:
        kept = [r for r in EXAMPLE_ROWS if set(r.sweeps) & {sweep_row.name, *others}]
        assert table_of(sweep_row, kept) == table_of(sweep_row, EXAMPLE_ROWS)


# ---------------------------------------------------------------- comparisons

SCORES = st.lists(st.none() | st.integers(0, 10_000).map(lambda n: n / 100), min_size=3, max_size=6)


@given(SCORES, SCORES)
def test_arms_are_compared_seed_by_seed(ours: list[float | None], base: list[float | None]) -> None:
    """As computed by hand from the seeds that both have."""
    found = arms(made(SYSTEMS, [*arm("it", MOCO, base), *arm("it", ASCL, ours)]))["ASCL"]
    both = [(a, b) for a, b in zip(ours, base, strict=False) if a is not None and b is not None]
    if not both:
        assert found.comparison is None
        return
    assert found.comparison is not None
    differences = [a - b for a, b in both]
    result = found.comparison.result
    assert result.n == len(both)
    assert result.mean == pytest.approx(fmean(differences), abs=1e-9)
    assert result.wins == sum(a > b for a, b in both)
    alone = {s for s, score in enumerate(ours) if score is not None} ^ {
        s for s, score in enumerate(base) if score is not None
    }
    assert set(found.comparison.unpaired) == alone


def test_a_seed_without_partner_is_in_the_mean_and_not_in_the_difference() -> None:
    found = made(SYSTEMS, [*arm("it", MOCO, [88.0, 88.2]), *arm("it", ASCL, [90.0, 90.2, 99.0])])
    ascl = arms(found)["ASCL"]
    assert ascl.comparison is not None and ascl.comparison.unpaired == (2,)
    assert ascl.mean == pytest.approx(93.0666, abs=1e-3)
    assert ascl.comparison.result.mean == pytest.approx(2.0)
    assert "ASCL: seeds that are complete only there or only in the baseline" in said(found)


def test_arms_without_a_common_seed_are_not_compared_and_it_is_said() -> None:
    rows = [*arm("it", MOCO, [88.0, 88.1]), *arm("it", ASCL, [None, None, 90.0])]
    found = made(SYSTEMS, rows)
    assert arms(found)["ASCL"].comparison is None
    assert "ASCL: not compared, for no seed is complete there and in the baseline" in said(found)


@pytest.mark.parametrize("asked", [None, MOCO])
def test_the_baseline_is_one_on_the_same_data(asked: dict[str, Any] | None) -> None:
    """Also where it is the sweep's base, which names one of the datasets."""
    rows = [
        row
        for data, score in (("cifar10", 90.0), ("cifar100", 60.0))
        for relabel in ("none", "ascl")
        for row in arm("it", {RELABEL: relabel, "data.name": data}, [score, score + 0.1])
    ]
    base = {"data.name": "cifar10", RELABEL: "none"}
    found = arms(made(sweep("it", ("data.name", RELABEL), base=base), rows, baseline=asked))
    for label, ours in found.items():
        data = label.split(", ")[1]
        assert ours.is_baseline == (ours.values[RELABEL] == "none")
        if not ours.is_baseline:
            assert ours.comparison is not None and ours.comparison.baseline == f"MoCo, {data}"


def test_scores_on_other_data_are_never_a_baseline() -> None:
    rows = [
        *arm("it", {**MOCO, "data.name": "cifar10"}, [88.0, 88.1]),
        *arm("it", {**ASCL, "data.name": "cifar100"}, [64.0, 64.1]),
    ]
    found = made(sweep("it", ("data.name", RELABEL)), rows, baseline=MOCO)
    assert all(ours.comparison is None for ours in found.arms)
    assert "ASCL, CIFAR-100: not compared, for want of a baseline (relabel none)." in said(found)


def test_a_baseline_agrees_where_its_keys_are_idle() -> None:
    """MoCo is the baseline of ASCL at every K, though it has none."""
    rows = [
        *arm("it", MOCO, [88.0, 88.1]),
        *(r for k in (1, 5) for r in arm("it", {**ASCL, NEIGHBOURS: k}, [90.0, 90.1])),
    ]
    found = made(sweep("it", (RELABEL, NEIGHBOURS)), rows, baseline=MOCO)
    against = [ours.comparison.baseline for ours in found.arms if ours.comparison]
    assert against == ["MoCo", "MoCo"]


def test_of_several_baselines_the_one_that_is_otherwise_alike_counts() -> None:
    rows = [
        row
        for lr in (0.03, 0.06)
        for relabel in ("none", "ascl")
        for row in arm("it", {"optim.lr": lr, RELABEL: relabel}, [90.0, 90.1])
    ]
    found = made(sweep("it", ("optim.lr", RELABEL)), rows, baseline=MOCO)
    for ours in found.arms:
        if ours.comparison:
            assert f"lr = {ours.values['optim.lr']}" in ours.comparison.baseline
    assert "all else alike" in " ".join(found.caption)


def test_without_a_baseline_nothing_is_compared_and_it_is_said() -> None:
    rows = [r for tau in (0.01, 0.02) for r in arm("it", {TEMPERATURE: tau}, [90.0, 90.1])]
    found = made(sweep("it", (TEMPERATURE,), base={TEMPERATURE: 0.05}), rows)
    assert all(ours.comparison is None and not ours.bold for ours in found.arms)
    assert "No arm is compared with another" in said(found)


def test_p_is_corrected_over_all_comparisons_of_the_table() -> None:
    rows = [
        *arm("it", {TEMPERATURE: 0.05}, [90.0, 90.3, 90.1]),
        *arm("it", {TEMPERATURE: 0.02}, [89.0, 89.6, 89.3]),
        *arm("it", {TEMPERATURE: 0.1}, [88.0, 88.2, 88.3]),
        *arm("it", {TEMPERATURE: 0.2}, [88.0, 92.2, 88.3]),
    ]
    compared = [ours.comparison for ours in made(TAUS, rows).arms if ours.comparison]
    assert len(compared) == 3
    expected = stats.holm([comparison.result.p for comparison in compared])
    assert [comparison.corrected_p for comparison in compared] == expected
    assert any(c.corrected_p != c.result.p for c in compared)


@given(
    st.lists(st.integers(0, 400).map(lambda n: n / 100), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.5, 5.0]),
)
def test_only_an_arm_that_is_better_is_bold(gains: list[float], region: float) -> None:
    base = [88.0, 88.3, 87.9, 88.6, 88.1][: len(gains)]
    ours = [score + gain for score, gain in zip(base, gains, strict=True)]
    found = made(SYSTEMS, [*arm("it", MOCO, base), *arm("it", ASCL, ours)], region=region)
    for each in found.arms:
        verdict = each.comparison.verdict if each.comparison else None
        assert each.bold == (verdict == "better")
        if each.bold:
            assert each.comparison is not None and each.comparison.corrected_p is not None
            assert each.comparison.corrected_p <= 0.05 and each.comparison.result.mean > 0


def test_the_largest_mean_alone_is_not_bold() -> None:
    found = made(SYSTEMS, [*arm("it", MOCO, [88.0, 88.1]), *arm("it", ASCL, [88.0, 99.0])])
    assert arms(found)["ASCL"].mean == max(ours.mean or 0 for ours in found.arms)
    assert not any(ours.bold for ours in found.arms)


def test_a_lower_loss_wins() -> None:
    rows = in_order([*arm("it", MOCO, [88.0, 88.1, 88.2]), *arm("it", ASCL, [90.0, 90.1, 90.2])])
    losses = {
        r.run_id: {"loss": 6.0 if "none" in r.run_id else 5.0 - 0.1 * i} for i, r in enumerate(rows)
    }
    found = table_of(SYSTEMS, rows, Options(metric="loss"), losses)
    assert found is not None
    ascl = arms(found)["ASCL"]
    assert ascl.comparison is not None
    assert (ascl.comparison.result.wins, ascl.comparison.verdict) == (3, "better")


@pytest.mark.parametrize(("seeds", "there"), [(9, False), (10, True)])
def test_a_bootstrap_interval_is_shown_from_ten_seeds_on(seeds: int, there: bool) -> None:
    base = [88.0 + 0.1 * (7 * i % 10) for i in range(seeds)]
    ours = [score + 1 + 0.1 * (3 * i % 10) for i, score in enumerate(base)]
    found = made(SYSTEMS, [*arm("it", MOCO, base), *arm("it", ASCL, ours)])
    comparison = arms(found)["ASCL"].comparison
    assert comparison is not None and (comparison.bootstrap is not None) == there
    assert ("BCa" in " ".join(found.caption)) == there


# ---------------------------------------------------------------- gaps


def test_one_seed_has_no_test_and_it_is_said() -> None:
    found = made(SYSTEMS, [*arm("it", MOCO, [88.0]), *arm("it", ASCL, [99.0])])
    ascl = arms(found)["ASCL"]
    assert ascl.sd is None and ascl.interval is None and not ascl.bold
    assert ascl.comparison is not None and ascl.comparison.verdict is None
    assert "One seed per arm: no spread, no interval, no test" in said(found)
    assert "Holm" not in " ".join(found.caption), "no test is claimed where there is none"


def test_a_sweep_of_which_no_run_is_complete_says_so() -> None:
    rows = [replace(row, state="failed") for row in arm("it", ASCL, [90.0, 91.0])]
    found = made(TAUS, rows)
    assert found.arms[0].mean is None and found.arms[0].states == {"failed": 2}
    assert "No run of this sweep is complete" in said(found)


def test_incomplete_arms_are_named() -> None:
    rows = [*arm("it", {TEMPERATURE: 0.05}, [90.0]), *arm("it", {TEMPERATURE: 0.1}, [90.0] * 3)]
    assert "Incomplete arms, seeds done/planned: τ' = 0.05 (1/3)." in said(made(TAUS, rows))


def test_very_many_names_are_counted() -> None:
    rows = [row for i in range(40) for row in arm("it", {TEMPERATURE: i / 100}, [90.0])]
    (incomplete,) = [text for text in made(TAUS, rows).remarks if "Incomplete" in text]
    assert incomplete.endswith("and 28 more.")


def test_a_table_of_finalists_says_how_many_trials_they_were_chosen_from() -> None:
    found = table_of(EXAMPLE_SWEEPS[2], EXAMPLE_ROWS)
    assert found is not None
    assert "configurations tried there: ASCL 9" in said(found)


# ---------------------------------------------------------------- marks


def changed(config: dict[str, Any] | None = None, **facts: Any) -> AblationTable:
    """Three arms, of which the last differs in something that the sweep does not vary."""
    rows = [r for tau in (0.01, 0.05) for r in arm("it", {TEMPERATURE: tau}, [90.0, 90.1])]
    odd = arm("it", {TEMPERATURE: 0.1}, [90.0, 90.1], **facts)
    odd = [replace(row, config={**row.config, **(config or {})}) for row in odd]
    return made(TAUS, [*rows, *odd])


@pytest.mark.parametrize(
    ("config", "facts", "note"),
    [
        ({}, {"commit": "f" * 40}, "commit: ffffffffffff, where other arms have 0123456789ab"),
        ({}, {"device": "cpu"}, "device: cpu, where other arms have NVIDIA A100"),
        ({}, {"torch": "2.15.0"}, "torch: 2.15.0, where other arms have 2.14.0"),
        ({}, {"workers": 4}, "workers: 4, where other arms have 1"),
        ({}, {"dirty": True}, "uncommitted changes: yes, where other arms have no"),
        ({"epochs": 100}, {}, "epochs: 100, where other arms have 200"),
        ({"batch_size": 512}, {}, "batch: 512, where other arms have 256"),
        ({"runtime.precision": "bf16"}, {}, "precision: bf16, where other arms have fp32"),
        ({"data.train_size": 5000}, {}, "training images: 5000, where other arms have all"),
        ({"eval.probe": "cached"}, {}, "probe: cached, where other arms have paper"),
    ],
)
def test_what_is_not_alike_is_marked(
    config: dict[str, Any], facts: dict[str, Any], note: str
) -> None:
    found = changed(config, **facts)
    assert list(found.notes.values()) == [note]
    assert [ours.marks for ours in found.arms] == [(), (), tuple(found.notes)]


def test_what_the_metric_does_not_see_is_not_marked() -> None:
    assert changed({"eval.knn_k": 50}).notes == {}


def test_what_the_sweep_varies_is_not_marked() -> None:
    rows = [r for n in (100, 200) for r in arm("it", {"epochs": n}, [90.0, 90.1])]
    assert made(sweep("it", ("epochs",)), rows).notes == {}


def test_runs_of_one_arm_that_differ_are_marked() -> None:
    rows = arm("it", ASCL, [90.0, 91.0])
    found = made(TAUS, [rows[0], replace(rows[1], device="cpu")])
    assert list(found.notes.values()) == ["device: mixed within the arm (cpu, NVIDIA A100)"]


def test_arms_with_the_same_note_share_its_letter() -> None:
    rows = [r for tau in (0.01, 0.02) for r in arm("it", {TEMPERATURE: tau}, [90.0, 90.1, 90.2])]
    short = [r for tau in (0.05, 0.1) for r in arm("it", {TEMPERATURE: tau}, [90.0, 90.1])]
    found = made(TAUS, [*rows, *short])
    assert found.notes == {"a": "seeds: 0, 1 complete, where others have 0, 1, 2"}
    assert [ours.marks for ours in found.arms] == [(), (), ("a",), ("a",)]


def test_letters_go_on_after_z() -> None:
    assert [letter(i) for i in (0, 25, 26, 27, 701, 702)] == ["a", "z", "aa", "ab", "zz", "aaa"]


# ---------------------------------------------------------------- the compact shape


def test_a_key_that_has_no_part_in_an_arm_spans_its_columns() -> None:
    found = table_of(EXAMPLE_SWEEPS[0], EXAMPLE_ROWS)
    assert found is not None
    grid = found.grid
    assert grid.rows == ("MoCo", "Hard", "ASCL") and grid.columns == ("K = 1", "K = 5")
    assert grid.places[0, 0] == grid.places[0, 1]
    assert "K has no part in MoCo: one arm, in every column." in said(found)


def test_every_arm_has_a_place_of_its_own() -> None:
    for sweep_row in EXAMPLE_SWEEPS:
        found = table_of(sweep_row, EXAMPLE_ROWS)
        assert found is not None
        assert set(found.grid.places.values()) == set(range(len(found.arms)))


def test_arms_that_the_rows_and_columns_do_not_tell_apart_do_not_hide_each_other() -> None:
    rows = [
        row
        for lr in (0.03, 0.06)
        for tau in (0.02, 0.05)
        for row in arm("it", {TEMPERATURE: tau, "optim.lr": lr}, [90.0])
    ]
    asked = sweep("it", (TEMPERATURE,), table=table(RELABEL, columns=TEMPERATURE))
    found = made(asked, rows)
    assert len(found.grid.places) == 4 and len(found.grid.rows) == 2


# ---------------------------------------------------------------- what a step costs

METHODS = sweep("it", ("method.name",), table=table("method.name"))
SIMCLR = {**MOCO, "method.name": "simclr"}


def test_arms_of_several_methods_have_their_cost() -> None:
    moco = arm("it", MOCO, [88.0, 88.1, None], backprops=1, ema=True)
    moco = [
        replace(moco[0], images_per_second=512.0, peak_memory_gb=1.5),
        replace(moco[1], images_per_second=1024.0, peak_memory_gb=1.0),
        replace(moco[2], images_per_second=1.0, peak_memory_gb=2.5, state="failed"),
    ]
    simclr = arm("it", SIMCLR, [85.0, 85.1, 85.2], backprops=2, ema=False)
    found = arms(made(METHODS, [*moco, *simclr]))
    assert found["MoCo"].cost == StepCost(1, True, pytest.approx((500 + 250) / 2), 2.5)
    assert found["SimCLR"].cost == StepCost(2, False, None, None)


def test_arms_of_one_method_have_none() -> None:
    rows = [*arm("it", MOCO, [88.0], backprops=1), *arm("it", ASCL, [90.0], backprops=1)]
    assert not made(SYSTEMS, rows).has_costs


def test_runs_of_an_older_version_say_nothing_of_cost_and_any_other_will_do() -> None:
    old, new = run("it", MOCO, 0, 88.0), run("it", MOCO, 1, 88.0, backprops=1, ema=True)
    other = arm("it", SIMCLR, [85.0])
    found = arms(made(METHODS, [old, new, *other]))
    assert found["MoCo"].cost == StepCost(1, True, None, None)
    assert found["SimCLR"].cost == StepCost(None, None, None, None)


def test_less_memory_is_better() -> None:
    rows = [
        row
        for changes, most in ((MOCO, 2.0), (ASCL, 1.0))
        for row in arm("it", changes, [88.0, 88.0, 88.0])
        for row in [replace(row, peak_memory_gb=most + 0.01 * int(row.config["seed"] or 0))]
    ]
    found = arms(made(SYSTEMS, rows, metric="peak_memory_gb"))
    assert found["MoCo"].mean == pytest.approx(2.01), "in GB, not in percent"
    assert found["ASCL"].comparison is not None and found["ASCL"].comparison.result.wins == 3


# ---------------------------------------------------------------- the paper


def test_at_the_papers_setting_values_are_compared() -> None:
    found = table_of(EXAMPLE_SWEEPS[0], EXAMPLE_ROWS)
    assert found is not None and found.like_the_paper and found.orderings == ()
    beside = arms(found)["ASCL, K = 1"]
    assert beside.paper is not None and beside.paper.value == 90.00
    assert beside.paper.difference == pytest.approx((beside.mean or 0) - 90.00)
    assert beside.interval is not None
    assert beside.paper.inside == (90.00 in beside.interval)


def test_at_laptop_scale_only_the_order_is_compared() -> None:
    found = table_of(EXAMPLE_SWEEPS[1], EXAMPLE_ROWS)
    assert found is not None and not found.like_the_paper
    assert all(ours.paper is None for ours in found.arms)
    assert [(order.data, order.arms) for order in found.orderings] == [
        ("CIFAR-10", 5),
        ("CIFAR-100", 5),
    ]
    ours = [ours.mean for ours in found.arms]
    paper = [89.67, 89.82, 90.00, 88.91, 88.58]
    assert found.orderings[0].tau == stats.rank_correlation(ours, paper)  # type: ignore[arg-type]
    assert "only the order of the arms is held against the paper's" in said(found)


@pytest.mark.parametrize(
    ("changes", "options", "why"),
    [
        ({"epochs": 100}, {}, "epochs 100 instead of 200"),
        ({"batch_size": 64}, {}, "batch 64 instead of 256"),
        ({"encoder.width": 16}, {}, "width 16 instead of 64"),
        ({"data.train_size": 5000}, {}, "training images 5000 instead of all"),
        ({}, {"metric": "knn_top1"}, "online kNN top-1 instead of linear-probe top-1"),
    ],
)
def test_another_setting_than_the_papers_is_named(
    changes: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    asked = sweep("it", (TEMPERATURE,), table=table(TEMPERATURE, paper="tau_prime"))
    rows = [
        row
        for tau in (0.01, 0.05, 0.1)
        for row in arm("it", {TEMPERATURE: tau, **changes}, [90 - 10 * tau, 90.1 - 10 * tau])
    ]
    found = made(asked, rows, **options)
    assert f"This is not the paper's setting ({why})" in said(found)
    assert [order.data for order in found.orderings] == ["CIFAR-10"], "only on the same data"


def test_the_caption_says_what_the_numbers_are() -> None:
    found = table_of(EXAMPLE_SWEEPS[0], EXAMPLE_ROWS)
    assert found is not None
    caption = "; ".join(found.caption)
    for part in (
        *("linear-probe top-1, %", "on test of CIFAR-10", "paper protocol, 100 epochs"),
        *("the last epoch of 200", "batch 256, fp32", "paired by seed", "two-sided paired t"),
        *("Holm-corrected over 4 comparisons", "cannot go below p = 0.25", "±0.5 points"),
        *("commit 0123456, fedcba9", "torch 2.14.0", "ray 2.60.0", "ascl-sweep 0.1.0"),
    ):
        assert part in caption, part


@pytest.mark.parametrize(
    ("holdouts", "split"),
    [
        ((0.0, 0.0), "on test of"),
        ((0.1, 0.1), "on the holdout of"),
        ((0.0, 0.1), "test or holdout"),
    ],
)
def test_the_caption_says_what_was_scored(holdouts: tuple[float, float], split: str) -> None:
    rows = [
        row
        for tau, share in zip((0.01, 0.05), holdouts, strict=True)
        for row in arm("it", {TEMPERATURE: tau, "data.holdout": share}, [90.0, 91.0])
    ]
    assert split in made(TAUS, rows).caption[0]


# ---------------------------------------------------------------- searches


def summary(rows: Sequence[RunRow], **digest: Any) -> SearchSummary:
    digest = {"search": True, "stop": {"rule": "asha", "grace": 20, "factor": 3.0}, **digest}
    found = search_of(sweep("it", (TEMPERATURE,), **digest), in_order(rows))
    assert found is not None
    return found


def trial(tau: float, score: float, **changes: Any) -> RunRow:
    row = run("it", {TEMPERATURE: tau, "data.holdout": 0.1}, 0, score)
    return replace(row, phase="search", **changes)


def test_a_sweep_that_runs_every_cell_is_no_search() -> None:
    assert search_of(TAUS, arm("it", ASCL, [90.0])) is None


def test_the_best_trials_are_the_complete_ones_best_first() -> None:
    rows = [
        trial(0.01, 80.0),
        trial(0.02, 99.0, state="stopped", epochs=20),
        trial(0.05, 90.0),
        trial(0.08, 98.0, state="diverged"),
        trial(0.1, 85.0),
        trial(0.2, 70.0, knn_last_top1=math.nan),
    ]
    found = summary(rows)
    assert [t.values[TEMPERATURE] for t in found.best] == [0.05, 0.1, 0.01]
    assert found.best[0].score == pytest.approx(85.0), "online kNN, in percent"


def test_what_stopping_saved_is_counted_from_stopped_runs_only() -> None:
    """A run that is still going, or diverged, was not saved by stopping."""
    rows = [
        trial(0.01, 80.0),
        trial(0.02, 70.0, state="stopped", epochs=20),
        trial(0.05, 70.0, state="running", epochs=50),
        trial(0.08, 70.0, state="diverged", epochs=3),
        trial(0.1, 70.0, state="planned", epochs=0),
    ]
    found = summary(rows)
    assert (found.epochs_spent, found.epochs_full) == (273, 453)
    assert len(found.trials) == 4, "what is only planned was not tried"


def test_false_stops_are_audited_runs_that_ended_among_the_finalists() -> None:
    rows = [
        trial(0.01, 80.0, audit=True),
        trial(0.02, 90.0, audit=True),
        trial(0.05, 95.0),
        trial(0.08, 70.0),
        trial(0.1, 99.0, audit=True, state="running"),
    ]
    found = summary(rows, finalists=2)
    assert (found.audits, found.false_stops) == (2, 1)
    assert found.false_stop_rate == stats.proportion_interval(1, 2)
    assert summary(rows[2:4], finalists=2).false_stop_rate is None


def test_each_group_has_finalists_of_its_own() -> None:
    rows = [
        trial(0.05, 95.0),
        trial(0.02, 90.0, audit=True),
        replace(trial(0.1, 80.0, audit=True), config={**trial(0.1, 80.0).config, RELABEL: "hard"}),
    ]
    assert summary(rows, finalists=1).false_stops == 0
    assert summary(rows, finalists=1, per=RELABEL).false_stops == 1


def test_savings_against_the_full_grid_wait_for_the_finalists() -> None:
    rows = [trial(0.01, 80.0), trial(0.02, 70.0, state="stopped", epochs=20)]
    finals = arm("it", {TEMPERATURE: 0.01}, [90.0, 91.0, 92.0])
    assert summary([*rows, *finals[:2], replace(finals[2], state="running")]).grid_epochs is None
    found = summary([*rows, *finals])
    assert (found.all_epochs, found.grid_epochs) == (820, 2 * 200 * len(SEEDS))


def test_importances_name_the_key_that_matters() -> None:
    key, other = TEMPERATURE, "optim.lr"
    wide = {k: distribution_to_json(FloatDistribution(0.0, 1.0)) for k in (key, other)}
    rows = [
        replace(
            trial(i / 20, 60 + 2 * i),
            config={**trial(i / 20, 1).config, key: i / 20, other: (i * 7 % 20) / 20},
        )
        for i in range(20)
    ]
    found = summary(rows, distributions=wide)
    (first, share), *_ = found.importances
    assert (
        first == "τ'" and share > 0.5 and sum(s for _, s in found.importances) == pytest.approx(1)
    )
    assert summary(rows[:3], distributions=wide).importances == (), "too few to say"


def test_a_search_of_an_older_version_is_still_shown() -> None:
    rows = [trial(0.01, 80.0), trial(0.05, 90.0)]
    found = search_of(replace(TAUS, digest="{}"), in_order(rows))
    assert found is not None
    assert found.axes == (TEMPERATURE,) and [t.label for t in found.best] == [
        "τ' = 0.05",
        "τ' = 0.01",
    ]
    assert "older version" in found.rule


@pytest.mark.parametrize(
    ("stop", "said_of_it"),
    [
        (None, "no early stopping"),
        ({"rule": "median", "grace": 10}, "median rule, grace 10 epochs"),
        ({"rule": "keep_top", "share": 0.125, "at": 40}, "the best 0.125 after epoch 40"),
    ],
)
def test_a_search_says_its_rule(stop: dict[str, Any] | None, said_of_it: str) -> None:
    assert summary([trial(0.05, 90.0)], stop=stop).rule == said_of_it


def test_a_table_at_laptop_scale_says_so() -> None:
    rows = [replace(row, scale="laptop") for row in arm("it", {**LAPTOP, **ASCL}, [40.0, 41.0])]
    assert "laptop scale" in made(replace(TAUS, scale="laptop"), rows).caption[0]
