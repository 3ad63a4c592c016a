"""Inference over the comparisons of one table: moderated paired t-tests with one correction.

Each comparison is a set of differences from a baseline, paired by seed. Three seeds give two
degrees of freedom, too few to decide anything, so a comparison borrows information on the variance
from the other comparisons of its pool (the same table and dataset). `benchmarks/statistics.py`
simulates the error rates, the coverage and the power that led to the constants.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Literal

import numpy as np

from ascl_sweep.analysis.stats import Interval, mean_correlation, mean_sd

Verdict = Literal["better", "worse", "equivalent", "undecided"]
Differences = Mapping[int, float]
"""Differences from the baseline by seed."""

ALPHA = 0.05
LATER_SHARE = 0.5
"""Error of a table whose seeds were changed after results were known, relative to the table before.
"""
FEWEST = 3
"""With fewer paired seeds there is no verdict."""
MOST_BORROWED = 6.0
"""Largest number of degrees of freedom that a comparison borrows."""
SMALLEST_CORRELATION = 0.5
"""Smallest correlation assumed between comparisons, which share their baseline's noise."""
NOISE_EXPONENT = 0.5
"""Exponent by which a comparison that varies more than its pool borrows less."""
POWER = 0.8
SIMULATED = 2000
"""Comparisons that `smallest_effect` simulates."""


@dataclass(frozen=True)
class Estimate:
    """A mean paired difference and its moderated standard error."""

    n: int
    """Number of paired seeds."""
    mean: float
    wins: int
    """Number of positive differences."""
    se: float | None = None
    """Moderated standard error; None if neither the comparison nor its pool has a variance."""
    df: float | None = None
    """Degrees of freedom of the standard error: own and borrowed."""

    @property
    def p(self) -> float | None:
        """Two-sided p of a single test."""
        if self.se is None or self.df is None:
            return None
        return 2 * _upper_tail(abs(self.mean) / self.se, self.df)

    def interval(self, alpha: float) -> Interval | None:
        """Return the two-sided interval with coverage 1 − `alpha`."""
        if self.se is None or self.df is None:
            return None
        half = _quantile(alpha / 2, self.df) * self.se
        return Interval(self.mean - half, self.mean + half)


@dataclass(frozen=True)
class Inference:
    """The decision on a comparison; p-value, interval and verdict use the same correction."""

    estimate: Estimate
    family: int
    """Number of comparisons that p-value and interval are corrected for."""
    alpha: float
    """Family-wise error that this look at the data may spend."""
    p: float | None
    """Two-sided p, corrected over the family and for the error that this look may spend, so that
    the comparison is significant if it is below `ALPHA`."""
    interval: Interval | None
    """Interval with simultaneous coverage 1 − alpha over the family."""
    verdict: Verdict | None
    """None with fewer than three paired seeds."""
    seeds_needed: int | None = None
    """Further seeds that would decide an undecided comparison if its estimates stay as they are."""
    blocked: bool = False
    """Whether it is undecided only because of diverged or failed seeds."""
    waiting: bool = False
    """Whether its verdict has to wait, because planned runs that it depends on have not ended."""

    def wait(self, missing: int) -> "Inference":
        """Return the same inference without a decision, while planned runs have not ended.

        Args:
            missing: Number of planned seeds that it does not have yet.
        """
        if self.verdict in (None, "undecided"):
            return replace(self, waiting=True)
        # A verdict before all planned runs have ended would be one more look at the data.
        needed = missing or None
        return replace(self, verdict="undecided", seeds_needed=needed, waiting=True)

    @property
    def mirrored(self) -> "Inference":
        """The same comparison with its sides exchanged, except for the wins."""
        mirror: dict[Verdict | None, Verdict] = {"better": "worse", "worse": "better"}
        ends = self.interval
        return replace(
            self,
            estimate=replace(self.estimate, mean=-self.estimate.mean),
            interval=None if ends is None else Interval(-ends.high, -ends.low),
            verdict=mirror.get(self.verdict, self.verdict),
        )


@dataclass(frozen=True)
class Chance:
    """Numbers of seeds at which a comparison may be decided."""

    counts: range
    alpha: float
    """Family-wise error that the test may spend there."""


def estimate_pool(pool: Sequence[Differences]) -> list[Estimate | None]:
    """Estimate each comparison of a pool; None for a comparison without paired seeds.

    The variance of comparison i is moderated (Smyth 2004, doi:10.2202/1544-6115.1027):

        s̃² = max(s², (d₀·s₀² + (n − 1)·s²) / (d₀ + n − 1)),  df = n − 1 + d₀·min(1, s₀²/s²)^½

    where s² is its own variance and s₀² the mean variance of the other comparisons. The k others
    share the baseline's noise with it and with each other: with the correlation r they lend
    d₀ = (n − 1)·k·(1 − r²/k) / (1 + (k − 1)·r²) degrees of freedom, at most `MOST_BORROWED`.
    """
    for differences in pool:
        for seed, value in differences.items():
            if not math.isfinite(value):
                raise ValueError(f"differences must be finite, got {value} for seed {seed}")
    variances = [_variance(differences) for differences in pool]
    correlation = _shared_correlation(pool)
    found: list[Estimate | None] = []
    for i, differences in enumerate(pool):
        values = list(differences.values())
        if not values:
            found.append(None)
            continue
        others = [
            (len(pool[j]) - 1, variance)
            for j, variance in enumerate(variances)
            if j != i and variance is not None
        ]
        se, df = moderate(len(values), variances[i], others, correlation)
        wins = sum(value > 0 for value in values)
        found.append(Estimate(len(values), fmean(values), wins, se, df))
    return found


def _variance(differences: Differences) -> float | None:
    sd = mean_sd(list(differences.values()))[1] if differences else None
    return None if sd is None else sd * sd


def _shared_correlation(pool: Sequence[Differences]) -> float:
    """Estimate the correlation between comparisons that is due to their common baseline.

    1, the most careful value, if fewer than two seeds are common to all comparisons.
    """
    known = [differences for differences in pool if len(differences) > 1]
    seeds = sorted(set.intersection(*(set(d) for d in known))) if known else []
    if len(known) < 2 or len(seeds) < 2:
        return 1.0
    values = np.array([[differences[seed] for seed in seeds] for differences in known])
    found = mean_correlation(values)
    return 1.0 if found is None else min(1.0, max(SMALLEST_CORRELATION, found))


def moderate(
    n: int, own: float | None, others: Sequence[tuple[int, float]], correlation: float
) -> tuple[float | None, float | None]:
    """Return the moderated standard error of a mean of `n` differences, and its df."""
    freedom, k = sum(f for f, _ in others), len(others)
    if not others:
        return (None, None) if not own else (math.sqrt(own / n), n - 1.0)
    prior = sum(f * variance for f, variance in others) / freedom
    borrowed = _borrowed(freedom, k, correlation)
    if own is None:
        return (math.sqrt(prior / n), borrowed) if prior and borrowed else (None, None)
    if prior == 0 or borrowed == 0:
        return (math.sqrt(own / n), n - 1.0) if own else (None, None)
    moderated = (borrowed * prior + (n - 1) * own) / (borrowed + n - 1)
    trust = min(1.0, prior / own) ** NOISE_EXPONENT if own else 1.0
    return math.sqrt(max(own, moderated) / n), n - 1 + borrowed * trust


def _borrowed(freedom: int, k: int, correlation: float) -> float:
    """Return the degrees of freedom that `k` other comparisons lend, given the sum of theirs."""
    shared = correlation**2
    return min(MOST_BORROWED, freedom * (1 - shared / k) / (1 + (k - 1) * shared))


# ---------------------------------------------------------------- decisions


def decide(
    estimate: Estimate,
    family: int,
    region: float,
    *,
    alpha: float = ALPHA,
    higher_is_better: bool = True,
    arm_lost_seeds: bool = False,
    baseline_lost_seeds: bool = False,
    chances: Sequence[Chance] | None = None,
) -> Inference:
    """Decide a comparison.

    Args:
        estimate: Its estimate.
        family: Number of planned comparisons of the table, finished or not.
        region: Half-width of the equivalence region; 0 for no equivalence test.
        alpha: Family-wise error to spend.
        higher_is_better: Whether a positive difference is an improvement.
        arm_lost_seeds: Whether a seed of the arm diverged or failed: the arm cannot be better.
        baseline_lost_seeds: Whether a seed of the baseline did: the arm cannot be worse.
        chances: When further seeds may decide it; by default when the plan is changed.

    Returns:
        The decision. "equivalent" (two one-sided tests, corrected like the rest) goes before
        "better" and "worse": such a difference is real and too small to matter.
    """
    if not region >= 0:
        raise ValueError(f"the equivalence region must be 0 or more, got {region}")
    if family < 1:
        raise ValueError(f"a family must have at least 1 comparison, got {family}")
    single = single_alpha(alpha, family)
    p = estimate.p if estimate.n >= FEWEST else None
    corrected = None if p is None else min(1.0, _correct(p, family) * (ALPHA / alpha))
    interval = None if p is None else estimate.interval(single)
    verdict: Verdict | None = None
    blocked = False
    if estimate.n >= FEWEST:
        verdict = _verdict(estimate, single, region, higher_is_better)
        blocked = (verdict in ("better", "equivalent") and arm_lost_seeds) or (
            verdict in ("worse", "equivalent") and baseline_lost_seeds
        )
        verdict = "undecided" if blocked else verdict
    lost = arm_lost_seeds or baseline_lost_seeds
    needed = None
    if verdict in (None, "undecided") and not lost:
        later = later_chances(estimate.n, alpha) if chances is None else chances
        needed = seeds_needed(estimate, family, region, later)
    return Inference(estimate, family, alpha, corrected, interval, verdict, needed, blocked)


def single_alpha(alpha: float, family: int) -> float:
    """Return the level of one of `family` tests with a family-wise error of `alpha` (Šidák)."""
    return -math.expm1(math.log1p(-alpha) / family)


def _correct(p: float, family: int) -> float:
    """Return the Šidák-corrected p; single-step, so that intervals agree with it."""
    return 1.0 if p >= 1 else -math.expm1(family * math.log1p(-p))


def _verdict(estimate: Estimate, single: float, region: float, higher_is_better: bool) -> Verdict:
    narrow, wide = estimate.interval(2 * single), estimate.interval(single)
    if narrow is None or wide is None:
        return "undecided"  # identical differences prove nothing
    if -region < narrow.low and narrow.high < region:
        return "equivalent"
    if 0 in wide:
        return "undecided"
    return "better" if (estimate.mean > 0) == higher_is_better else "worse"


MOST_SEEDS = 1000


def later_chances(n: int, alpha: float) -> tuple[Chance, ...]:
    """Return the chances of more than `n` seeds after a plan whose family-wise error is `alpha`.

    These seeds change the plan after results are known, so the test may spend less.
    """
    return (Chance(range(n + 1, MOST_SEEDS + 1), alpha * LATER_SHARE),)


def seeds_needed(
    estimate: Estimate, family: int, region: float, chances: Sequence[Chance]
) -> int | None:
    """Return how many further seeds would decide a comparison if its estimates stay the same.

    None if the estimate has no standard error, or if none of the chances suffices.
    """
    if estimate.se is None or estimate.df is None:
        return None
    n, sd, own_df = estimate.n, estimate.se * math.sqrt(estimate.n), estimate.df
    away, inside = abs(estimate.mean), region - abs(estimate.mean)

    def decides(count: int, single: float) -> bool:
        se, df = sd / math.sqrt(count), own_df + count - n
        return away > _quantile(single / 2, df) * se or inside > _quantile(single, df) * se

    for chance in chances:
        single = single_alpha(chance.alpha, family)
        counts = range(max(chance.counts.start, FEWEST, n + 1), chance.counts.stop)
        place = bisect_left(counts, True, key=lambda count: decides(count, single))
        if place < len(counts):
            return counts[place] - n
    return None


@cache
def smallest_effect(looks: tuple[int, ...], comparisons: int, alpha: float = ALPHA) -> float | None:
    """Return the difference that a table detects with 80% power, in SD of the paired difference.

    Simulated with equal spreads; exact for one comparison at one number of seeds.

    Args:
        looks: Numbers of seeds at which comparisons are decided; one number if all at once.
        comparisons: Number of planned comparisons.
        alpha: Family-wise error of all looks.
    """
    if looks[0] < FEWEST:
        return None
    singles = [single_alpha(part, comparisons) for part in spend_alpha(looks, alpha)]
    if comparisons == 1 and len(looks) == 1:
        return _smallest_effect_alone(looks[0], singles[0])
    rng, enough = np.random.default_rng(0), []
    for _ in range(-(-SIMULATED // comparisons)):
        base, *arms = rng.normal(scale=math.sqrt(0.5), size=(1 + comparisons, looks[-1]))
        differences = [(arm - base).tolist() for arm in arms]
        needed = []
        for seeds, single in zip(looks, singles, strict=True):
            pool = [dict(enumerate(values[:seeds])) for values in differences]
            needed.append([_needed_effects(found, single) for found in estimate_pool(pool)])
        # One of the looks suffices.
        enough += [np.min(own, axis=0) for own in zip(*needed, strict=True)]
    return float(np.quantile(enough, POWER))


def _needed_effects(found: Estimate | None, single: float) -> tuple[float, float]:
    """Return the true effects with which an interval would start, or end, at 0.

    Both have the same distribution, so they are two draws for one.
    """
    assert found is not None and found.se is not None and found.df is not None
    half = _quantile(single / 2, found.df) * found.se
    return half - found.mean, half + found.mean


def _smallest_effect_alone(seeds: int, alpha: float) -> float:
    """Return the difference that a single paired t-test detects, from the noncentral t."""
    from scipy.special import nctdtrinc

    df = seeds - 1
    # The noncentrality at which a t exceeds the cut with probability POWER. A bisection of nctdtr
    # fails, because it is NaN at some noncentralities far above the cut (scipy 1.17).
    return float(nctdtrinc(df, 1 - POWER, _quantile(alpha / 2, df))) / math.sqrt(seeds)


# ---------------------------------------------------------------- planned looks


def spend_alpha(looks: Sequence[int], alpha: float = ALPHA) -> tuple[float, ...]:
    """Split `alpha` over planned looks at increasing numbers of seeds.

    Power-family spending, α·(n/N)^1.5 (Kim and DeMets 1987, doi:10.1093/biomet/74.1.149). The
    parts add up to `alpha`, so the error over all looks is at most `alpha`.
    """
    spent = [alpha * (seeds / looks[-1]) ** 1.5 for seeds in looks]
    return tuple(now - before for before, now in zip([0.0, *spent], spent, strict=False))


def _quantile(tail: float, df: float) -> float:
    """Return the t value with this upper tail probability."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return -float(stdtrit(df, tail))


def _upper_tail(t: float, df: float) -> float:
    from scipy.special import stdtr

    return float(stdtr(df, -t))
