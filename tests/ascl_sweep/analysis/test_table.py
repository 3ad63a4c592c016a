"""Tables: means, comparisons, notes, remarks and captions."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, distribution_to_json

from ascl_sweep.analysis.arms import best_arms
from ascl_sweep.analysis.comparison import Arm, Design, Options, StepCost
from ascl_sweep.analysis.consistency import letter
from ascl_sweep.analysis.search_summary import (
    IMPORTANCE_TRIALS,
    FinalistScore,
    SearchSummary,
    expected_maximum,
    summarize_search,
)
from ascl_sweep.analysis.table import AblationTable, build_table, share_comparisons
from ascl_sweep.contracts import RunRow, RunState, SweepRow
from ascl_sweep.report.sweep_tables import arms_table, build_tables
from ascl_sweep.runtime.records import planned_row
from ascl_sweep.search.study import Study
from ascl_sweep.spec.summary import summarize_sweep
from ascl_sweep.spec.sweep import load_sweep
from tests.paths import ROOT
from tests.stores import (
    ASCL,
    EXAMPLE_ROWS,
    EXAMPLE_SWEEPS,
    LAPTOP,
    MOCO,
    NEIGHBOURS,
    RELABEL,
    SEARCH_SEED,
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
    found = build_table(sweep_row, in_order(rows), Options(**options))
    assert found is not None
    return found


def arms(found: AblationTable) -> dict[str, Arm]:
    return {arm.label: arm for arm in found.arms}


def said(found: AblationTable) -> str:
    return "\n".join(found.remarks)


# ---------------------------------------------------------------- names and baselines


def test_a_lone_arm_is_named_by_its_values_and_not_as_the_base() -> None:
    rows = arm("it", {TEMPERATURE: 0.1}, [90.0, 91.0, 92.0])
    (lone,) = made(sweep("it", (TEMPERATURE,), search=True), rows).arms
    assert lone.label == "τ' = 0.1" and lone.comparison is None
    (best,) = best_arms(rows, "it", "probe_top1", axes=(TEMPERATURE,))
    assert best.differs == {TEMPERATURE: 0.1}


def test_the_base_is_the_baseline_of_the_finalists() -> None:
    values = (0.02, 0.05, 0.1)
    rows = [r for tau in values for r in arm("it", {TEMPERATURE: tau}, [90.0, 91.0, 92.0 + tau])]
    found = arms(made(sweep("it", (TEMPERATURE,), search=True), rows))
    assert found["τ' = 0.05"].is_baseline
    assert [a.label for a in found.values() if a.comparison] == ["τ' = 0.02", "τ' = 0.1"]


@pytest.mark.parametrize(("scale", "comparisons"), [("full", 6), ("laptop", 5)])
def test_paper_vs_code_compares_every_other_arm_with_the_paper(
    scale: Any, comparisons: int
) -> None:
    spec = load_sweep(ROOT / "search_spaces" / "paper_vs_code.yaml", scale=scale)
    study = Study(spec, {}, {})
    rng = random.Random(0)
    rows = [
        replace(
            planned_row(task, spec, float(i)),
            state=RunState.DONE,
            epochs=task.config.epochs,
            probe_top1=0.8 + 0.1 * rng.random(),
        )
        for i, task in enumerate(study.wanted(), 1)
    ]
    digest = summarize_sweep(spec).to_json()
    found = build_table(SweepRow(spec.name, "", "", (), scale, 0.0, 0, digest), rows)
    assert found is not None
    assert [a.is_baseline for a in found.arms] == [True] + comparisons * [False]
    assert all((a.comparison is None) == a.is_baseline for a in found.arms)
    base = {s: spec.config({}, seed=s).identity() for s in spec.seeds}
    assert set(found.arms[0].run_ids) == set(base.values())


# ---------------------------------------------------------------- what enters a mean


@pytest.mark.parametrize("state", ["planned", "running", "stopped", "diverged", "failed", "lost"])
def test_only_complete_runs_enter_a_mean(state: str) -> None:
    rows = arm("it", ASCL, [90.0, 91.0, 99.0])
    rows[2] = replace(rows[2], state=state)
    (only,) = made(TAUS, rows).arms
    assert only.mean == pytest.approx(90.5)
    assert (only.n, only.planned) == (2, 3)
    assert only.states == ({state: 1} if state not in ("planned", "running") else {})


def test_a_planned_seed_without_a_run_is_missing() -> None:
    (only,) = made(TAUS, arm("it", ASCL, [90.0, 91.0])).arms
    assert (only.n, only.planned) == (2, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_is_no_number_is_no_score(value: float | None) -> None:
    rows = arm("it", ASCL, [90.0, 91.0, 92.0])
    rows[0] = replace(rows[0], probe_top1=value)
    found = made(TAUS, rows, metric="probe_top1")
    assert found.arms[0].scores == {1: pytest.approx(91.0), 2: pytest.approx(92.0)}
    assert "some complete runs have no linear-probe top-1" in said(found)


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
    assert build_table(sweep("it", search=True), rows) is None


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
def test_the_metric_and_its_epoch_are_the_requested_ones(
    options: dict[str, str], expected: float
) -> None:
    rows = [replace(row, images_per_second=1600.0) for row in arm("it", ASCL, [90.0, 90.0])]
    assert made(TAUS, rows, **options).arms[0].mean == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["purity", "test_top1"])
def test_a_metric_that_only_epochs_have_is_that_of_the_last_one(metric: str) -> None:
    rows = in_order(arm("it", ASCL, [90.0, 90.0]))
    last = {row.run_id: {metric: 0.25} for row in rows}
    found = build_table(TAUS, rows, Options(metric=metric), last)
    assert found is not None and found.arms[0].mean == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "knn_top"}, "no metric named 'knn_top' (did you mean 'knn_top1'?)"),
        ({"epoch": "first"}, "--epoch must be last or best, got 'first'"),
        (
            {"epoch": "best", "metric": "purity"},
            "--epoch best is available only for knn_top1, probe_top1",
        ),
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
    with pytest.raises(ValueError, match=f"table.{place} must be a config key of the runs"):
        made(asked, arm("it", ASCL, [90.0]))


# ---------------------------------------------------------------- arms


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
    """Names include unvaried keys only where they are needed to distinguish arms."""
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
    """A run that another sweep trained first keeps the position of the sweep file."""
    rows = [row for tau in (0.05, 0.01, 0.1) for row in arm("it", {TEMPERATURE: tau}, [90.0, 91.0])]
    order = tuple(f"it-{tau}-0" for tau in (0.01, 0.05, 0.1))
    found = made(sweep("it", (TEMPERATURE,), order=order), rows)
    assert list(arms(found)) == ["τ' = 0.01", "τ' = 0.05", "τ' = 0.1"]
    assert list(arms(made(TAUS, rows))) == ["τ' = 0.05", "τ' = 0.01", "τ' = 0.1"]


@given(st.permutations(EXAMPLE_ROWS))
@settings(max_examples=25)
def test_the_order_of_rows_does_not_matter(rows: list[RunRow]) -> None:
    for sweep_row in EXAMPLE_SWEEPS:
        assert build_table(sweep_row, rows) == build_table(sweep_row, EXAMPLE_ROWS)
        assert summarize_search(sweep_row, rows) == summarize_search(sweep_row, EXAMPLE_ROWS)


@given(st.sets(st.sampled_from([s.name for s in EXAMPLE_SWEEPS])))
def test_what_other_sweeps_ran_changes_nothing(others: set[str]) -> None:
    for sweep_row in EXAMPLE_SWEEPS:
        kept = [r for r in EXAMPLE_ROWS if set(r.sweeps) & {sweep_row.name, *others}]
        assert build_table(sweep_row, kept) == build_table(sweep_row, EXAMPLE_ROWS)


# ---------------------------------------------------------------- comparisons

SCORES = st.lists(st.none() | st.integers(0, 10_000).map(lambda n: n / 100), min_size=3, max_size=6)


@given(SCORES, SCORES)
def test_arms_are_compared_seed_by_seed(ours: list[float | None], base: list[float | None]) -> None:
    """Equal to a computation by hand over the common seeds."""
    found = arms(made(SYSTEMS, [*arm("it", MOCO, base), *arm("it", ASCL, ours)]))["ASCL"]
    both = [(a, b) for a, b in zip(ours, base, strict=False) if a is not None and b is not None]
    if not both:
        assert found.comparison is None
        return
    assert found.comparison is not None
    differences = [a - b for a, b in both]
    result = found.comparison.estimate
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
    assert ascl.comparison.estimate.mean == pytest.approx(2.0)
    assert "ASCL: seeds that are complete only in the arm or only in its baseline" in said(found)


def test_arms_without_a_common_seed_are_not_compared_and_the_table_states_it() -> None:
    rows = [*arm("it", MOCO, [88.0, 88.1]), *arm("it", ASCL, [None, None, 90.0])]
    found = made(SYSTEMS, rows)
    assert arms(found)["ASCL"].comparison is None
    assert "ASCL: not compared; no seed is complete in both the arm and its baseline" in said(found)


@pytest.mark.parametrize("asked", [None, MOCO])
def test_the_baseline_is_one_on_the_same_data(asked: dict[str, Any] | None) -> None:
    """Also if the baseline is the sweep's base, which names only one dataset."""
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
    assert "ASCL, CIFAR-100: not compared; no unique baseline arm (relabel = none)." in said(found)


def test_a_baseline_agrees_where_its_keys_are_idle() -> None:
    """MoCo, which has no K, is the baseline of ASCL at every K."""
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
    assert "all else equal" in " ".join(found.caption)


def test_without_a_baseline_nothing_is_compared_and_the_table_states_it() -> None:
    rows = [r for tau in (0.01, 0.02) for r in arm("it", {TEMPERATURE: tau}, [90.0, 90.1])]
    found = made(sweep("it", (TEMPERATURE,), base={TEMPERATURE: 0.05}), rows)
    assert all(ours.comparison is None and not ours.bold for ours in found.arms)
    assert "No arms are compared: no unique baseline arm" in said(found)


def test_p_is_corrected_over_all_comparisons_of_the_table() -> None:
    rows = [
        *arm("it", {TEMPERATURE: 0.05}, [90.0, 90.3, 90.1]),
        *arm("it", {TEMPERATURE: 0.02}, [89.0, 89.6, 89.3]),
        *arm("it", {TEMPERATURE: 0.1}, [88.0, 88.2, 88.3]),
        *arm("it", {TEMPERATURE: 0.2}, [88.0, 92.2, 88.3]),
    ]
    compared = [ours.comparison for ours in made(TAUS, rows).arms if ours.comparison]
    assert len(compared) == 3
    for comparison in compared:
        single = comparison.estimate.p
        assert single is not None and comparison.inference.family == 3
        assert comparison.inference.p == pytest.approx(1 - (1 - single) ** 3)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_the_family_is_every_planned_comparison_finished_or_not(done: int) -> None:
    """A report read after each arm finishes must not correct for the finished arms only."""
    scores = [[90.0, 90.3, 90.1], [91.0, 91.6, 91.3], [88.0, 88.2, 88.3]]
    rows = arm("it", {TEMPERATURE: 0.05}, [90.0, 90.1, 90.4])
    for i, values in enumerate(scores):
        shown = values if i < done else [None] * 3
        rows += arm("it", {TEMPERATURE: (i + 1) / 10}, shown)
    compared = [ours.comparison for ours in made(TAUS, rows).arms if ours.comparison]
    assert [comparison.inference.family for comparison in compared] == [3] * done


def test_a_reference_arm_is_not_compared() -> None:
    supervised = {"method.name": "supervised"}
    rows = [
        *arm("it", MOCO, [88.0, 88.1, 88.2]),
        *arm("it", ASCL, [90.0, 90.1, 90.3]),
        *arm("it", {**MOCO, **supervised}, [94.0, 94.1, 94.3]),
    ]
    found = arms(
        made(
            sweep("it", (RELABEL, "method.name"), table=table(RELABEL)),
            rows,
            baseline=MOCO | {"method.name": "moco"},
        )
    )
    assert found["Supervised"].comparison is None and not found["Supervised"].bold
    assert found["ASCL"].comparison is not None
    assert found["ASCL"].comparison.inference.family == 1


@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_an_arm_with_a_lost_seed_is_not_better(state: str) -> None:
    base, ours = [90.0, 90.1, 90.2, 90.3], [92.0, 92.2, 92.2, 92.4]
    rows = [*arm("it", MOCO, base), *arm("it", ASCL, ours)]
    seeds = sweep("it", (RELABEL,), seeds=(0, 1, 2, 3), table=table(RELABEL, baseline=MOCO))
    assert arms(made(seeds, rows))["ASCL"].bold
    rows[-1] = replace(rows[-1], state=state, probe_top1=None)
    found = arms(made(seeds, rows))["ASCL"]
    assert found.comparison is not None and found.comparison.verdict == "undecided"
    assert found.comparison.lost == ("ASCL",) and not found.bold


def looks_of(ours: list[float | None], looks: tuple[int, ...] = (3, 5)) -> Arm:
    base = [88.0, 88.3, 87.9, 88.6, 88.1][: len(ours)]
    planned = sweep(
        "it", (RELABEL,), seeds=(0, 1, 2, 3, 4), looks=looks, table=table(RELABEL, baseline=MOCO)
    )
    return arms(made(planned, [*arm("it", MOCO, base), *arm("it", ASCL, ours)]))["ASCL"]


def test_a_comparison_decided_at_a_look_keeps_its_verdict_and_its_seeds() -> None:
    early = looks_of([91.0, 91.4, 90.9])
    assert early.comparison is not None and early.comparison.verdict == "better"
    later = looks_of([91.0, 91.4, 90.9, 60.0, 60.0])
    assert later.comparison is not None
    assert later.comparison.inference == early.comparison.inference
    assert later.comparison.estimate.n == 3


def test_between_two_looks_nothing_is_decided() -> None:
    """Four of five seeds would decide, but only looks at three and five seeds are planned."""
    first = looks_of([88.2, 88.3, 88.4])
    assert first.comparison is not None and first.comparison.verdict == "undecided"
    between = looks_of([88.2, 88.3, 88.4, 99.0])
    assert between.comparison is not None and between.comparison.verdict == "undecided"
    assert not between.comparison.complete


def test_every_look_spends_its_own_part_of_the_error() -> None:
    first, second = looks_of([88.2, 88.9, 87.7]), looks_of([88.2, 88.9, 87.7, 89.4, 87.3])
    assert first.comparison is not None and second.comparison is not None
    spent = [c.inference.alpha for c in (first.comparison, second.comparison)]
    assert sum(spent) == pytest.approx(0.05) and spent[0] < spent[1]


def test_a_table_whose_seeds_were_extended_corrects_for_it() -> None:
    rows = [*arm("it", MOCO, [88.0, 88.1, 88.2]), *arm("it", ASCL, [90.0, 90.1, 90.3])]
    for extensions, alpha in ((0, 0.05), (1, 0.025), (3, 0.00625)):
        digest = {"extensions": extensions, "table": table(RELABEL, baseline=MOCO)}
        found = made(sweep("it", (RELABEL,), **digest), rows)
        comparison = arms(found)["ASCL"].comparison
        assert comparison is not None and comparison.inference.alpha == pytest.approx(alpha)
        assert ("after results were known" in said(found)) == (extensions > 0)
        assert ("at an error of" in found.caption[1]) == (extensions > 0)


@pytest.mark.parametrize("extensions", [0, 1, 2, 9])
def test_the_error_of_all_tables_is_the_sum_of_their_errors(extensions: int) -> None:
    """Each table before had the whole error of its plan, so they cannot share 5%."""
    plans = [Design(extensions=number) for number in range(extensions + 1)]
    total = plans[-1].total_alpha
    assert total == pytest.approx(sum(plan.alpha for plan in plans)) and total < 0.1


def test_removed_seeds_are_named_and_have_no_bound() -> None:
    rows = [*arm("it", MOCO, [88.0, 88.1, 88.2]), *arm("it", ASCL, [90.0, 90.1, 90.3])]
    for removed, named in (((7, 8), "seeds 7, 8"), ((1, 8), "seed 8"), ((1,), "")):
        digest = {"extensions": 2, "removed": removed, "table": table(RELABEL, baseline=MOCO)}
        found = made(sweep("it", (RELABEL,), **digest), rows)
        assert (f"Removed after results were known: {named}. " in said(found)) == bool(named)
        assert "an error of 1.25%" in said(found) and "at most" not in said(found)
    kept = sweep("it", (RELABEL,), extensions=2, table=table(RELABEL, baseline=MOCO))
    assert "Removed" not in said(made(kept, rows))


def test_a_comparison_keeps_its_sign_where_its_sides_are_exchanged() -> None:
    """The baseline of one table is an arm of the other."""
    rows = [
        replace(row, sweeps=("it", "turned"))
        for row in [*arm("it", MOCO, [88.0, 88.1, 88.4]), *arm("it", ASCL, [91.0, 91.2, 91.5])]
    ]
    more = arm("turned", {RELABEL: "hard"}, [88.3, 88.9, 88.4])
    rows = in_order([*rows, *more])
    turned = sweep("turned", (RELABEL,), table=table(RELABEL, baseline=ASCL))
    tables = [t for each in (SYSTEMS, turned) if (t := build_table(each, rows)) is not None]
    first, second = share_comparisons(tables)
    one, other = arms(first)["ASCL"].comparison, arms(second)["MoCo"].comparison
    assert one is not None and other is not None and one.taken_from == "turned"
    assert one.verdict == "better" and other.verdict == "worse"
    assert one.estimate.mean == pytest.approx(3.0667, abs=1e-3) == -other.estimate.mean
    assert one.inference.interval is not None and one.inference.interval.low > 0
    assert (one.estimate.wins, other.estimate.wins) == (3, 0)


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_comparison_with_two_plans_is_marked_in_both_tables(seeds: int) -> None:
    """A listed sweep and one that runs until decided cannot share a result."""
    base, ours = [88.0, 88.1, 88.4, 88.2, 88.3], [91.0, 91.2, 91.5, 91.1, 91.3]
    both = [*arm("it", MOCO, base[:seeds]), *arm("it", ASCL, ours[:seeds])]
    rows = [replace(row, sweeps=("it", "until")) for row in both]
    digest = {"seeds": tuple(range(5)), "looks": (3, 5), "table": table(RELABEL, baseline=MOCO)}
    until = sweep("until", (RELABEL,), **digest)
    listed = sweep("it", (RELABEL,), seeds=tuple(range(seeds)), table=table(RELABEL, baseline=MOCO))
    tables = [made(listed, rows), made(until, rows)]
    first, second = share_comparisons(tables)
    for one, name in ((first, "until"), (second, "it")):
        assert f"ASCL: the table of {name} has the same comparison with other seeds" in said(one)
    for other in (replace(tables[1], scale="laptop"), replace(tables[0], sweep="twin")):
        one, _ = share_comparisons([tables[0], other])
        assert "same comparison" not in said(one), "other scores, or one result"


def test_nothing_is_decided_before_the_planned_seeds_have_ended() -> None:
    """Reading a report after each seed and stopping at the first verdict would be many looks."""
    base, ours = [88.0, 88.1, 88.4, 88.2, 88.3], [91.0, 91.2, 91.5, 91.1, 91.3]
    planned = sweep("it", (RELABEL,), seeds=(0, 1, 2, 3, 4), table=table(RELABEL, baseline=MOCO))
    for n in (3, 4):
        shown = [*ours[:n], *[None] * (5 - n)]
        found = arms(made(planned, [*arm("it", MOCO, base), *arm("it", ASCL, shown)]))["ASCL"]
        assert found.comparison is not None and found.comparison.verdict == "undecided"
        assert found.comparison.inference.seeds_needed == 5 - n
    complete = arms(made(planned, [*arm("it", MOCO, base), *arm("it", ASCL, ours)]))["ASCL"]
    assert complete.comparison is not None and complete.comparison.verdict == "better"


def test_nothing_is_decided_while_the_pool_is_filling() -> None:
    """A comparison borrows from the others, so its p changes with every arm that finishes."""
    planned = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO))
    own = [*arm("it", MOCO, [88.0, 88.1, 88.4]), *arm("it", ASCL, [91.0, 91.2, 91.5])]
    hard = {RELABEL: "hard"}
    for state in ("planned", "running", "lost"):
        rows = [*own, *arm("it", hard, [88.1, 88.5]), run("it", hard, 2, state=state)]
        comparison = arms(made(planned, rows))["ASCL"].comparison
        assert comparison is not None and comparison.verdict == "undecided", state
        assert comparison.inference.waiting and comparison.inference.seeds_needed is None
    for score, state in ((88.9, "done"), (None, "failed"), (None, "diverged")):
        rows = [*own, *arm("it", hard, [88.1, 88.5]), run("it", hard, 2, score, state=state)]
        comparison = arms(made(planned, rows))["ASCL"].comparison
        assert comparison is not None and comparison.verdict == "better", state


def test_a_pool_does_not_wait_for_another_dataset() -> None:
    planned = sweep("it", ("data.name", RELABEL), table=table(RELABEL, baseline=MOCO))
    rows = [
        row
        for data in ("cifar10", "cifar100")
        for values, scores in ((MOCO, [88.0, 88.1, 88.4]), (ASCL, [91.0, 91.2, 91.5]))
        for row in arm("it", {**values, "data.name": data}, scores)
    ]
    rows[-1] = replace(rows[-1], state="running")
    found = [a.comparison for a in made(planned, rows).arms if a.comparison]
    assert [(c.verdict, c.inference.waiting) for c in found] == [("better", False), (None, True)]


def test_no_effect_of_a_grid_is_decided_before_the_planned_seeds_have_ended() -> None:
    cells = {(r, k): 88.0 + 3 * (r == "ascl") for r in ("ahcl", "ascl") for k in (1, 5)}
    noise = random.Random(0)
    rows = [
        row
        for (relabel, k), mean in cells.items()
        for row in arm(
            "it", {RELABEL: relabel, NEIGHBOURS: k}, [mean + noise.gauss(0, 0.1) for _ in range(4)]
        )
    ]
    grid = sweep("it", (RELABEL, NEIGHBOURS), seeds=(0, 1, 2, 3))

    def verdicts(rows: Sequence[RunRow]) -> set[str | None]:
        (found,) = made(grid, rows).factorials
        return {effect.inference.verdict for effect in found.effects if effect.inference}

    assert "worse" in verdicts(rows), "AHCL against ASCL"
    assert verdicts([*rows[:-1], replace(rows[-1], state="running")]) == {"undecided"}
    assert verdicts(rows[:-1]) == {"undecided"}, "its run has not started"


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_a_lost_seed(score: float) -> None:
    base, ours = [88.0, 88.1, 88.4, 88.2], [91.0, 91.2, 91.5, 91.1]
    planned = sweep("it", (RELABEL,), seeds=(0, 1, 2, 3), table=table(RELABEL, baseline=MOCO))
    rows = [*arm("it", MOCO, base), *arm("it", ASCL, ours)]
    rows[-1] = replace(rows[-1], probe_top1=score)
    found = arms(made(planned, rows))["ASCL"]
    assert found.lost_seeds == 1 and not found.bold
    assert found.comparison is not None and found.comparison.lost == ("ASCL",)
    assert "1 diverged of 4 seeds" in made(planned, rows).notes.values()


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_every_part_of_a_report_counts_the_same_lost_seeds(score: float) -> None:
    """A run without a finite score is lost for the effects and the ranks as it is for its arm."""
    noise = random.Random(0)
    cells = list(product(("none", "ascl"), (64, 256), ("cifar10", "cifar100")))
    rows = [
        row
        for relabel, batch, data in cells
        for row in arm(
            "it",
            {RELABEL: relabel, "batch_size": batch, "data.name": data},
            [88 + 3 * (relabel == "ascl") + noise.gauss(0, 0.05) for _ in range(4)],
        )
    ]
    keys = (RELABEL, "batch_size", "data.name")
    base = {RELABEL: "none", "batch_size": 256, "data.name": "cifar10"}
    grid = sweep("it", keys, seeds=(0, 1, 2, 3), base=base)
    whole = made(grid, rows, baseline=MOCO)
    assert whole.ranks is not None and not any(s.lost_seeds for s in whole.ranks.systems)
    assert whole.factorials[0].effects[0].inference.verdict == "better"  # type: ignore[union-attr]
    place = next(i for i, row in enumerate(rows) if row.config[RELABEL] == "ascl")
    rows[place] = replace(rows[place], probe_top1=score)
    found = made(grid, rows, baseline=MOCO)
    assert found.ranks is not None and sum(s.lost_seeds for s in found.ranks.systems) == 1
    assert found.factorials[0].effects[0].inference.verdict != "better"  # type: ignore[union-attr]


def test_a_comparison_in_two_tables_has_one_result() -> None:
    both = [
        replace(row, sweeps=("it", "large"))
        for row in [*arm("it", MOCO, [88.0, 88.1, 88.4]), *arm("it", ASCL, [88.3, 88.5, 88.9])]
    ]
    more = [
        row for k in (5, 10) for row in arm("large", {**ASCL, NEIGHBOURS: k}, [88.0, 89.1, 88.4])
    ]
    rows = in_order([*both, *more])
    large = sweep("large", (RELABEL, NEIGHBOURS), table=table(RELABEL, baseline=MOCO))
    tables = [build_table(each, rows) for each in (SYSTEMS, large)]
    assert tables[0] is not None and tables[1] is not None
    first, second = share_comparisons([t for t in tables if t is not None])
    one = next(a.comparison for a in first.arms if a.comparison)
    other = next(a.comparison for a in second.arms if a.comparison and a.config[NEIGHBOURS] == 1)
    assert one.inference == other.inference and one.inference.family == 3
    assert (one.taken_from, other.taken_from) == ("large", None)


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
            assert each.comparison is not None and each.comparison.inference.p is not None
            assert each.comparison.inference.p <= 0.05 and each.comparison.estimate.mean > 0


def test_the_largest_mean_alone_is_not_bold() -> None:
    found = made(SYSTEMS, [*arm("it", MOCO, [88.0, 88.1]), *arm("it", ASCL, [88.0, 99.0])])
    assert arms(found)["ASCL"].mean == max(ours.mean or 0 for ours in found.arms)
    assert not any(ours.bold for ours in found.arms)


def test_a_lower_loss_wins() -> None:
    rows = in_order([*arm("it", MOCO, [88.0, 88.1, 88.2]), *arm("it", ASCL, [90.0, 90.1, 90.2])])
    losses = {
        r.run_id: {"loss": 6.0 if "none" in r.run_id else 5.0 - 0.1 * i} for i, r in enumerate(rows)
    }
    found = build_table(SYSTEMS, rows, Options(metric="loss"), losses)
    assert found is not None
    ascl = arms(found)["ASCL"]
    assert ascl.comparison is not None
    assert (ascl.comparison.estimate.wins, ascl.comparison.verdict) == (3, "better")


# ---------------------------------------------------------------- gaps


def test_one_seed_has_no_test_and_the_table_states_it() -> None:
    found = made(SYSTEMS, [*arm("it", MOCO, [88.0]), *arm("it", ASCL, [99.0])])
    ascl = arms(found)["ASCL"]
    assert ascl.sd is None and ascl.interval is None and not ascl.bold
    assert ascl.comparison is not None and ascl.comparison.verdict is None
    assert "One seed per arm: no standard deviation, interval, test or verdict" in said(found)
    assert "t-test" not in " ".join(found.caption), "no test is claimed where there is none"


def test_a_sweep_without_complete_runs_states_it() -> None:
    rows = [replace(row, state="failed") for row in arm("it", ASCL, [90.0, 91.0])]
    found = made(TAUS, rows)
    assert found.arms[0].mean is None and found.arms[0].states == {"failed": 2}
    assert "No run of this sweep is complete" in said(found)


def test_incomplete_arms_are_named() -> None:
    rows = [*arm("it", {TEMPERATURE: 0.05}, [90.0]), *arm("it", {TEMPERATURE: 0.1}, [90.0] * 3)]
    assert "Incomplete arms (complete/planned seeds): τ' = 0.05 (1/3)." in said(made(TAUS, rows))


def test_very_many_names_are_counted() -> None:
    rows = [row for i in range(40) for row in arm("it", {TEMPERATURE: i / 100}, [90.0])]
    (incomplete,) = [text for text in made(TAUS, rows).remarks if "Incomplete" in text]
    assert incomplete.endswith("and 28 more.")


def test_a_table_of_finalists_states_the_number_of_trials() -> None:
    found = build_table(EXAMPLE_SWEEPS[2], EXAMPLE_ROWS)
    assert found is not None
    assert "Configurations tried: ASCL 9" in said(found)


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
        ({}, {"commit": "f" * 40}, "commit: ffffffffffff (other arms: 0123456789ab)"),
        ({}, {"device": "cpu"}, "device: cpu (other arms: NVIDIA A100)"),
        ({}, {"torch": "2.15.0"}, "torch: 2.15.0 (other arms: 2.14.0)"),
        ({}, {"workers": 4}, "workers: 4 (other arms: 1)"),
        ({}, {"dirty": True}, "uncommitted changes: yes (other arms: no)"),
        ({"epochs": 100}, {}, "epochs: 100 (other arms: 200)"),
        ({"batch_size": 512}, {}, "batch: 512 (other arms: 256)"),
        ({"runtime.precision": "bf16"}, {}, "precision: bf16 (other arms: fp32)"),
        ({"data.train_size": 5000}, {}, "training images: 5000 (other arms: all)"),
        ({"eval.probe": "cached"}, {}, "probe: cached (other arms: paper)"),
    ],
)
def test_what_is_not_alike_is_marked(
    config: dict[str, Any], facts: dict[str, Any], note: str
) -> None:
    found = changed(config, **facts)
    assert list(found.notes.values()) == [note]
    assert [ours.marks for ours in found.arms] == [(), (), tuple(found.notes)]


def test_the_provenance_explains_the_mark_of_uncommitted_changes() -> None:
    for dirty in (True, False):
        shown = changed({}, dirty=dirty).provenance
        assert ("+ (" in shown or "+, " in shown) == dirty
        assert shown.endswith(" (+: with uncommitted changes)") == dirty


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
    assert found.notes == {"a": "complete seeds: 0, 1 (other arms: 0, 1, 2)"}
    assert [ours.marks for ours in found.arms] == [(), (), ("a",), ("a",)]


def test_note_letters_continue_after_z() -> None:
    assert [letter(i) for i in (0, 25, 26, 27, 701, 702)] == ["a", "z", "aa", "ab", "zz", "aaa"]


# ---------------------------------------------------------------- the compact shape


def test_a_key_that_has_no_part_in_an_arm_spans_its_columns() -> None:
    found = build_table(EXAMPLE_SWEEPS[0], EXAMPLE_ROWS)
    assert found is not None
    grid = found.grid
    assert grid.rows == ("MoCo", "Hard", "ASCL") and grid.columns == ("K = 1", "K = 5")
    assert grid.places[0, 0] == grid.places[0, 1]
    assert "MoCo does not use K; its result is repeated in every column." in said(found)


def test_every_arm_has_a_place_of_its_own() -> None:
    for sweep_row in EXAMPLE_SWEEPS:
        found = build_table(sweep_row, EXAMPLE_ROWS)
        assert found is not None
        assert set(found.grid.places.values()) == set(range(len(found.arms)))


def test_arms_with_the_same_row_and_column_do_not_hide_each_other() -> None:
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
    assert found["ASCL"].comparison is not None and found["ASCL"].comparison.estimate.wins == 3


# ---------------------------------------------------------------- the caption


def test_the_caption_states_what_the_numbers_are() -> None:
    found = build_table(EXAMPLE_SWEEPS[0], EXAMPLE_ROWS)
    assert found is not None
    shown, compared = found.caption
    for part in (
        *("Mean ± SD in %", "number of seeds in parentheses", "on the CIFAR-10 test set"),
        *("(paper protocol) for 100 epochs", "after 200 epochs", "(batch 256, fp32)"),
    ):
        assert part in shown, part
    for part in (
        *("Compared with MoCo by moderated t-tests paired by seed", "±0.5 points"),
        *("corrected for 4 planned comparisons", "intervals cover training seeds only"),
    ):
        assert part in compared, part


@given(st.lists(st.sampled_from([MOCO, ASCL, {RELABEL: "hard"}]), min_size=1, max_size=3))
def test_a_caption_has_at_most_two_sentences(changes: list[dict[str, Any]]) -> None:
    rows = [row for each in changes for row in arm("it", each, [88.0, 88.4, 88.2])]
    caption = made(SYSTEMS, list({row.run_id: row for row in rows}.values())).caption
    assert 1 <= len(caption) <= 2 and not any(". " in sentence for sentence in caption)


@pytest.mark.parametrize("metric", ["probe_top1", "knn_top1"])
def test_captions_are_short(metric: str) -> None:
    """Also where everything is to be stated: methods, laptop scale, looks and changed seeds."""
    rows = [
        replace(row, scale="laptop", backprops=1)
        for changes in (MOCO, SIMCLR, {**MOCO, "method.name": "byol"})
        for row in arm("it", {**LAPTOP, **changes}, [40.0, 40.4, 40.2])
    ]
    digest = {"seeds": tuple(range(10)), "looks": (3, 5, 8, 10), "extensions": 2}
    base = table("method.name", baseline={"method.name": "moco"})
    asked = sweep("it", ("method.name",), scale="laptop", table=base, **digest)
    found = made(asked, rows, metric=metric)
    tables = [*build_tables(found), arms_table(found)]
    assert found.has_costs and len(tables) == 2
    for sentence in (sentence for shown in tables for sentence in shown.caption):
        assert len(sentence.split()) <= 50 and sentence.count(";") <= 1, sentence
    plain = sweep("it", ("method.name",), table=base)
    for sentence in made(plain, [replace(row, scale="full") for row in rows]).caption:
        assert len(sentence.split()) <= 40, sentence


def test_the_correlation_of_runs_with_one_seed_is_in_the_long_table() -> None:
    """Pairing removes what all arms share by seed; three arms of three seeds suffice to see it."""
    own = np.array([[0.1, 0.0, -0.1], [0.0, 0.2, 0.1], [-0.1, 0.1, 0.3]])
    scores = 90 + np.array([1.0, -2.0, 1.5]) + own
    rows = [
        row
        for relabel, values in zip(("none", "ascl", "hard"), scores.tolist(), strict=True)
        for row in arm("it", {RELABEL: relabel}, values)
    ]
    found = made(SYSTEMS, rows)
    (correlation,) = found.correlations.values()
    matrix = np.cov(scores)
    pairs = matrix[~np.eye(3, dtype=bool)].mean()
    assert correlation == pytest.approx(pairs / np.diag(matrix).mean()) and correlation > 0.95
    text = arms_table(found).caption[1]
    assert f"runs with the same seed have a correlation of {correlation:.2f}" in text
    assert made(SYSTEMS, rows[:2]).correlations == {}, "one arm of two seeds"
    assert "correlation" not in " ".join(arms_table(made(SYSTEMS, rows[:2])).caption)


def test_provenance_is_not_in_the_caption() -> None:
    found = build_table(EXAMPLE_SWEEPS[0], EXAMPLE_ROWS)
    assert found is not None
    for part in ("commit 0123456, fedcba9", "torch 2.14.0", "ray 2.60.0", "ascl-sweep 0.1.0"):
        assert part in found.provenance and part not in " ".join(found.caption)


def test_an_equal_number_of_seeds_is_stated_once() -> None:
    rows = [*arm("it", MOCO, [88.0, 88.1, 88.2]), *arm("it", ASCL, [90.0, 90.1, 90.3])]
    assert "(n = 3 seeds)" in made(SYSTEMS, rows).caption[0]
    assert "(number of seeds in parentheses)" in made(SYSTEMS, rows[:-1]).caption[0]


def test_planned_looks_and_changes_of_the_seeds_are_stated_at_the_table() -> None:
    rows = [*arm("it", MOCO, [88.0, 88.1, 88.2]), *arm("it", ASCL, [90.0, 90.1, 90.3])]
    for digest, text in (
        ({"seeds": tuple(range(5)), "looks": (3, 5)}, "after 3, 5 seeds that share the 5% error"),
        ({"extensions": 1}, "at an error of 2.5%"),
        ({"extensions": 1}, "once after results were known, so this table has an error of 2.5%"),
        ({"extensions": 2}, "error of 1.25% (with the tables before: at most 8.75%)"),
    ):
        asked = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO), **digest)
        found = made(asked, rows)
        assert text in f"{found.caption[1]} {said(found)}"


@pytest.mark.parametrize(
    ("holdouts", "split"),
    [
        ((0.0, 0.0), "on the CIFAR-10 test set after"),
        ((0.1, 0.1), "on the CIFAR-10 holdout after"),
        ((0.0, 0.1), "on the CIFAR-10 test set or holdout after"),
    ],
)
def test_the_caption_states_what_was_scored(holdouts: tuple[float, float], split: str) -> None:
    rows = [
        row
        for tau, share in zip((0.01, 0.05), holdouts, strict=True)
        for row in arm("it", {TEMPERATURE: tau, "data.holdout": share}, [90.0, 91.0])
    ]
    assert split in made(TAUS, rows).caption[0]


# ---------------------------------------------------------------- searches


def summary(rows: Sequence[RunRow], **digest: Any) -> SearchSummary:
    digest = {"search": True, "stop": {"rule": "asha", "grace": 20, "factor": 3.0}, **digest}
    found = summarize_search(sweep("it", (TEMPERATURE,), **digest), in_order(rows))
    assert found is not None
    return found


def trial(tau: float, score: float, **changes: Any) -> RunRow:
    row = run("it", {TEMPERATURE: tau, "data.holdout": 0.1}, SEARCH_SEED, score)
    return replace(row, phase="search", **changes)


def test_a_sweep_that_runs_every_cell_is_no_search() -> None:
    assert summarize_search(TAUS, arm("it", ASCL, [90.0])) is None


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
    """Early stopping saved nothing on a run that is still running or diverged."""
    rows = [
        trial(0.01, 80.0),
        trial(0.02, 70.0, state="stopped", epochs=20),
        trial(0.05, 70.0, state="running", epochs=50),
        trial(0.08, 70.0, state="diverged", epochs=3),
        trial(0.1, 70.0, state="planned", epochs=0),
    ]
    found = summary(rows)
    assert (found.epochs_spent, found.epochs_full) == (273, 453)
    assert len(found.trials) == 4, "a planned run is not a trial"


def test_false_stops_are_audited_runs_that_scored_above_the_last_finalist() -> None:
    rows = [
        trial(0.01, 80.0, audit=True),
        trial(0.02, 90.0, audit=True),
        trial(0.05, 95.0),
        trial(0.08, 70.0),
        trial(0.1, 99.0, audit=True, state="running"),
    ]
    found = summary(rows, finalists=1)
    assert found.audits == 2, "one is still running"
    assert found.false_stops is not None
    assert (found.false_stops.stopped, found.false_stops.audited) == (3, 2)
    assert found.false_stops.false == 0, "neither scored above 95"
    two = summary(rows, finalists=2).false_stops
    assert two and two.false == 2, "both scored above 70, the last run that was not stopped"
    assert summary(rows[1:4], finalists=2).false_stops is None, "one audited run is too few"


def test_each_group_has_finalists_of_its_own() -> None:
    rows = [
        trial(0.05, 95.0),
        trial(0.02, 90.0, audit=True),
        replace(trial(0.1, 80.0, audit=True), config={**trial(0.1, 80.0).config, RELABEL: "hard"}),
    ]
    (one, per) = (summary(rows, finalists=1, per=per).false_stops for per in (None, RELABEL))
    assert one and per and (one.false, per.false) == (0, 1)


def test_a_diverged_trial_counts_with_its_own_epochs_in_the_full_grid_too() -> None:
    rows = [trial(0.01, 80.0), trial(0.02, 70.0, state="diverged", epochs=3)]
    found = summary([*rows, *arm("it", {TEMPERATURE: 0.01}, [90.0, 91.0, 92.0])])
    assert found.grid_epochs == 203 * len(SEEDS)


def test_the_test_score_of_a_finalist_stands_beside_its_holdout_score() -> None:
    rows = [trial(0.01, 80.0), trial(0.02, 70.0)]
    found = summary([*rows, *arm("it", {TEMPERATURE: 0.01}, [90.0, 91.0, 92.0])])
    assert found.best[0].test == FinalistScore(pytest.approx(86.0), pytest.approx(1.0), 3)
    assert found.best[1].test is None, "it is no finalist"


def test_a_search_with_a_seed_of_the_table_says_so() -> None:
    old = trial(0.01, 80.0)
    old = replace(old, config={**old.config, "seed": 0})
    assert summary([old]).shared_seed == 0
    assert summary([trial(0.01, 80.0)]).shared_seed is None


@given(scores=st.lists(st.floats(0, 100), min_size=1, max_size=7), data=st.data())
def test_the_expected_best_is_the_mean_over_all_subsets(
    scores: list[float], data: st.DataObject
) -> None:
    budget = data.draw(st.integers(1, len(scores)))
    subsets = list(combinations(scores, budget))
    expected = sum(map(max, subsets)) / len(subsets)
    assert expected_maximum(scores, budget) == pytest.approx(expected)


def test_the_expected_best_is_listed_per_system_for_doubling_budgets() -> None:
    rows = [trial(t, s) for t, s in ((0.01, 80.0), (0.02, 82.0), (0.05, 84.0), (0.1, 86.0))]
    moco = trial(0.2, 70.0)
    rows.append(replace(moco, config={**moco.config, RELABEL: "none"}))
    (ascl,) = summary(rows).expected_best
    assert (ascl.system, ascl.trials, list(ascl.scores)) == ("ASCL", 4, [1, 2, 4])
    assert ascl.scores[1] == pytest.approx(78.0) and ascl.scores[4] == pytest.approx(81.0)


def test_savings_against_the_full_grid_wait_for_the_finalists() -> None:
    rows = [trial(0.01, 80.0), trial(0.02, 70.0, state="stopped", epochs=20)]
    finals = arm("it", {TEMPERATURE: 0.01}, [90.0, 91.0, 92.0])
    assert summary([*rows, *finals[:2], replace(finals[2], state="running")]).grid_epochs is None
    found = summary([*rows, *finals])
    assert (found.all_epochs, found.grid_epochs) == (820, 2 * 200 * len(SEEDS))


def test_importances_of_noise_rarely_exceed_chance() -> None:
    """Without a reference, the larger of two shares averages 60% and more on pure noise."""
    keys = (TEMPERATURE, "optim.lr")
    wide = {k: distribution_to_json(FloatDistribution(0.0, 1.0)) for k in keys}
    shown = 0
    for seed in range(8):
        rng = random.Random(seed)
        rows = []
        for i in range(12):
            values = {key: rng.random() for key in keys}
            row = trial(i / 20, 60 + 20 * rng.random())
            rows.append(replace(row, config={**row.config, **values}))
        shown += len(summary(rows, distributions=wide).importances)
    assert shown <= 4, "16 keys at 5%"


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
    assert first == "τ'" and 0.5 < share <= 1
    assert len(found.importances) == 1, "the learning rate does not exceed chance"
    few = summary(rows[: IMPORTANCE_TRIALS - 1], distributions=wide)
    assert few.importances == () and not few.has_importances, "too few trials"


@pytest.mark.parametrize(
    ("stop", "said_of_it"),
    [
        (None, "no early stopping"),
        ({"rule": "median", "grace": 10}, "median rule, grace 10 epochs"),
        ({"rule": "keep_top", "share": 0.125, "at": 40}, "keep the best 12.5% at epoch 40"),
    ],
)
def test_a_search_states_its_stopping_rule(stop: dict[str, Any] | None, said_of_it: str) -> None:
    assert summary([trial(0.05, 90.0)], stop=stop).rule == said_of_it


def test_a_table_at_laptop_scale_states_it() -> None:
    rows = [replace(row, scale="laptop") for row in arm("it", {**LAPTOP, **ASCL}, [40.0, 41.0])]
    assert "laptop scale" in made(replace(TAUS, scale="laptop"), rows).caption[0]
