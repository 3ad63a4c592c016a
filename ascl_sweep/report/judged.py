"""What our runs say of the paper's claims.

Each contest of a claim is held in every setting that the runs have, seed by seed. "Always better"
is refuted by a single setting that is decidedly not; what the seeds cannot tell apart stays
undecided.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ascl_sweep import labels, stats
from ascl_sweep.claims import CLAIMS, Claim, Contest, Outcome
from ascl_sweep.ledger import RunRow, Scalar
from ascl_sweep.paper import Where
from ascl_sweep.report.arms import OF_NO_ARM, seed_of

EARLY = 0.2
"""Share of the epochs that count as the first ones, of which `early_knn` is the mean."""
# What a method brings along of its own, so that two methods are alike in what is left.
_ACROSS_METHODS = ("data.name", "data.train_size", "epochs")


@dataclass(frozen=True)
class Duel:
    """A contest in one setting."""

    label: str
    result: stats.Paired
    corrected_p: float | None
    """Holm, over the duels of the claim."""
    verdict: stats.Verdict | None


@dataclass(frozen=True)
class Finding:
    """What the runs say of a claim."""

    claim: Claim
    outcome: Outcome
    duels: tuple[Duel, ...] = ()
    why: str = ""

    @property
    def agreeing(self) -> int:
        """Duels whose mean is on the claim's side."""
        return sum(duel.result.mean > 0 for duel in self.duels)


@dataclass(frozen=True)
class _Side:
    """Runs of one configuration, by seed."""

    config: Mapping[str, Scalar]
    idle: frozenset[str]
    scores: Mapping[int, float]
    """In percent."""


def findings(
    rows: Iterable[RunRow],
    sweeps: Collection[str],
    early_knn: Mapping[str, float],
    region: float,
) -> tuple[Finding, ...]:
    """What complete runs of these sweeps say of every claim that rests on no other sweep.

    `early_knn` is each run's mean kNN over its first epochs, see `early`.
    """
    final = [row for row in rows if row.phase == "final"]
    return tuple(
        _finding(
            claim,
            _sides([row for row in final if set(row.sweeps) & set(claim.sweeps)], claim, early_knn),
            region,
        )
        for claim in CLAIMS
        if set(claim.sweeps) <= set(sweeps)
    )


def early(epochs: NDArray[np.float64], scores: NDArray[np.float64]) -> float | None:
    """The mean score over the first epochs of a complete run; NaN is where none was measured."""
    first = scores[epochs <= max(1.0, EARLY * epochs.max(initial=0.0))]
    measured = first[~np.isnan(first)]
    return float(measured.mean()) if len(measured) else None


def _sides(rows: Iterable[RunRow], claim: Claim, early_knn: Mapping[str, float]) -> list[_Side]:
    groups: dict[tuple[tuple[str, Scalar], ...], list[RunRow]] = {}
    for row in rows:
        active = {k: v for k, v in row.config.items() if k not in (*row.idle, *OF_NO_ARM)}
        groups.setdefault(tuple(sorted(active.items())), []).append(row)

    def score(row: RunRow) -> float | None:
        columns = {
            "probe_top1": row.probe_top1,
            "knn_top1": row.knn_last_top1,
            "early_knn": early_knn.get(row.run_id),
        }
        return columns[claim.score]

    return [
        _Side(
            config=group[0].config,
            idle=frozenset(group[0].idle),
            scores={
                seed_of(row): 100 * value
                for row in group
                if row.state == "done" and (value := score(row)) is not None
            },
        )
        for group in groups.values()
    ]


def _finding(claim: Claim, sides: Sequence[_Side], region: float) -> Finding:
    if claim.settled is not None:
        return Finding(claim, claim.settled[0], why=claim.settled[1])
    pairs = [pair for contest in claim.contests for pair in _pairs(contest, sides)]
    if claim.kind == "narrows":
        gains = list(_narrowing(pairs))
    else:
        gains = [(_label(pair, pairs), _differences(*pair)) for pair in pairs]
    planned, gains = len(gains), [(label, values) for label, values in gains if values]
    if not gains:
        return Finding(claim, "not run", why="no complete runs on both sides of it")
    results = [stats.paired(values) for _, values in gains]
    corrected = stats.holm([result.p for result in results])
    duels = tuple(
        Duel(label, result, p, stats.verdict(result, p, region))
        for (label, _), result, p in zip(gains, results, corrected, strict=True)
    )
    outcome = _outcome(claim, duels, region)
    if outcome == "holds" and len(duels) < planned:
        why = f"{planned - len(duels)} of its {planned} comparisons have no complete runs yet"
        return Finding(claim, "undecided", duels, why)
    return Finding(claim, outcome, duels)


def _outcome(claim: Claim, duels: Sequence[Duel], region: float) -> Outcome:
    verdicts = {duel.verdict for duel in duels}
    if claim.kind == "no worse":
        if "worse" in verdicts:
            return "does not hold"
        lows = [duel.result.low for duel in duels]
        return "holds" if all(low is not None and low > -region for low in lows) else "undecided"
    if verdicts & {"worse", "equivalent"}:
        return "does not hold"
    return "holds" if verdicts == {"better"} else "undecided"


def _pairs(contest: Contest, sides: Sequence[_Side]) -> Iterator[tuple[_Side, _Side]]:
    losers = [side for side in sides if _fits(side, contest.loser)]
    for side in sides:
        if _fits(side, contest.winner):
            rivals = [rival for rival in losers if _alike(side, rival, contest.keys)]
            if len(rivals) == 1:  # of several none is the fair one
                yield side, rivals[0]


def _fits(side: _Side, wanted: Where) -> bool:
    return all(_value(side, key) == value for key, value in wanted.items())


def _value(side: _Side, key: str) -> Scalar:
    return None if key in side.idle and key != "method.relabel" else side.config.get(key)


def _alike(a: _Side, b: _Side, stated: Collection[str]) -> bool:
    if a.config.get("method.name") != b.config.get("method.name"):
        keys: Collection[str] = _ACROSS_METHODS
    else:
        keys = (a.config.keys() | b.config.keys()) - set(OF_NO_ARM)
    return all(
        a.config.get(key) == b.config.get(key)
        for key in keys
        if key not in stated and key not in a.idle | b.idle
    )


def _differences(a: _Side, b: _Side) -> list[float]:
    return [a.scores[seed] - b.scores[seed] for seed in sorted(a.scores.keys() & b.scores.keys())]


def _narrowing(pairs: Sequence[tuple[_Side, _Side]]) -> Iterator[tuple[str, list[float]]]:
    """The winner's lead at the largest batch less that at the smallest, seed by seed."""
    by_size = {int(winner.config["batch_size"] or 0): (winner, loser) for winner, loser in pairs}
    if len(by_size) < 2:
        return
    small, large = min(by_size), max(by_size)
    sides = (*by_size[large], *by_size[small])
    seeds = sorted(set.intersection(*(set(side.scores) for side in sides)))
    leads = [[s.scores[seed] for s in sides] for seed in seeds]
    yield f"batch {large} against {small}", [(a - b) - (c - d) for a, b, c, d in leads]


def _label(pair: tuple[_Side, _Side], pairs: Sequence[tuple[_Side, _Side]]) -> str:
    """A duel by what sets it apart from the claim's others."""
    winner, loser = pair
    varied = [
        key
        for key in labels.NAMES
        if key not in labels.SYSTEM_KEYS
        if len({side.config.get(key) for both in pairs for side in both if key not in side.idle})
        > 1
    ]
    named = [
        labels.system_arm(side.config, ["method.name", *(k for k in varied if k in side.config)])
        for side in (winner, loser)
    ]
    return " against ".join(named)
