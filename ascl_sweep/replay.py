"""What another stopping rule would have cost and found, told by curves that were recorded.

Complete curves are run again on simulated workers, in many orders of arrival, under each rule.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from ascl_sweep.stopping import KINDS, Kind, Rule, Stopper

FEWEST = 4  # curves; fewer have no ranks worth speaking of
SPEED_SPREAD = 0.1  # a run's epochs take 0.9 to 1.1 units of time: workers drift apart
DEFAULTS: dict[Kind, dict[str, str]] = {
    "asha": {"grace": "10%", "factor": "3"},
    "median": {"grace": "10%"},
    "keep_top": {"share": "0.125", "at": "20%"},
}
EXAMPLES: dict[Kind, str] = {
    kind: f"{kind}:" + ",".join(f"{key}={value}" for key, value in fields.items())
    for kind, fields in DEFAULTS.items()
}


@dataclass(frozen=True)
class Interval:
    """A mean over the repeats with its 95% interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """How a rule fared over all orders of arrival."""

    label: str
    epochs_share: Interval  # epochs trained, of those without stopping
    regret: Interval  # points of the metric: final value of the best of all − of the selected
    best_survives: Interval  # share of the repeats in which the selected is the best of all
    repeats: int
    runs: int


def replay(
    curves: Mapping[str, Sequence[float]],
    rules: Mapping[str, Rule | None],
    *,
    workers: int,
    repeats: int,
    seed: int = 0,
) -> list[Outcome]:
    """Each rule's outcome on the same orders of arrival; None is no stopping.

    A curve has a value per epoch, nan where none was measured; all are of full length. Nothing is
    audited here. The intervals are over orders of arrival: they say nothing of other curves.
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
        unaudited = replace(rule, audit=0.0) if rule else None
        looks = Stopper(unaudited, epochs).looks if unaudited else ()
        stages = [cut_at_looks(curve, looks) for curve in recorded]
        shares, regrets = [], []
        for order, paces in arrivals:
            trained = [epochs] * len(recorded)
            if unaudited:
                trained = simulate(stages, Stopper(unaudited, epochs), order, paces, workers)
            selected = max(final[run] for run, spent in enumerate(trained) if spent == epochs)
            shares.append(sum(trained) / (epochs * len(recorded)))
            regrets.append(100 * (max(final) - selected))
        outcomes.append(
            Outcome(
                label=label,
                epochs_share=_mean(shares),
                regret=_mean(regrets),
                best_survives=_wilson(sum(regret == 0 for regret in regrets), repeats),
                repeats=repeats,
                runs=len(recorded),
            )
        )
    return outcomes


def standard_rules(epochs: int) -> dict[str, Rule | None]:
    """The settings worth comparing first: none, Ray's, ours and their neighbours."""
    texts = {
        "ASHA, Ray's defaults (grace 1, factor 4)": "asha:grace=1,factor=4",
        "ASHA, ours (grace 10%, factor 3)": "asha:grace=10%,factor=3",
        "ASHA, grace 20%, factor 3": "asha:grace=20%,factor=3",
        "ASHA, grace 10%, factor 2": "asha:grace=10%,factor=2",
        "median, grace 10%": "median:grace=10%",
        "best eighth at 20%": "keep_top:share=0.125,at=20%",
        "best quarter at 20%": "keep_top:share=0.25,at=20%",
    }
    return {"no stopping": None} | {
        label: parse_rule(text, epochs) for label, text in texts.items()
    }


def parse_rule(text: str, epochs: int) -> Rule:
    """A rule from words such as `asha:grace=10%,factor=3`; epochs may be a percentage of all.

    What is left out is ours: grace 10%, factor 3; the best eighth at 20%.
    """
    name, _, rest = text.strip().partition(":")
    kind = _kind(name.strip())
    fields = dict(DEFAULTS[kind])
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in fields:
            raise ValueError(
                f"{kind} takes {' and '.join(fields)}, each as key=value, got {part!r} in "
                f"{text!r}; try {EXAMPLES[kind]!r}"
            )
        fields[key] = value
    values = {
        key: _epoch(key, value, epochs) if key in ("grace", "at") else _number(key, value)
        for key, value in fields.items()
    }
    return Rule(kind, **values)  # type: ignore[arg-type]


def _kind(name: str) -> Kind:
    for kind in KINDS:
        if name == kind:
            return kind
    raise ValueError(
        f"no stopping rule named {name!r}; there are: {', '.join(KINDS)}; try {EXAMPLES['asha']!r}"
    )


def _epoch(key: str, text: str, epochs: int) -> int:
    """An epoch, or the one nearest to a percentage of all of them, as in a sweep file."""
    try:
        if text.endswith("%"):
            share = float(text[:-1]) / 100
            epoch = max(1, round(share * epochs)) if 0 < share <= 1 else 0
        else:
            epoch = int(text)
    except ValueError:
        epoch = 0
    if not 1 <= epoch <= epochs:
        raise ValueError(
            f"{key} is an epoch from 1 to {epochs} or a percentage of them, got {key}={text}; "
            f"try {key}=10%"
        )
    return epoch


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        example = "3" if key == "factor" else "0.125"
        raise ValueError(f"{key} is a number, got {key}={text}; try {key}={example}") from None


def _check(curves: Mapping[str, Sequence[float]], workers: int, repeats: int) -> int:
    """How many epochs the curves have, once all is found fit to replay."""
    if len(curves) < FEWEST:
        raise ValueError(
            f"replay needs at least {FEWEST} complete curves, got {len(curves)}; "
            "let more runs finish, with a search that does not stop them (no `stop:`)"
        )
    lengths = {len(curve) for curve in curves.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"replay needs curves of one length, got {', '.join(map(str, sorted(lengths)))} "
            "epochs; pass the runs of one sweep that reached the full length"
        )
    for run, curve in curves.items():
        if not math.isfinite(curve[-1]):
            raise ValueError(
                f"a complete curve ends in a number, got {curve[-1]} for {run}; leave it out"
            )
    if workers < 1:
        raise ValueError(f"replay needs a worker, got workers={workers}; try 4")
    if repeats < 2:
        raise ValueError(f"an interval needs at least 2 repeats, got repeats={repeats}; try 300")
    return lengths.pop()


Stage = tuple[int, list[tuple[int, float]]]  # the epoch it ends with, and what is told there


def cut_at_looks(curve: Sequence[float], looks: Sequence[int]) -> list[Stage]:
    """A run cut where it meets the others: at its first value from each look on, and at its end."""
    epochs = len(curve)
    told = [(epoch, value) for epoch, value in enumerate(curve, 1) if math.isfinite(value)]
    ends = sorted({next(epoch for epoch, _ in told if epoch >= look) for look in looks} - {epochs})
    return [
        (end, [(epoch, value) for epoch, value in told if start < epoch <= end])
        for start, end in pairwise([0, *ends])
    ] + [(epochs, [])]


def simulate(
    stages: Sequence[Sequence[Stage]],
    stopper: Stopper,
    order: Sequence[int],
    paces: Sequence[float],
    workers: int,
) -> list[int]:
    """How many epochs each run trained: runs start in `order` as workers come free."""
    trained = [stopper.epochs] * len(stages)
    waiting = iter(order)
    events = [(stages[run][0][0] * paces[run], run, 0) for run in islice(waiting, workers)]
    heapq.heapify(events)
    while events:
        time, run, stage = heapq.heappop(events)
        end, told = stages[run][stage]
        if any(stopper.decide(str(run), epoch, value).stop for epoch, value in told):
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
