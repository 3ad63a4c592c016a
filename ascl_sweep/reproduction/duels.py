"""The duels of a claim: which runs are compared with which, and their differences by seed."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ascl.keys import describe_keys
from ascl_sweep.analysis import labels
from ascl_sweep.analysis.arms import NOT_IN_ARM, group_into_arms, seed_of
from ascl_sweep.contracts import LOST_STATES, RunRow, RunState, Scalar
from ascl_sweep.reproduction.claims import Claim, Contest, CurveScores
from ascl_sweep.reproduction.compare import Where

# Different methods need different settings, so only these keys must be equal between them.
_ACROSS_METHODS = ("data.name", "data.train_size", "epochs")
_WAITING = (RunState.PLANNED, RunState.RUNNING, RunState.LOST)


@dataclass(frozen=True)
class Side:
    """Runs of one configuration, by seed."""

    config: Mapping[str, Scalar]
    idle: frozenset[str]
    scores: Mapping[int, float]
    """In percent."""
    lost: bool = False
    """Whether a seed diverged, failed or has no finite score."""
    waiting: bool = False
    """Whether planned seeds have not ended."""


@dataclass(frozen=True)
class Gain:
    """Differences of a planned duel by seed, positive where they agree with the claim."""

    label: str
    dataset: Scalar
    differences: Mapping[int, float]
    winner_lost: bool
    loser_lost: bool
    waiting: bool
    """Whether planned seeds of a side have not ended."""


Pair = tuple[Side, Side | None]


def group_sides(rows: Iterable[RunRow], claim: Claim, curve_scores: CurveScores) -> list[Side]:
    """Group the runs of a claim's sweeps into its possible sides."""
    if claim.settled:
        return []
    sides = []
    for group in group_into_arms(row for row in rows if set(row.sweeps) & set(claim.sweeps)):
        found = [(row, _score(row, claim, curve_scores)) for row in group.rows]
        done = [(row, x) for row, x in found if row.state == RunState.DONE and x is not None]
        sides.append(
            Side(
                config=group.config,
                idle=frozenset(group.rows[0].idle),
                scores={seed_of(row): 100 * x for row, x in done if math.isfinite(x)},
                lost=any(row.state in LOST_STATES for row in group.rows)
                or not all(math.isfinite(x) for _, x in done),
                waiting=any(row.state in _WAITING for row in group.rows),
            )
        )
    return sides


def _score(row: RunRow, claim: Claim, curve_scores: CurveScores) -> float | None:
    if claim.score == "probe_top1":
        return row.probe_top1
    if claim.score == "knn_top1":
        return row.knn_last_top1
    if claim.score == "speed":
        return math.log(row.images_per_second) if row.images_per_second else None
    return curve_scores.get(claim.score, {}).get(row.run_id)


def plan_gains(claim: Claim, sides: Sequence[Side]) -> tuple[list[Gain], int]:
    """Return the planned duels of a claim and their number.

    The number includes contests whose runs are missing altogether.
    """
    pairs = [list(_pairs(contest, sides)) for contest in claim.contests]
    every = [pair for found in pairs for pair in found]
    per_contest = [list(_gains(claim, found, every)) for found in pairs]
    gains = [gain for found in per_contest for gain in found]
    return gains, len(gains) + sum(not found for found in per_contest)


def _pairs(contest: Contest, sides: Sequence[Side]) -> Iterator[Pair]:
    loser = contest.loser
    losers = [side for side in sides if loser is not None and _fits(side, loser)]
    for side in sides:
        if not _fits(side, contest.winner):
            continue
        if loser is None:
            yield side, None
            continue
        rivals = [rival for rival in losers if _alike(side, rival, contest.keys)]
        if len(rivals) == 1:  # several rivals: none is the right one
            yield side, rivals[0]


def _fits(side: Side, wanted: Where) -> bool:
    return all(_value(side, key) == value for key, value in wanted.items())


def _value(side: Side, key: str) -> Scalar:
    return None if key in side.idle and key != "method.relabel" else side.config.get(key)


def _alike(a: Side, b: Side, stated: Collection[str]) -> bool:
    if a.config.get("method.name") != b.config.get("method.name"):
        keys: Collection[str] = _ACROSS_METHODS
    else:
        keys = (a.config.keys() | b.config.keys()) - NOT_IN_ARM
    return all(
        a.config.get(key) == b.config.get(key)
        for key in keys
        if key not in stated and key not in a.idle | b.idle
    )


def _gains(claim: Claim, pairs: Sequence[Pair], every: Sequence[Pair]) -> Iterator[Gain]:
    """Yield the planned duels of a contest; `every` has the pairs of all its contests."""
    if claim.kind == "better" or claim.kind == "no worse":
        for winner, loser in pairs:
            losers = () if loser is None else (loser,)
            yield _gain(_label((winner, loser), every), (winner,), losers, _lead)
        return
    combine = _narrowing if claim.kind == "narrows" else _steadiness
    datasets = dict.fromkeys(winner.config.get("data.name") for winner, _ in pairs)
    for dataset in datasets:
        own = [
            (winner, loser)
            for winner, loser in pairs
            if loser is not None and winner.config.get("data.name") == dataset
        ]
        where = labels.value_label("data.name", dataset) if len(datasets) > 1 else ""
        yield from combine(own, where)


def _gain(
    label: str,
    winners: Sequence[Side],
    losers: Sequence[Side],
    value: Callable[[Sequence[float], Sequence[float]], float],
) -> Gain:
    """Combine the scores of sides seed by seed."""
    seeds = sorted(set.intersection(*(set(side.scores) for side in (*winners, *losers))))

    def scores(sides: Sequence[Side], seed: int) -> list[float]:
        return [side.scores[seed] for side in sides]

    return Gain(
        label,
        winners[0].config.get("data.name"),
        {seed: value(scores(winners, seed), scores(losers, seed)) for seed in seeds},
        any(side.lost for side in winners),
        any(side.lost for side in losers),
        any(side.waiting for side in (*winners, *losers)),
    )


def _lead(winners: Sequence[float], losers: Sequence[float]) -> float:
    return sum(winners) - sum(losers)


def _narrowing(pairs: Sequence[tuple[Side, Side]], where: str) -> Iterator[Gain]:
    """Yield the winner's lead at the largest batch minus its lead at the smallest, by seed."""
    by_size = {int(winner.config["batch_size"] or 0): (winner, loser) for winner, loser in pairs}
    if len(by_size) > 1:
        small, large = min(by_size), max(by_size)
        (winner, loser), (small_winner, small_loser) = by_size[large], by_size[small]
        label = ", ".join(filter(None, (where, f"batch {large} vs. {small}")))
        # A high score of the loser at the small batch helps the claim, as one of the winner does.
        yield _gain(label, (winner, small_loser), (loser, small_winner), _lead)


def _steadiness(pairs: Sequence[tuple[Side, Side]], where: str) -> Iterator[Gain]:
    """Yield the loser's range of scores over K minus the winner's, by seed."""
    if len(pairs) > 1:
        winners, losers = zip(*pairs, strict=True)
        names = [labels.system(side.config) for side in pairs[0]]
        label = ", ".join(filter(None, (" vs. ".join(names), where)))
        yield _gain(label, winners, losers, lambda a, b: _range(b) - _range(a))


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _label(pair: Pair, pairs: Sequence[Pair]) -> str:
    """Name a duel by the keys that differ between the duels of a claim."""
    sides = [side for both in pairs for side in both if side is not None]
    varied = [
        key
        for key in describe_keys()
        if key not in labels.SYSTEM_KEYS
        if len({side.config.get(key) for side in sides if key not in side.idle}) > 1
    ]
    named = [
        labels.system_arm(side.config, ["method.name", *(k for k in varied if k in side.config)])
        for side in pair
        if side is not None
    ]
    return " vs. ".join(named)
