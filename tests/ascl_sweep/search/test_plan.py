"""The plan: run counts, cost and statistical power, before anything runs."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from ascl.checkpoint import save
from ascl.train import build, train
from ascl_sweep.analysis.inference import smallest_effect
from ascl_sweep.cli.plan import plan_lines
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.runtime.records import planned_row
from ascl_sweep.search.plan import (
    Plan,
    calibrate,
    checkpoint_bytes,
    cost_key,
    kinds,
    make_plan,
    seconds_per_epoch,
)
from ascl_sweep.search.study import Study
from ascl_sweep.spec.sweep import SweepSpec, parse_sweep
from tests.ascl_sweep.search.test_study import GRID, OPTUNA, SEARCH, STOP
from tests.conftest import tiny


def spec(text: str) -> SweepSpec:
    return parse_sweep(text, file="it.yaml")


TABLE = """
table: {rows: method.target_temperature, metric: knn_top1,
        baseline: {method.target_temperature: 0.05}}
"""


def plan_of(specs: list[SweepSpec], rows: dict[str, RunRow]) -> Plan:
    return make_plan([Study(spec, rows, {}) for spec in specs], rows)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (GRID, 4),
        (GRID + "seeds: [0, 1, 2]\n", 12),
        (SEARCH, 4 + (2 + 1) * 2),
        (OPTUNA, 5 + (1 + 1) * 2),
        (SEARCH.replace("finalists: 2", "finalists: 1, per: method.target_temperature"), 4 + 4 * 2),
        (GRID + "budget: {trials: 3}\n", 3),
    ],
)
def test_the_number_of_runs_is_that_of_cells_proposals_and_finalists(text: str, runs: int) -> None:
    assert spec(text).planned_runs == runs
    plan = plan_of([spec(text)], {})
    assert plan.sweeps[0].runs == runs
    assert len(plan.runs) + plan.sweeps[0].later == runs
    assert plan.epochs == 9 * runs
    assert plan.disk_bytes == runs * checkpoint_bytes(spec(text).config({}, seed=0))


def test_a_run_of_two_files_is_planned_once() -> None:
    other = GRID.replace("name: it", "name: other").replace("0.1]", "0.2]")
    plan = plan_of([spec(GRID), spec(other)], {})
    assert plan.asked == 8 and len(plan.runs) == 5
    assert sum(len(run.sweeps) == 2 for run in plan.runs) == 3


@pytest.mark.parametrize("search", ["", "ladder: {finalists: 1}\n" + STOP])
def test_cells_of_the_same_config_are_planned_once(search: str) -> None:
    text = GRID.replace("relabel: ascl, ", "") + "seeds: [0, 1]\n" + search
    study = Study(spec(text), {}, {})
    plan = make_plan([study], {})
    runs = 1 + 2 if search else 2
    assert plan.sweeps[0].runs == spec(text).planned_runs == runs
    assert plan.sweeps[0].later == (2 if search else 0)
    assert plan.epochs == sum(study.work_left()) == 9 * runs
    assert any("has no effect with method.relabel none" in w for w in plan.sweeps[0].warnings)


def test_an_arm_is_named_by_what_matters_to_it() -> None:
    text = GRID.replace("grid: {", "grid: {method.relabel: [none, ascl], ")
    arms = [dict(run.changes) for run in plan_of([spec(text)], {}).runs]
    assert arms[0] == {"method.relabel": "none"}, "MoCo has no τ'"
    assert arms[1:] == [
        {"method.relabel": "ascl", "method.target_temperature": t} for t in (0.01, 0.02, 0.05, 0.1)
    ]


def test_time_is_that_of_runs_that_cost_alike() -> None:
    config = spec(GRID).config({}, seed=7)
    values = config.flat_values()
    row = RunRow("x", (), values, "final", "full", epochs=2, train_seconds=30, eval_seconds=10)
    assert seconds_per_epoch([row]) == {cost_key(values): 20}
    plan = plan_of([spec(GRID)], {"x": row})
    assert plan.device_hours == pytest.approx(4 * 9 * 20 / 3600)
    assert plan_of([spec(GRID)], {}).device_hours is None
    four = replace(row, workers=4)
    twice = plan_of([spec(GRID + "resources: {workers: 2}\n")], {"x": four})
    assert twice.device_hours == pytest.approx(4 * 9 * 80 / 3600), "workers are counted once"


def test_both_phases_of_a_search_are_calibrated() -> None:
    """They differ in the holdout and so in the steps of an epoch."""
    searched = spec(SEARCH)
    timings = dict.fromkeys(kinds([searched]), 1.0)
    made = make_plan([Study(searched, {}, {})], {}, timings)
    assert len(timings) == 2 and made.device_hours == pytest.approx(made.epochs / 3600)


def test_a_calibration_times_real_steps() -> None:
    text = GRID.replace("bn_splits: 2", "bn_splits: 2, width: 4, projector_hidden: 16")
    assert 0 < calibrate(spec(text).config({}, seed=0), steps=2) < 60


@pytest.mark.parametrize("encoder", ["resnet18", "resnet34", "resnet50"])
@pytest.mark.parametrize("system", ["ascl", "byol"])
def test_checkpoints_are_about_as_large_as_planned(
    system: str, encoder: str, tmp_path: Path
) -> None:
    run = build(tiny(system, epochs=1, encoder={"name": encoder, "width": 16}))
    next(train(run))
    save(run, tmp_path / "checkpoint.pt")
    size = (tmp_path / "checkpoint.pt").stat().st_size
    assert checkpoint_bytes(run.config) == pytest.approx(size, rel=0.25)


@pytest.mark.parametrize(
    ("text", "comparisons"),
    [
        (GRID, 3),
        (GRID.replace("{method.target", "{augment.strength: [0.4, 0.8], method.target") + TABLE, 6),
        (SEARCH, 2),
        (SEARCH.replace("finalists: 2", "finalists: 1, per: method.target_temperature"), 3),
        (OPTUNA, 1),
    ],
)
def test_the_smallest_effect_is_that_of_the_tables_comparisons(text: str, comparisons: int) -> None:
    read = spec(text + ("" if "seeds" in text else "seeds: [0, 1, 2]\n"))
    planned = plan_of([read], {}).sweeps[0]
    assert planned.smallest_effect == smallest_effect((len(read.seeds),), comparisons)


def test_a_plan_states_the_correlation_of_finished_runs_with_one_seed() -> None:
    read, noise = spec(GRID + "seeds: [0, 1, 2]\n"), random.Random(0)
    rows = {}
    for run in Study(read, {}, {}).wanted():
        score = 0.5 + 0.05 * run.config.seed**2 + noise.gauss(0, 0.001)
        row = planned_row(run, read, float(len(rows)))
        rows[run.run_id] = replace(row, state=RunState.DONE, epochs=9, knn_last_top1=score)
    plan = plan_of([read], rows)
    (planned,) = plan.sweeps
    assert planned.correlation is not None and 0.99 < planned.correlation <= 1
    line = f"  runs with the same seed have a correlation of {planned.correlation:.2f} so far"
    assert line in list(plan_lines(plan))
    (new,) = plan_of([read], {}).sweeps
    assert new.correlation is None


def test_a_plan_warns_about_too_few_runs_and_seeds() -> None:
    warnings = " ".join(plan_of([spec(SEARCH)], {}).sweeps[0].warnings)
    assert "ASHA saves little with 4 runs" in warnings
    assert "with 2 seeds there are no verdicts" in warnings
    (one,) = plan_of([spec(GRID)], {}).sweeps[0].warnings
    assert "with one seed there are no intervals" in one
