"""What an ablation table may claim: intervals, tests, corrections and verdicts over seeds.

Numbers in, numbers out: nothing here knows of runs or sweeps. A run that diverged has no number and
is counted elsewhere; NaN is refused, so that none is averaged by accident. What is drawn at random
is drawn from a fixed seed and from sorted values: the same runs give the same table in any order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from statistics import fmean, stdev
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# scipy.special takes as long to load as the rest of a quick command, scipy.stats three times that:
# the former is imported where it is used, the latter nowhere.

Verdict = Literal["better", "worse", "equivalent", "undecided"]

ROUNDING = 1e-9
"""Relative size below which a difference is the computer's: 0.3 − 0.2 is not quite 0.2 − 0.1."""
DRAWS = 2**16
"""Random draws of a permutation test too large to enumerate: p = 0.05 is known to ± 0.001."""
MOST_FLIPPED = 16
MOST_PERMUTED = 8
FEWEST_BOOTSTRAPPED = 10
"""Below this many values the bootstrap's intervals are too narrow: 83% instead of 95% at n = 5."""


@dataclass(frozen=True)
class Interval:
    """A range of plausible values, both ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Paired:
    """An arm against its base, seed by seed; one seed has neither interval nor p."""

    n: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    wins: int
    """How many differences are above zero."""


# ---------------------------------------------------------------- means and differences


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation (n − 1), which a single value does not have.

    A deviation that is but rounding is 0, so that equal differences are known as such.
    """
    numbers = _some(values)
    mean = fmean(numbers)
    if len(numbers) < 2:
        return mean, None
    sd = stdev(numbers)
    return mean, sd if sd > ROUNDING * max(map(abs, numbers)) else 0.0


def interval_of_mean(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Student's interval of the mean; a point where the values show no spread."""
    if len(values) == 0:
        return None
    mean, sd = mean_sd(values)
    return None if sd is None else _student(mean, sd, len(values), level)


def paired(differences: Sequence[float], level: float = 0.95) -> Paired:
    """Test whether differences taken seed by seed are about zero: two-sided t test and interval.

    Equal differences have no spread, and t would be infinite: p = 0 from two seeds. But scores come
    in steps of one image, so that two seeds may well differ by the same step by chance. What still
    holds is the sign-flip test, so p is the smallest that it can reach (`smallest_p`), and 1 where
    all are zero. The interval collapses to the point: the data show no spread, not that there is
    none.
    """
    mean, sd = mean_sd(differences)
    n, wins = len(differences), sum(float(d) > 0 for d in differences)
    if sd is None:
        return Paired(n, mean, None, None, None, wins)
    interval = _student(mean, sd, n, level)
    p: float | None
    if sd == 0:
        p = smallest_p(n) if mean else 1.0
    else:
        from scipy.special import stdtr

        p = 2 * float(stdtr(n - 1, -abs(mean) / sd * math.sqrt(n)))
    return Paired(n, mean, interval.low, interval.high, p, wins)


def bca(
    values: Sequence[float], level: float = 0.95, seed: int = 0, draws: int = 10_000
) -> Interval | None:
    """Bootstrap interval of the mean for skewed values: bias-corrected and accelerated.

    Efron (1987), "Better bootstrap confidence intervals"; the acceleration of a mean is its
    jackknife's, which is the skewness of the values over 6 √n.
    """
    upper, numbers = _upper(level), np.sort(_finite(values))
    n = len(numbers)
    if n < FEWEST_BOOTSTRAPPED:
        return None
    mean, sd = mean_sd(values)
    if sd == 0:
        return Interval(mean, mean)
    from scipy.special import ndtr, ndtri

    generator = np.random.default_rng(seed)
    means = numbers[generator.integers(0, n, (draws, n))].mean(axis=1)
    # A draw that equals the mean counts half: scores come in steps, so there are many.
    rounding = ROUNDING * abs(numbers).max()
    below = (means < mean - rounding).mean() + (means <= mean + rounding).mean()
    bias = ndtri(below / 2)
    deviations = numbers - mean
    acceleration = (deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5)
    shifted = bias + ndtri(np.array([1 - upper, upper]))
    low, high = np.quantile(means, ndtr(bias + shifted / (1 - acceleration * shifted)))
    return Interval(float(low), float(high))


# ---------------------------------------------------------------- tests without a distribution


def smallest_p(n: int) -> float | None:
    """The smallest two-sided p of a sign-flip test over n paired seeds."""
    return None if n < 2 else 2.0 ** (1 - n)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the mean if each difference could as well have had the other sign.

    Exact up to 16 differences, above that by seeded draws.
    """
    sizes = sorted(abs(d) for d in _some(differences))
    seen = abs(math.fsum(differences)) - ROUNDING * sum(sizes)
    if len(sizes) <= MOST_FLIPPED:
        sums = np.array(sizes[:1])  # its sign is kept: the other half mirrors this one
        for size in sizes[1:]:
            sums = np.concatenate([sums + size, sums - size])
        return float((abs(sums) >= seen).mean())
    generator = np.random.default_rng(0)
    sums = np.zeros(DRAWS)
    for size in sizes:
        sums += np.where(generator.integers(0, 2, DRAWS), size, -size)
    return _drawn_p(int((abs(sums) >= seen).sum()))


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Whether two scores order the same things alike: Kendall's τ-b, from −1 to 1.

    None where there is no order to speak of: fewer than two pairs, or one side all tied.
    """
    signs_a, signs_b = _order(a), _order(b)
    if len(a) != len(b):
        raise ValueError(f"a rank correlation is of pairs, got {len(a)} and {len(b)} values")
    untied = int((signs_a**2).sum()) * int((signs_b**2).sum())
    return int((signs_a * signs_b).sum()) / math.sqrt(untied) if untied else None


def rank_correlation_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p of `rank_correlation` if any order of `b` were as likely.

    Exact up to 8 pairs, ties or not, above that by seeded draws.
    """
    if rank_correlation(a, b) is None:
        return None
    seen = abs(int((_order(a) * _order(b)).sum())) // 2  # each pair stands in it twice
    signs, ranks = _order(sorted(a)), np.sort(_ranks(b))

    def at_least_as_ordered(orders: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Compare |τ| but for its denominator, which no reordering changes."""
        total = np.zeros(len(orders), np.int64)
        for i, j in combinations(range(len(ranks)), 2):
            total += signs[i, j] * np.sign(orders[:, i] - orders[:, j])
        return abs(total) >= seen

    if len(ranks) <= MOST_PERMUTED:
        return float(at_least_as_ordered(np.array(list(permutations(ranks)))).mean())
    orders = np.random.default_rng(0).permuted(np.tile(ranks, (DRAWS, 1)), axis=1)
    return _drawn_p(int(at_least_as_ordered(np.asfortranarray(orders)).sum()))


# ---------------------------------------------------------------- a table's arms


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Adjust the p of a table's arms for their number; an arm without p is not counted."""
    known = [(p, place) for place, p in enumerate(ps) if p is not None]
    adjusted: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, place) in enumerate(sorted(known)):
        if not 0 <= p <= 1:
            raise ValueError(f"a p must lie between 0 and 1, got {p}")
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = largest
    return adjusted


def verdict(
    result: Paired,
    corrected_p: float | None,
    region: float,
    alpha: float = 0.05,
    higher_is_better: bool = True,
) -> Verdict | None:
    """What a table may say of an arm; None where one seed says nothing.

    An arm whose interval lies inside ± `region` is equivalent, though its difference be
    significant: what is too small to matter is no improvement.
    """
    if not region >= 0:
        raise ValueError(f"the region of equivalence must be 0 or more, got {region}")
    if result.low is None or result.high is None:
        return None
    # Strictly inside, so that a region of 0 calls not even identical runs equivalent.
    if -region < result.low and result.high < region:
        return "equivalent"
    if corrected_p is None or corrected_p > alpha:
        return "undecided"
    return "better" if (result.mean > 0) == higher_is_better else "worse"


def proportion_interval(hits: int, of: int, level: float = 0.95) -> Interval:
    """Clopper and Pearson's exact interval of a proportion; of nothing, anything is plausible."""
    if not 0 <= hits <= of:
        raise ValueError(f"hits must lie between 0 and the number tried, got {hits} of {of}")
    upper = _upper(level)
    from scipy.special import betaincinv

    return Interval(
        float(betaincinv(hits, of - hits + 1, 1 - upper)) if hits else 0.0,
        float(betaincinv(hits + 1, of - hits, upper)) if hits < of else 1.0,
    )


# ---------------------------------------------------------------- shared


def _finite(values: Sequence[float]) -> list[float]:
    numbers = [float(value) for value in values]
    for place, number in enumerate(numbers):
        if not math.isfinite(number):
            raise ValueError(
                f"statistics are of finite numbers, got {number} at place {place}; "
                "leave out the runs that diverged and count them"
            )
    return numbers


def _some(values: Sequence[float]) -> list[float]:
    numbers = _finite(values)
    if not numbers:
        raise ValueError("a mean is of at least one number, got none")
    return numbers


def _upper(level: float) -> float:
    """The quantile at the upper end of a two-sided interval."""
    if not 0 < level < 1:
        raise ValueError(f"a level must lie between 0 and 1, got {level}; 95% is 0.95")
    return (1 + level) / 2


def _student(mean: float, sd: float, n: int, level: float) -> Interval:
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, _upper(level))) * sd / math.sqrt(n)
    return Interval(mean - half, mean + half)


def _drawn_p(at_least: int) -> float:
    """The seen order is one of the possible ones: no number of draws makes p zero."""
    return (at_least + 1) / (DRAWS + 1)


def _order(values: Sequence[float]) -> NDArray[np.int64]:
    """Of each two values which is the larger: (n, n) of −1, 0 and 1."""
    ranks = _ranks(values)
    signs: NDArray[np.int64] = np.sign(ranks[:, None] - ranks[None, :])
    return signs


def _ranks(values: Sequence[float]) -> NDArray[np.int64]:
    """Each value's place among the different ones."""
    return np.unique(np.array(_finite(values)), return_inverse=True)[1].astype(np.int64)
