"""What the paper claims in words, and what our runs say of each claim.

A claim is a list of contests: one kind of run beats another, all else alike. Each contest is held
in every setting that the runs have, seed by seed. "Always better" is refuted by a single setting
that is decidedly not; what the seeds cannot tell apart stays undecided.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ascl_sweep import labels, stats
from ascl_sweep.ledger import RunRow, Scalar
from ascl_sweep.paper import SYSTEMS, Where

Outcome = Literal["holds", "does not hold", "undecided", "not run"]
Score = Literal["probe_top1", "knn_top1", "early_knn"]

EARLY = 0.2
"""Share of the epochs that count as the first ones, of which `early_knn` is the mean."""
_OF_NO_SETTING = ("seed", "data.root", "preset", "runtime.device")
# What a method brings along of its own, so that two methods are alike in what is left.
_ACROSS_METHODS = ("data.name", "data.train_size", "epochs")


@dataclass(frozen=True)
class Contest:
    """Runs with the winner's values should beat those with the loser's, all else alike."""

    winner: Where
    loser: Where

    @property
    def keys(self) -> Collection[str]:
        return self.winner.keys() | self.loser.keys()


@dataclass(frozen=True)
class Claim:
    """One thing that the paper says."""

    text: str
    source: str
    """Label of its table or figure, or section."""
    sweeps: tuple[str, ...]
    """Those whose runs it is held against."""
    contests: tuple[Contest, ...] = ()
    score: Score = "probe_top1"
    kind: Literal["better", "no worse", "narrows"] = "better"
    """`narrows`: the winner gains on the loser as `batch_size` grows."""
    settled: tuple[Outcome, str] | None = None
    """Of what no run is needed for, or none can decide: the outcome and why."""


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
        active = {k: v for k, v in row.config.items() if k not in (*row.idle, *_OF_NO_SETTING)}
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
                int(row.config.get("seed") or 0): 100 * value
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
        keys = (a.config.keys() | b.config.keys()) - set(_OF_NO_SETTING)
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


# ---------------------------------------------------------------- what the paper says


def _against(winner: str, *losers: str, **values: str) -> tuple[Contest, ...]:
    """One system against each of others; further values are those of both sides."""
    both = {key.replace("__", "."): value for key, value in values.items()}
    return tuple(
        Contest({**SYSTEMS[winner], **both}, {**SYSTEMS[loser], **both}) for loser in losers
    )


_WEAK = tuple(
    Contest({**SYSTEMS[name], "augment.key": "weak"}, {**SYSTEMS[name], "augment.key": "strong"})
    for name in ("MoCo", "ASCL")
)
_TAU = "method.target_temperature"

CLAIMS = (
    Claim(
        "ASCL is better than SimCLR, BYOL, SimSiam, MoCo and ReSSL on every small dataset",
        "tab:small",
        ("small_datasets",),
        _against("ASCL", "SimCLR", "BYOL", "SimSiam", "MoCo", "ReSSL"),
    ),
    Claim(
        "A weak key view is better than a strong one, for MoCo and for ASCL, in short and long "
        "training",
        "tab:augmentation",
        ("augmentation",),
        _WEAK,
    ),
    Claim(
        "ASCL is better than MoCo with either key view, in short and long training",
        "tab:augmentation",
        ("augmentation",),
        _against("ASCL", "MoCo"),
    ),
    Claim(
        "Hard, AHCL and ASCL end above MoCo in online kNN",
        "fig:knnacc",
        ("learning_speed",),
        (*_against("Hard", "MoCo"), *_against("AHCL", "MoCo"), *_against("ASCL", "MoCo")),
        score="knn_top1",
    ),
    Claim(
        "Hard learns more slowly than MoCo at first",
        "fig:knnacc",
        ("learning_speed",),
        _against("MoCo", "Hard"),
        score="early_knn",
    ),
    Claim(
        "AHCL and ASCL keep MoCo's speed at first",
        "fig:knnacc",
        ("learning_speed",),
        (*_against("AHCL", "MoCo"), *_against("ASCL", "MoCo")),
        score="early_knn",
        kind="no worse",
    ),
    Claim(
        "ASCL is better than Hard and AHCL at every K",
        "tab:nns",
        ("neighbours",),
        _against("ASCL", "Hard", "AHCL"),
    ),
    Claim(
        "ASCL is better than MoCo at every K",
        "tab:nns",
        ("neighbours",),
        _against("ASCL", "MoCo"),
    ),
    Claim("AHCL is always better than Hard", "tab:nns", ("neighbours",), _against("AHCL", "Hard")),
    Claim(
        "With K = 10 Hard and AHCL fall below MoCo",
        "tab:nns",
        ("neighbours",),
        tuple(
            Contest(SYSTEMS["MoCo"], {**SYSTEMS[name], "method.num_neighbours": 10})
            for name in ("Hard", "AHCL")
        ),
    ),
    Claim(
        "τ' = 0.05 is better than lower and higher ones",
        "tab:tempscan",
        ("tau_prime",),
        tuple(
            Contest({**SYSTEMS["ASCL"], _TAU: 0.05}, {**SYSTEMS["ASCL"], _TAU: other})
            for other in (0.01, 0.02, 0.08, 0.1)
        ),
    ),
    Claim(
        "ASCL with any of these τ' is better than MoCo",
        "tab:tempscan",
        ("neighbours", "tau_prime"),
        tuple(
            Contest({**SYSTEMS["ASCL"], _TAU: value}, SYSTEMS["MoCo"])
            for value in (0.01, 0.02, 0.05, 0.08, 0.1)
        ),
    ),
    Claim(
        "As τ' goes to 0, ASCL becomes Hard with K = 1",
        "tab:tempscan",
        ("tau_prime",),
        settled=("holds", "follows from eq. 7 to 11; a test of relabel.py holds it"),
    ),
    Claim(
        "A high τ' acts like label smoothing",
        "tab:tempscan",
        ("tau_prime",),
        settled=(
            "does not hold",
            "as the relation becomes uniform its confidence c becomes 0 (eq. 8), so that ASCL "
            "becomes MoCo; a test of relabel.py holds it",
        ),
    ),
    Claim(
        "ASCL improves BYOL on CIFAR-10",
        "tab:byol",
        ("byol",),
        _against("BYOL + ASCL", "BYOL", data__name="cifar10"),
    ),
    Claim(
        "ASCL harms BYOL on CIFAR-100",
        "tab:byol",
        ("byol",),
        _against("BYOL", "BYOL + ASCL", data__name="cifar100"),
    ),
    Claim(
        "With a larger batch BYOL + ASCL gains on BYOL on CIFAR-100",
        "tab:byol",
        ("byol",),
        _against("BYOL + ASCL", "BYOL", data__name="cifar100"),
        kind="narrows",
    ),
    Claim(
        "ASCL is better than every other self-supervised system on ImageNet-1k",
        "tab:imagenet",
        ("imagenet",),
        _against(
            *("ASCL", "InstDisc", "LocalAgg", "MoCo", "CO2", "PCL", "ReSSL", "SimCLR"),
            *("NNCLR", "CLSA", "SwAV", "SimSiam", "BYOL"),
        ),
    ),
    Claim(
        "Classes have clearer borders in ASCL's features than in MoCo's",
        "fig:tsne",
        ("tsne",),
        settled=("undecided", "a picture of one run of each shows it or not; no number is given"),
    ),
)

SWEEPS = frozenset(name for claim in CLAIMS for name in claim.sweeps)
EARLY_SWEEPS = frozenset(n for claim in CLAIMS if claim.score == "early_knn" for n in claim.sweeps)
