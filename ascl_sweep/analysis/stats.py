"""Statistics of scores: means, intervals and rank correlations.

These functions know numbers, not runs or sweeps. They refuse NaN, so that a diverged run is never
averaged by accident. Random draws use a fixed seed and sorted values: the same runs give the same
table in any order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

# `scipy.stats` takes half a second to load, so it is imported where it is used.

ROUNDING = 1e-9
"""Relative size of floating-point errors: 0.3 − 0.2 differs slightly from 0.2 − 0.1."""
DRAWS = 2**16
"""Draws of a permutation test that is too large to enumerate: p = 0.05 is known to ± 0.001."""
LEVEL = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation, which is None for a single value.

    A standard deviation within floating-point error is returned as 0.
    """
    numbers = _finite(values)
    if not numbers:
        raise ValueError("the mean needs at least one number, got none")
    mean = fmean(numbers)
    if len(numbers) < 2:
        return mean, None
    sd = stdev(numbers)
    return mean, sd if sd > ROUNDING * max(map(abs, numbers)) else 0.0


def interval_of_mean(values: Sequence[float]) -> Interval | None:
    """Return Student's t interval of the mean; a point if all values are equal."""
    if len(values) == 0:
        return None
    mean, sd = mean_sd(values)
    return None if sd is None else _student(mean, sd, len(values))


def mean_correlation(values: NDArray[np.float64]) -> float | None:
    """Return the mean covariance of the rows over their mean variance; None without variance."""
    m = len(values)
    variance = float(values.var(axis=1, ddof=1).mean())
    if variance == 0:
        return None
    covariance = (m * float(values.mean(axis=0).var(ddof=1)) - variance) / (m - 1)
    return covariance / variance


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Kendall's τ-b of paired values, from −1 to 1.

    None if the values have no order: fewer than two pairs, or one side all tied.
    """
    _finite(a), _finite(b)
    if len(a) != len(b):
        raise ValueError(f"a rank correlation needs pairs, got {len(a)} and {len(b)} values")
    if len(set(a)) < 2 or len(set(b)) < 2:
        return None
    from scipy.stats import kendalltau

    # scipy 1.17 computes 0.9999999999999999 where two orders agree.
    return round(float(kendalltau(a, b).statistic), 12)


def rank_correlation_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided permutation p of `rank_correlation`.

    Exact up to 8 pairs, also with ties; seeded random permutations above that.
    """
    if rank_correlation(a, b) is None:
        return None
    from scipy.stats import permutation_test

    ordered = zip(*sorted(zip(a, b, strict=True)), strict=True)
    ranks_a, ranks_b = (np.unique(x, return_inverse=True)[1].astype(np.float64) for x in ordered)
    i, j = np.triu_indices(len(a), 1)
    signs = np.sign(ranks_a[i] - ranks_a[j])

    def agreement(drawn: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        """Return |τ| without its denominator, which is the same for every permutation."""
        total: NDArray[np.float64] = abs(np.sign(drawn[..., i] - drawn[..., j]) @ signs)
        return total

    found = permutation_test(
        (ranks_b,),
        agreement,
        permutation_type="pairings",
        alternative="greater",
        n_resamples=DRAWS,
        batch=2**12,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def _finite(values: Sequence[float]) -> list[float]:
    numbers = [float(value) for value in values]
    for place, number in enumerate(numbers):
        if not math.isfinite(number):
            raise ValueError(
                f"statistics need finite numbers, got {number} at index {place}; exclude diverged "
                "runs and count them separately"
            )
    return numbers


def _student(mean: float, sd: float, n: int) -> Interval:
    half = _t_quantile(n) * sd / math.sqrt(n)
    return Interval(mean - half, mean + half)


@cache
def _t_quantile(n: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, n - 1))
