"""The paper's claims as `claims.yaml` lists them, and the scores that test them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ascl_sweep.reproduction.compare import SYSTEMS, Data, Where, load_data

Score = Literal["probe_top1", "knn_top1", "early_knn", "confidence_growth", "purity", "speed"]
Kind = Literal["better", "no worse", "narrows", "steadier"]
Curve = NDArray[np.float64]

ACCURACIES: Collection[Score] = ("probe_top1", "knn_top1", "early_knn")
"""Scores to which the region of equivalence of the report applies."""
PART = 0.2
"""Fraction of the epochs that count as the first or the last ones."""


@dataclass(frozen=True)
class Contest:
    """Expectation that runs with the winner's values beat the loser's, all else equal."""

    winner: Where
    loser: Where | None
    """None: the winner's score should be positive."""

    @property
    def keys(self) -> Collection[str]:
        return self.winner.keys() | (self.loser or {}).keys()


@dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    text: str
    source: str
    """Its section or equation, or the label of its table or figure."""
    sweeps: tuple[str, ...]
    """Sweeps whose runs test the claim."""
    contests: tuple[Contest, ...] = ()
    score: Score = "probe_top1"
    kind: Kind = "better"
    """`narrows`: the winner's lead grows with `batch_size`; `steadier`: smaller range over K."""
    margin: float | None = None
    """Largest deficit of `no worse`, in points or percent; None for the equivalence region."""
    note: str = ""
    """Remark on how the claim is tested."""
    settled: str = ""
    """What is known of a claim that needs no run or that no run can decide."""


def _load_claim(data: Data) -> Claim:
    return Claim(
        text=data["claim"],
        source=data["source"],
        sweeps=tuple(data["sweeps"]),
        contests=tuple(
            Contest(_load_side(contest, contest["winner"]), loser and _load_side(contest, loser))
            for contest in data.get("contests", ())
            for loser in contest.get("losers", (None,))
        ),
        score=data.get("score", "probe_top1"),
        kind=data.get("kind", "better"),
        margin=data.get("margin"),
        note=data.get("note", ""),
        settled=data.get("settled", ""),
    )


def _load_side(contest: Data, side: Data) -> Where:
    values = {key: value for key, value in side.items() if key != "system"}
    return {**SYSTEMS[side["system"]], **values, **contest.get("both", {})}


CLAIMS = tuple(map(_load_claim, load_data("claims.yaml")))
SWEEPS = frozenset(name for claim in CLAIMS for name in claim.sweeps)


# ---------------------------------------------------------------- scores of whole curves


def early_score(epochs: Curve, values: Curve) -> float | None:
    """Return the mean over the first epochs of a run; NaN marks epochs without a value."""
    return _mean(values[epochs <= max(1.0, PART * epochs.max(initial=0.0))])


def growth(epochs: Curve, values: Curve) -> float | None:
    """Return the mean over the last epochs of a run minus the mean over the first ones."""
    last = epochs.max(initial=0.0)
    early = early_score(epochs, values)
    late = _mean(values[epochs > min(last - 1, (1 - PART) * last)])
    return None if early is None or late is None else late - early


def mean_score(_: Curve, values: Curve) -> float | None:
    return _mean(values)


def _mean(values: Curve) -> float | None:
    measured = values[~np.isnan(values)]
    return float(measured.mean()) if len(measured) else None


CURVES: Mapping[Score, tuple[str, Callable[[Curve, Curve], float | None]]] = {
    "early_knn": ("knn_top1", early_score),
    "confidence_growth": ("confidence", growth),
    "purity": ("purity", mean_score),
}
"""Metric of each score that needs all epochs of a run, and the function that sums it up."""
CurveScores = Mapping[Score, Mapping[str, float]]
"""Such scores by run id."""
