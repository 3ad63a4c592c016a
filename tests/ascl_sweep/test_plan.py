"""The plan: counts, cost and what seeds can show, before anything runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ascl.checkpoint import save
from ascl.train import build, train
from ascl_sweep.agenda import config_values
from ascl_sweep.ledger import RunRow
from ascl_sweep.plan import (
    calibrate,
    checkpoint_bytes,
    cost_key,
    make_plan,
    planned_runs,
    seconds_per_epoch,
    smallest_effect,
    smallest_p,
)
from ascl_sweep.spec import SweepSpec, spec_of
from tests.ascl_sweep.test_agenda import GRID, OPTUNA, SEARCH
from tests.conftest import tiny


def spec(text: str) -> SweepSpec:
    return spec_of(text, file="it.yaml")


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (GRID, 4),
        (GRID + "seeds: [0, 1, 2]\n", 12),
        (SEARCH, 4 + 2 * 2),
        (OPTUNA, 5 + 1 * 2),
        (SEARCH.replace("finalists: 2", "finalists: 1, per: method.target_temperature"), 4 + 4 * 2),
        (GRID + "budget: {trials: 3}\n", 3),
    ],
)
def test_the_number_of_runs_is_that_of_cells_proposals_and_finalists(text: str, runs: int) -> None:
    assert planned_runs(spec(text)) == runs
    plan = make_plan([spec(text)], {}, {})
    assert plan.sweeps[0].runs == runs
    assert len(plan.runs) + plan.sweeps[0].later == runs
    assert plan.epochs == 9 * runs
    assert plan.disk_bytes == runs * checkpoint_bytes(spec(text).config({}, seed=0))


def test_a_run_wanted_by_two_files_is_planned_once() -> None:
    other = GRID.replace("name: it", "name: other").replace("0.1]", "0.2]")
    plan = make_plan([spec(GRID), spec(other)], {}, {})
    assert plan.asked == 8 and len(plan.runs) == 5
    assert sum(len(run.sweeps) == 2 for run in plan.runs) == 3


def test_an_arm_is_named_by_what_matters_to_it() -> None:
    text = GRID.replace("grid: {", "grid: {method.relabel: [none, ascl], ")
    arms = [dict(run.changes) for run in make_plan([spec(text)], {}, {}).runs]
    assert arms[0] == {"method.relabel": "none"}, "MoCo has no τ'"
    assert arms[1:] == [
        {"method.relabel": "ascl", "method.target_temperature": t} for t in (0.01, 0.02, 0.05, 0.1)
    ]


def test_time_is_that_of_runs_that_cost_alike() -> None:
    config = spec(GRID).config({}, seed=7)
    values = config_values(config)
    row = RunRow("x", (), values, "final", "full", epochs=2, train_seconds=30, eval_seconds=10)
    assert seconds_per_epoch([row]) == {cost_key(values): 20}
    plan = make_plan([spec(GRID)], {"x": row}, {})
    assert plan.device_hours == pytest.approx(4 * 9 * 20 / 3600)
    assert make_plan([spec(GRID)], {}, {}).device_hours is None
    four = replace(row, workers=4)
    twice = make_plan([spec(GRID + "resources: {workers: 2}\n")], {"x": four}, {})
    assert twice.device_hours == pytest.approx(4 * 9 * 80 / 3600), "workers are counted once"


def test_a_calibration_times_real_steps() -> None:
    text = GRID.replace("bn_splits: 2", "bn_splits: 2, width: 4, projector_hidden: 16")
    assert 0 < calibrate(spec(text).config({}, seed=0), steps=2) < 60


@pytest.mark.parametrize("encoder", ["resnet18", "resnet34", "resnet50"])
@pytest.mark.parametrize("system", ["ascl", "byol"])
def test_checkpoints_are_about_as_large_as_the_plan_says(
    system: str, encoder: str, tmp_path: Path
) -> None:
    run = build(tiny(system, epochs=1, encoder={"name": encoder, "width": 16}))
    next(train(run))
    save(run, tmp_path / "checkpoint.pt")
    size = (tmp_path / "checkpoint.pt").stat().st_size
    assert checkpoint_bytes(run.config) == pytest.approx(size, rel=0.25)


@pytest.mark.parametrize(("seeds", "p"), [(3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_the_smallest_p_is_that_of_all_signs_alike(seeds: int, p: float) -> None:
    assert smallest_p(seeds) == p
    assert smallest_p(1) is None


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_smallest_effect_is_found_four_times_in_five(seeds: int) -> None:
    effect = smallest_effect(seeds, comparisons=1)
    assert effect is not None
    draws = np.random.default_rng(0).normal(effect, 1, (4000, seeds))
    found = stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)


def test_more_comparisons_need_larger_effects() -> None:
    one, many = smallest_effect(5, 1), smallest_effect(5, 9)
    assert one is not None and many is not None and many > one
    assert smallest_effect(1, 1) is None


def test_a_plan_warns_where_little_can_come_of_it() -> None:
    warnings = " ".join(make_plan([spec(SEARCH)], {}, {}).sweeps[0].warnings)
    assert "ASHA can save little with 4 runs" in warnings
    assert "with 2 seeds no sign-flip p can fall below 0.5" in warnings
    (one,) = make_plan([spec(GRID)], {}, {}).sweeps[0].warnings
    assert "one seed shows no spread" in one
