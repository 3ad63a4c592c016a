"""Replay: what other stopping rules would have cost and found, from recorded curves.

Complete curves are replayed on simulated workers, in many arrival orders, under each rule.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from ascl_sweep.errors import UsageError
from ascl_sweep.search.schedulers.base import (
    SchedulerConfig,
    Stopper,
    load_scheduler,
    scheduler_names,
)

FEWEST = 4  # curves; ranks of fewer mean nothing
SPEED_SPREAD = 0.1  # an epoch takes 0.9 to 1.1 units of time, so workers drift apart


@dataclass(frozen=True)
class Interval:
    """A mean over the repeats with its 95% confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class RuleOutcome:
    """The result of a rule over all arrival orders."""

    label: str
    epochs_share: Interval  # trained epochs as a share of those without stopping
    regret: Interval  # final value of the best run − of the selected run, in points
    best_survives: Interval  # share of the repeats that select the best run
    repeats: int
    runs: int


def replay(
    curves: Mapping[str, Sequence[float]],
    rules: Mapping[str, SchedulerConfig | None],
    *,
    workers: int,
    repeats: int,
    seed: int = 0,
) -> list[RuleOutcome]:
    """Replay curves under each rule, with the same arrival orders and without audits.

    The intervals are over arrival orders: they do not cover the choice of curves.

    Args:
        curves: Values per epoch by run, all of full length; NaN where none was measured.
        rules: Rules by label; None means no stopping.
        workers: Number of simulated workers.
        repeats: Number of arrival orders.
        seed: Seed of the arrival orders.

    Returns:
        One outcome per rule.
    """
    epochs = _check(curves, workers, repeats)
    recorded = [[float(value) for value in curves[run]] for run in sorted(curves)]
    final = [curve[-1] for curve in recorded]
    arrivals = []
    for repeat in range(repeats):
        rng = np.random.default_rng((seed, repeat))
        order = rng.permutation(len(recorded)).tolist()
        spread = rng.uniform(1 - SPEED_SPREAD, 1 + SPEED_SPREAD, len(recorded))
        arrivals.append((order, spread.tolist()))
    outcomes = []
    for label, rule in rules.items():
        stops = Stopper(rule, epochs).stop_epochs if rule else ()
        stages = [cut_curve(curve, stops) for curve in recorded]
        shares, regrets = [], []
        for order, paces in arrivals:
            trained = [epochs] * len(recorded)
            if rule:
                trained = simulate(stages, Stopper(rule, epochs), order, paces, workers)
            selected = max(final[run] for run, spent in enumerate(trained) if spent == epochs)
            shares.append(sum(trained) / (epochs * len(recorded)))
            regrets.append(100 * (max(final) - selected))
        outcomes.append(
            RuleOutcome(
                label=label,
                epochs_share=_mean(shares),
                regret=_mean(regrets),
                best_survives=_wilson(sum(regret == 0 for regret in regrets), repeats),
                repeats=repeats,
                runs=len(recorded),
            )
        )
    return outcomes


def standard_rules(epochs: int) -> dict[str, SchedulerConfig | None]:
    """Return the rules compared by default: no stopping, and each scheduler's `COMPARED`."""
    schedulers = [load_scheduler(name) for name in scheduler_names()]
    return {"no stopping": None} | {
        label: scheduler.parse(text).in_epochs(epochs)
        for scheduler in schedulers
        for label, text in scheduler.COMPARED.items()
    }


def parse_rule(text: str, epochs: int) -> SchedulerConfig:
    """Parse a rule such as `asha:grace=10%,factor=3`."""
    name, _, settings = text.strip().partition(":")
    return load_scheduler(name.strip()).parse(settings).in_epochs(epochs)


def _check(curves: Mapping[str, Sequence[float]], workers: int, repeats: int) -> int:
    """Check the arguments of `replay`; return the number of epochs of the curves."""
    if len(curves) < FEWEST:
        raise UsageError(
            f"simulate needs at least {FEWEST} complete curves, got {len(curves)}; "
            "let more runs finish, in a sweep without `stop:`"
        )
    lengths = {len(curve) for curve in curves.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise UsageError(
            f"simulate needs curves of equal length, got {', '.join(map(str, sorted(lengths)))} "
            "epochs; pass the runs of one sweep that reached the full length"
        )
    for run, curve in curves.items():
        if not math.isfinite(curve[-1]):
            raise UsageError(
                f"a complete curve must end in a finite number, got {curve[-1]} for {run}; "
                "exclude this run"
            )
    if workers < 1:
        raise UsageError(f"simulate needs at least 1 worker, got workers={workers}; try 4")
    if repeats < 2:
        raise UsageError(f"simulate needs at least 2 repeats, got repeats={repeats}; try 300")
    return lengths.pop()


Stage = tuple[int, list[tuple[int, float]]]  # last epoch, and its (epoch, value) pairs


def cut_curve(curve: Sequence[float], stops: Sequence[int]) -> list[Stage]:
    """Split a curve at its first value at or after each of these epochs, and at its end."""
    epochs = len(curve)
    measured = [(epoch, value) for epoch, value in enumerate(curve, 1) if math.isfinite(value)]
    ends = sorted(
        {next(epoch for epoch, _ in measured if epoch >= stop) for stop in stops} - {epochs}
    )
    return [
        (end, [(epoch, value) for epoch, value in measured if start < epoch <= end])
        for start, end in pairwise([0, *ends])
    ] + [(epochs, [])]


def simulate(
    stages: Sequence[Sequence[Stage]],
    stopper: Stopper,
    order: Sequence[int],
    paces: Sequence[float],
    workers: int,
) -> list[int]:
    """Simulate runs on workers and return the number of epochs that each run trained.

    Args:
        stages: Each run, split at the epochs where it may be stopped.
        stopper: The rule, before it has seen any values.
        order: Order in which runs start, each when a worker is free.
        paces: Time per epoch of each run.
        workers: Number of workers.
    """
    trained = [stopper.epochs] * len(stages)
    waiting = iter(order)
    events = [(stages[run][0][0] * paces[run], run, 0) for run in islice(waiting, workers)]
    heapq.heapify(events)
    while events:
        time, run, stage = heapq.heappop(events)
        end, measured = stages[run][stage]
        if any(stopper.decide(str(run), epoch, value).stop for epoch, value in measured):
            trained[run] = end
        elif end < stopper.epochs:
            ahead = stages[run][stage + 1][0] - end
            heapq.heappush(events, (time + ahead * paces[run], run, stage + 1))
            continue
        following = next(waiting, None)
        if following is not None:
            begun = time + stages[following][0][0] * paces[following]
            heapq.heappush(events, (begun, following, 0))
    return trained


def _mean(values: Sequence[float]) -> Interval:
    mean = float(np.mean(values))
    margin = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - margin, mean + margin)


def _wilson(hits: int, repeats: int) -> Interval:
    from scipy.stats import binomtest

    interval = binomtest(hits, repeats).proportion_ci(0.95, method="wilson")
    return Interval(hits / repeats, float(interval.low), float(interval.high))
