"""The median rule, compared with Ray's own rule."""

import math
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.search.schedulers.base import Decision
from tests.ascl_sweep.search.schedulers.runs import EPOCHS, arrivals, draws, stopper, tell


@given(draw=draws, runs=st.integers(1, 12), grace=st.integers(1, 5))
def test_the_median_rule_decides_as_ray_does(draw: random.Random, runs: int, grace: int) -> None:
    from ray.tune.schedulers import MedianStoppingRule, TrialScheduler

    ray_median: Any = MedianStoppingRule(
        time_attr="epoch",
        metric="knn",
        mode="max",
        grace_period=grace,
        min_time_slice=math.inf,  # type: ignore[arg-type]  # never ask the controller
    )

    class Stub(str):
        trial_id = "unused"

    rule = stopper("median", f"grace={grace}")
    stopped = set()
    for run, epoch, value in arrivals(draw, runs):
        if run in stopped or epoch == EPOCHS:
            continue
        theirs = ray_median.on_trial_result(None, Stub(run), {"epoch": epoch, "knn": value})
        assert rule.decide(run, epoch, value).stop == (theirs == TrialScheduler.STOP)
        if theirs == TrialScheduler.STOP:
            stopped.add(run)


@given(value=st.floats(0, 1), runs=st.integers(4, 9))
def test_of_runs_that_are_all_the_same_the_median_rule_stops_none(value: float, runs: int) -> None:
    rule = stopper("median", "grace=1")
    told = [(f"run{i}", epoch, value) for epoch in range(1, EPOCHS) for i in range(runs)]
    assert not any(decision.stop for decision in tell(rule, told))


def test_the_median_rule_gives_a_reason() -> None:
    rule = stopper("median", "grace=2", 10)
    for run, values in {"a": [0.1, 0.2, 0.4], "b": [0.1, 0.3, 0.5], "c": [0.0, 0.1, 0.2]}.items():
        tell(rule, [(run, epoch, value) for epoch, value in enumerate(values, 1)])
    # The means since the grace epoch are 0.3, 0.4 and 0.15; the best so far is at epoch 2.
    rule.decide("d", 1, 0.0)
    assert not rule.decide("d", 2, 0.29).stop
    assert rule.decide("d", 3, 0.25) == Decision(
        stop=True,
        because="median rule at epoch 3: the best kNN so far, 29.0%, is below 30.0%, "
        "the median of the means of 3 other runs",
    )


def test_the_median_rule_waits_for_three_others() -> None:
    rule = stopper("median", "grace=1", 10)
    values = [0.9, 0.8, 0.1, 0.1]
    stops = [rule.decide(f"run{i}", 1, value).stop for i, value in enumerate(values)]
    assert stops == [False, False, False, True]
