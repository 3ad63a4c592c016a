"""Laws of the replay, on curves with known results."""

import math
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.errors import UsageError
from ascl_sweep.search.schedulers.base import SchedulerConfig, Stopper
from ascl_sweep.search.simulate import (
    Interval,
    RuleOutcome,
    cut_curve,
    parse_rule,
    replay,
    simulate,
    standard_rules,
)
from tests.ascl_sweep.search.schedulers.runs import config

EPOCHS = 50
Curves = dict[str, list[float]]

NONE = {"none": None}
RAYS = config("asha", "grace=1,factor=4")
OURS = config("asha", "grace=5,factor=3")


def family(seed: int, runs: int = 32, epochs: int = EPOCHS) -> Curves:
    """Saturating curves that cross: the best ones tend to be the slower ones."""
    rng = np.random.default_rng(seed)
    time = np.arange(1, epochs + 1) / epochs
    curves = {}
    for run in range(runs):
        quality = rng.normal()
        top, rate = 0.7 + 0.05 * quality, 5 * math.exp(rng.normal(-0.1 * quality, 0.3))
        clean = 0.1 + (top - 0.1) * (1 - np.exp(-rate * time)) / (1 - math.exp(-rate))
        curves[f"run{run:02d}"] = (clean + rng.normal(0, 0.005, epochs)).tolist()
    return curves


def parallel(runs: int = 16, epochs: int = 20) -> Curves:
    """Curves that never cross: the first values have the order of the last."""
    return {
        f"run{i:02d}": [0.01 * i + 0.01 * epoch for epoch in range(epochs)] for i in range(runs)
    }


def by_label(outcomes: list[RuleOutcome]) -> dict[str, RuleOutcome]:
    return {outcome.label: outcome for outcome in outcomes}


# Known answers.


def test_without_stopping_all_is_spent_and_the_best_is_found() -> None:
    (outcome,) = replay(family(0), NONE, workers=4, repeats=50)
    assert outcome.epochs_share == Interval(1, 1, 1)
    assert outcome.regret == Interval(0, 0, 0)
    assert outcome.best_survives.mean == outcome.best_survives.high == 1
    assert outcome.best_survives.low == pytest.approx(50 / (50 + 1.96**2), abs=1e-4), "Wilson"
    assert (outcome.label, outcome.repeats, outcome.runs) == ("none", 50, 32)


@pytest.mark.parametrize("rule", [RAYS, config("median", "grace=2"), config("keep_top", "at=4")])
def test_curves_that_never_cross_lose_nothing(rule: SchedulerConfig) -> None:
    (outcome,) = replay(parallel(), {"it": rule}, workers=3, repeats=40)
    assert outcome.regret == Interval(0, 0, 0)
    assert outcome.best_survives.mean == 1
    assert outcome.epochs_share.mean < 0.9


def test_asha_loses_the_late_bloomer_and_patience_keeps_it() -> None:
    curves = parallel(runs=15)
    curves["bloomer"] = [0.001 * epoch for epoch in range(10)] + [0.9] * 10
    rules = {"hasty": RAYS, "patient": config("asha", "grace=11,factor=4")}
    outcomes = by_label(replay(curves, rules, workers=1, repeats=60))
    # The late bloomer is worst at epoch 1: it passes only if it is the first to arrive.
    assert outcomes["hasty"].best_survives.mean < 0.2
    assert outcomes["hasty"].regret.mean == pytest.approx(
        100 * (0.9 - 0.33) * (1 - outcomes["hasty"].best_survives.mean)
    )
    assert outcomes["patient"].best_survives.mean == 1
    assert outcomes["patient"].epochs_share.mean > outcomes["hasty"].epochs_share.mean


def test_what_one_worker_spends_can_be_counted_by_hand() -> None:
    curves = {f"run{i}": [1 - 0.1 * i] * 8 for i in range(4)}

    def spent(order: tuple[int, ...]) -> int:
        """Epochs if the best half of the runs seen at epoch 4 passes; run 0 is the best."""
        total = 0
        for seen, run in enumerate(order, 1):
            rank = sum(other <= run for other in order[:seen])
            total += 8 if seen == 1 or rank <= seen // 2 else 4
        return total

    expected = np.mean([spent(order) for order in permutations(range(4))]) / 32
    rules = {"it": config("keep_top", "share=0.5,at=4")}
    (outcome,) = replay(curves, rules, workers=1, repeats=400)
    assert outcome.epochs_share.mean == pytest.approx(expected, abs=0.01)


def test_equally_good_runs_are_equally_the_best() -> None:
    curves = parallel(8) | {"twin": parallel(8)["run07"]}
    (outcome,) = replay(curves, {"it": RAYS}, workers=2, repeats=30)
    assert outcome.best_survives.mean == 1


def test_unmeasured_epochs_are_not_reported_to_the_scheduler() -> None:
    curves = {
        run: [v if epoch % 5 == 0 else math.nan for epoch, v in enumerate(curve, 1)]
        for run, curve in parallel().items()
    }
    (outcome,) = replay(curves, {"it": config("asha", "grace=2,factor=3")}, workers=2, repeats=30)
    # Rungs 2, 6 and 18 of 20 epochs are reached at 5, 10 and the end: no run stops before 5.
    assert outcome.best_survives.mean == 1
    assert 0.25 < outcome.epochs_share.mean < 0.8


# Repeats, workers and seeds.


def test_the_same_seed_gives_the_same_outcomes_in_any_order_of_the_curves() -> None:
    curves, rules = family(1), {"rays": RAYS, "ours": OURS}
    backwards = dict(reversed(curves.items()))
    once = replay(curves, rules, workers=4, repeats=20, seed=5)
    assert replay(backwards, rules, workers=4, repeats=20, seed=5) == once
    assert replay(curves, rules, workers=4, repeats=20, seed=6) != once


def test_a_rule_fares_the_same_whatever_it_is_compared_with() -> None:
    alone = replay(family(1), {"ours": OURS}, workers=4, repeats=20)
    beside = replay(family(1), {"rays": RAYS, "ours": OURS}, workers=4, repeats=20)
    assert beside[1:] == alone


@given(
    seed=st.integers(0, 10**6),
    runs=st.integers(4, 12),
    workers=st.integers(1, 14),
    every=st.sampled_from([1, 3]),
    rule=st.sampled_from(
        [
            config("asha", "grace=1,factor=2"),
            config("median", "grace=2"),
            config("keep_top", "share=0.25,at=4"),
        ]
    ),
)
def test_skipping_from_look_to_look_is_as_good_as_every_epoch(
    seed: int, runs: int, workers: int, every: int, rule: SchedulerConfig
) -> None:
    rng = np.random.default_rng(seed)
    epochs = 12
    curves = [
        [v if epoch % every == 0 else math.nan for epoch, v in enumerate(values, 1)]
        for values in rng.random((runs, epochs)).tolist()
    ]
    order, paces = rng.permutation(runs).tolist(), rng.uniform(0.3, 3, runs).tolist()
    stops = Stopper(rule, epochs).stop_epochs
    stages = [cut_curve(curve, stops) for curve in curves]
    quick = simulate(stages, Stopper(rule, epochs), order, paces, workers)
    assert quick == epoch_by_epoch(curves, Stopper(rule, epochs), order, paces, workers)


def epoch_by_epoch(
    curves: list[list[float]],
    stopper: Stopper,
    order: list[int],
    paces: list[float],
    workers: int,
) -> list[int]:
    """The simulation without shortcuts."""
    trained, waiting = [0] * len(curves), list(order)
    clock = dict.fromkeys(waiting[:workers], 0.0)  # of the running runs
    del waiting[:workers]
    while clock:
        run = min(clock, key=lambda run: clock[run] + paces[run])
        clock[run] += paces[run]
        trained[run] += 1
        value = curves[run][trained[run] - 1]
        stop = not math.isnan(value) and stopper.decide(str(run), trained[run], value).stop
        if stop or trained[run] == stopper.epochs:
            now = clock.pop(run)
            if waiting:
                clock[waiting.pop(0)] = now
    return trained


def test_intervals_narrow_with_repeats() -> None:
    def width(interval: Interval) -> float:
        assert interval.low <= interval.mean <= interval.high
        return interval.high - interval.low

    (few,) = replay(family(3), {"it": RAYS}, workers=4, repeats=20)
    (many,) = replay(family(3), {"it": RAYS}, workers=4, repeats=180)
    for name in ("epochs_share", "best_survives"):
        ratio = width(getattr(few, name)) / width(getattr(many, name))
        assert 2 < ratio < 4.5, name  # √9 = 3


def test_our_default_keeps_the_best_more_often_than_rays_and_spends_more() -> None:
    rules = {"rays": RAYS, "ours": OURS, "top": config("keep_top", "share=0.125,at=10")}
    survived: dict[str, list[float]] = {label: [] for label in rules}
    spent: dict[str, list[float]] = {label: [] for label in rules}
    for seed in range(8):
        for outcome in replay(family(seed), rules, workers=4, repeats=20):
            survived[outcome.label].append(outcome.best_survives.mean)
            spent[outcome.label].append(outcome.epochs_share.mean)
    assert np.mean(survived["ours"]) > np.mean(survived["rays"]) + 0.05
    assert np.mean(spent["ours"]) > np.mean(spent["rays"]) + 0.05
    # Wide ranges, because these synthetic curves differ from recorded ones.
    assert 0.1 < np.mean(spent["rays"]) < 0.3
    assert 0.25 < np.mean(spent["ours"]) < 0.45


# Parsing of rules.


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("asha:grace=1,factor=4", RAYS),
        ("asha", OURS),
        (" asha : grace = 5 , factor = 3 ", OURS),
        ("asha:grace=9.5%", config("asha", "grace=5")),
        ("median:grace=20%", config("median", "grace=10")),
        ("keep_top:share=0.125,at=20%", config("keep_top", "share=0.125,at=10")),
        ("keep_top", config("keep_top", "share=0.125,at=10")),
    ],
)
def test_a_rule_is_read_as_written(text: str, rule: SchedulerConfig) -> None:
    assert parse_rule(text, EPOCHS) == rule.in_epochs(EPOCHS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ashha", "no scheduler named 'ashha' (did you mean 'asha'?); there are: asha, keep"),
        ("", "no scheduler named ''"),
        (
            "asha:grace=51",
            "asha: grace must not exceed the number of epochs, got grace=51, epochs=50; try",
        ),
        ("asha:factor=1", "factor must be greater than 1, got 1; try 'asha:grace=10%,factor=3'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_rule(text, EPOCHS)
    assert message in str(error.value)


@pytest.mark.parametrize("epochs", [1, 2, 3, 7, 50, 200])
def test_the_standard_rules_suit_any_length(epochs: int) -> None:
    rules = standard_rules(epochs)
    curves = {run: (curve * 200)[:epochs] for run, curve in parallel(6).items()}
    outcomes = replay(curves, rules, workers=2, repeats=2)
    assert [outcome.label for outcome in outcomes] == list(rules)
    assert rules["no stopping"] is None


def test_the_standard_rules_hold_rays_defaults_and_ours() -> None:
    rules = list(standard_rules(EPOCHS).values())
    assert RAYS in rules and OURS in rules


# Errors.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: dict(list(c.items())[:3]), "at least 4 complete curves, got 3; let more runs"),
        (lambda c: c | {"short": [0.1]}, "curves of equal length, got 1, 20 epochs; pass the runs"),
        (
            lambda c: c | {"x": [0.1] * 19 + [math.nan]},
            "end in a finite number, got nan for x; exclude",
        ),
        (lambda c: {run: [] for run in c}, "curves of equal length, got 0 epochs"),
    ],
)
def test_curves_unfit_to_replay_are_refused(
    change: Callable[[Curves], Curves], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replay(change(parallel()), NONE, workers=1, repeats=2)


def test_no_workers_and_no_repeats_are_refused() -> None:
    with pytest.raises(ValueError, match="got workers=0; try 4"):
        replay(parallel(), NONE, workers=0, repeats=2)
    with pytest.raises(ValueError, match="got repeats=1; try 300"):
        replay(parallel(), NONE, workers=1, repeats=1)
