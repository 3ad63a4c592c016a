"""ASHA, compared with Ray's own scheduler."""

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.search.schedulers.base import Decision
from tests.ascl_sweep.search.schedulers.runs import EPOCHS, arrivals, draws, stopper


@given(
    draw=draws,
    runs=st.integers(1, 12),
    every=st.sampled_from([1, 2, 5]),
    grace=st.integers(1, 5),
    factor=st.sampled_from([1.2, 1.5, 2, 2.5, 3, 4]),
)
def test_asha_decides_as_ray_does(
    draw: random.Random, runs: int, every: int, grace: int, factor: float
) -> None:
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

    theirs: Any = AsyncHyperBandScheduler(
        time_attr="epoch",
        metric="knn",
        mode="max",
        max_t=EPOCHS,
        grace_period=grace,
        reduction_factor=factor,
        # True would stop full-length runs and enter a late value into rungs that it skipped.
        stop_last_trials=False,
    )
    trials = {f"run{i}": Trial("stub", trial_id=f"run{i}", stub=True) for i in range(runs)}
    for trial in trials.values():
        theirs.on_trial_add(None, trial)
    ours = stopper("asha", f"grace={grace},factor={factor}")
    for run, epoch, value in arrivals(draw, runs, every):
        if epoch < EPOCHS:  # the last epoch cannot be stopped
            action = theirs.on_trial_result(None, trials[run], {"epoch": epoch, "knn": value})
            assert ours.decide(run, epoch, value).stop == (action == TrialScheduler.STOP)
    recorded = {milestone: values for milestone, values in theirs._brackets[0]._rungs if values}
    assert {milestone: values for milestone, values in ours.rungs.items() if values} == recorded


@given(
    draw=draws,
    runs=st.integers(1, 30),
    factor=st.sampled_from([1.5, 2, 3, 4]),
)
def test_asha_never_stops_the_best_so_far_of_a_rung(
    draw: random.Random, runs: int, factor: float
) -> None:
    rule = stopper("asha", f"grace=2,factor={factor}")
    rungs = rule.rungs
    for run, epoch, value in arrivals(draw, runs):
        reached = max((rung for rung in rungs if rung <= epoch), default=None)
        best = reached is None or value >= max(rule.rungs[reached].values(), default=-math.inf)
        assert not (best and rule.decide(run, epoch, value).stop)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_about_one_in_factor_passes_a_rung(factor: int) -> None:
    draw = random.Random(factor)
    shares = []
    for _ in range(10):
        rule = stopper("asha", f"grace=1,factor={factor}")
        values = [draw.random() for _ in range(200)]
        passed = [not rule.decide(f"run{i}", 1, value).stop for i, value in enumerate(values)]
        shares.append(sum(passed) / len(passed))
    assert 1 / factor - 0.02 < statistics.mean(shares) < 1 / factor + 0.04


def test_rungs_are_at_grace_times_powers_of_the_factor() -> None:
    assert stopper("asha", "grace=5,factor=3", 50).stop_epochs == (5, 15, 45)
    assert stopper("asha", "grace=1,factor=4", 50).stop_epochs == (1, 4, 16)
    assert stopper("asha", "grace=1,factor=3", 9).stop_epochs == (1, 3), "none at the full length"
    assert stopper("asha", "grace=1,factor=2.5", 9).stop_epochs == (1, 3, 7)


def test_asha_gives_a_reason() -> None:
    rule = stopper("asha", "grace=3,factor=3", 30)
    for i, value in enumerate([0.30, 0.31, 0.32, 0.33, 0.335, 0.34, 0.345, 0.35, 0.36]):
        assert not rule.decide(f"run{i}", 3, value).stop
    assert rule.decide("x", 3, 0.312) == Decision(
        stop=True,
        because="ASHA at epoch 3: kNN 31.2% is below 34.2%, the cut for the best third of 9 runs",
    )


def test_values_close_to_the_cutoff_are_distinguished() -> None:
    rule = stopper("asha", "grace=1,factor=2.5", 30)
    rule.decide("a", 1, 0.34001)
    assert rule.decide("b", 1, 0.34).because == (
        "ASHA at epoch 1: kNN 34.000% is below 34.001%, the cut for the best 40% of 1 run"
    )
