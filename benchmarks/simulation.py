"""Simulated tables, and the inference of `ascl_sweep.analysis` on many tables at once.

`tests/test_statistics.py` holds that every decision is that of the package.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from ascl_sweep.analysis.inference import (
    ALPHA,
    MOST_BORROWED,
    NOISE_EXPONENT,
    SMALLEST_CORRELATION,
    single_alpha,
    spend_alpha,
)

# Shapes: T = tables, A = arms (the baseline is the first), M = A − 1 comparisons, N = seeds.
Floats = NDArray[np.float64]
Spread = Callable[[np.random.Generator, int, int, int], Floats]
"""Draws the scores (T, A, N) of tables without effects, given T, A and N."""

# Standard deviations of the arms in the tables of docs/paper/laptop.md (n = 3 each), which
# exaggerate how much spreads differ.
STORED = (
    (4.85, 7.2, 6.93, 5.05, 1.67, 1.46, 3.85, 5.77, 0.84, 3.6, 1.5, 1.63, 1.34),
    (9.0, 2.66, 3.6, 2.41, 1.18),
    (2.69, 3.15, 1.48, 4.85, 4.95, 3.22, 1.5, 3.6),
    (2.86, 1.49, 1.91, 4.85, 3.55, 2.8, 3.6),
    (3.6, 1.7, 1.51, 2.84, 3.73, 0.24),
    (4.51, 1.02, 4.85, 4.7, 3.69, 3.55, 1.3, 3.93, 2.08, 3.6, 1.35, 3.24, 1.41, 0.33),
)
COLLAPSE, SHARE = 10.0, 0.1
"""A collapsed seed loses ten standard deviations; a tenth of the seeds collapses."""
ODD = 1
"""The arm that differs from the others."""


def equal(rng: np.random.Generator, tables: int, arms: int, seeds: int) -> Floats:
    return rng.normal(size=(tables, arms, seeds))


def noisy_arm(rng: np.random.Generator, tables: int, arms: int, seeds: int) -> Floats:
    scores = equal(rng, tables, arms, seeds)
    scores[:, ODD] *= 3
    return scores


def noisy_baseline(rng: np.random.Generator, tables: int, arms: int, seeds: int) -> Floats:
    scores = equal(rng, tables, arms, seeds)
    scores[:, 0] *= 3
    return scores


def stored(rng: np.random.Generator, tables: int, arms: int, seeds: int) -> Floats:
    """Each table has the spreads of one stored table, scaled to a mean variance of 1."""
    spreads = np.empty((tables, arms))
    chosen = rng.integers(len(STORED), size=tables)
    for number, given in enumerate(STORED):
        own, values = np.flatnonzero(chosen == number), np.array(given)
        if arms > len(values):
            spreads[own] = rng.choice(values, (len(own), arms))
        else:
            order = rng.random((len(own), len(values))).argsort(axis=1)
            spreads[own] = values[order[:, :arms]]
    spreads /= np.sqrt((spreads**2).mean(axis=1, keepdims=True))
    return equal(rng, tables, arms, seeds) * spreads[:, :, None]


def collapsing(rng: np.random.Generator, tables: int, arms: int, seeds: int) -> Floats:
    """One arm collapses at times; its true mean is moved back, so that there is no effect."""
    scores = equal(rng, tables, arms, seeds)
    collapsed = rng.random((tables, seeds)) < SHARE
    scores[:, ODD] += COLLAPSE * (SHARE - collapsed)
    return scores


def skewed(rng: np.random.Generator, tables: int, arms: int, seeds: int) -> Floats:
    """One arm has lognormal scores with the mean and the variance of the others."""
    scores = equal(rng, tables, arms, seeds)
    deviation = math.sqrt((math.e - 1) * math.e)
    scores[:, ODD] = (rng.lognormal(size=(tables, seeds)) - math.exp(0.5)) / deviation
    return scores


SPREADS: Mapping[str, Spread] = {
    "equal": equal,
    "one arm 3×": noisy_arm,
    "baseline 3×": noisy_baseline,
    "stored spreads": stored,
    "one arm collapses": collapsing,
    "one arm skewed": skewed,
}


def draw(
    kind: str,
    tables: int,
    comparisons: int,
    seeds: int,
    *,
    arm: int = ODD,
    effect: float = 0.0,
    correlation: float = 0.0,
) -> Floats:
    """Draw the differences (T, M, N) of tables from their baselines.

    Args:
        kind: Key of `SPREADS`.
        tables, comparisons, seeds: T, M and N.
        arm: The arm with an effect.
        effect: Its true difference, in standard deviations of a seed of an ordinary arm.
        correlation: Correlation of two ordinary arms over seeds, which pairing removes.
    """
    rng = np.random.default_rng(0)
    scores = math.sqrt(1 - correlation) * SPREADS[kind](rng, tables, 1 + comparisons, seeds)
    scores[:, arm] += effect
    return scores[:, 1:] - scores[:, :1]


# ---------------------------------------------------------------- inference


@dataclass(frozen=True)
class Formula:
    """The constants of the moderated test. Others than the package's show what they cost."""

    most_borrowed: float = MOST_BORROWED
    smallest_correlation: float = SMALLEST_CORRELATION
    noise_exponent: float = NOISE_EXPONENT
    floor: bool = True
    """Whether the variance is never below the comparison's own."""


OURS = Formula()


def p_values(differences: Floats, used: NDArray[np.int64] | int, formula: Formula = OURS) -> Floats:
    """Return the p (T, M) of each single comparison.

    Args:
        differences: (T, M, N), with two comparisons or more.
        used: Number of leading seeds of each comparison (T, M), or of all.
        formula: The constants of the test.
    """
    tables, m, seeds = differences.shape
    n = np.broadcast_to(np.asarray(used, dtype=np.float64), (tables, m))
    inside = np.arange(seeds) < n[:, :, None]
    mean = (differences * inside).sum(axis=2) / n
    residuals = (differences - mean[:, :, None]) * inside
    own = (residuals**2).sum(axis=2) / (n - 1)
    freedom = (n - 1).sum(axis=1, keepdims=True) - (n - 1)
    weighted = (n - 1) * own
    prior = (weighted.sum(axis=1, keepdims=True) - weighted) / freedom
    shared, k = _correlation(differences, n, formula)[:, None] ** 2, m - 1
    borrowed = freedom * (1 - shared / k) / (1 + (k - 1) * shared)
    borrowed = np.minimum(formula.most_borrowed, borrowed)
    moderated = (borrowed * prior + (n - 1) * own) / (borrowed + n - 1)
    variance = np.maximum(own, moderated) if formula.floor else moderated
    df = n - 1 + borrowed * np.minimum(1, prior / own) ** formula.noise_exponent
    found: Floats = 2 * stdtr(df, -np.abs(mean) / np.sqrt(variance / n))
    return found


def _correlation(differences: Floats, n: Floats, formula: Formula) -> Floats:
    """Return the correlation (T) of comparisons, over the seeds that all of them have."""
    m, found = differences.shape[1], np.empty(len(differences))
    common = n.min(axis=1)
    for count in np.unique(common):
        own = common == count
        values = differences[own, :, : int(count)]
        variance = values.var(axis=2, ddof=1).mean(axis=1)
        covariance = (m * values.mean(axis=1).var(axis=1, ddof=1) - variance) / (m - 1)
        found[own] = np.clip(covariance / variance, formula.smallest_correlation, 1)
    return found


def significant(
    differences: Floats, alpha: float = ALPHA, formula: Formula = OURS
) -> NDArray[np.bool_]:
    """Return which comparisons (T, M) are significant with all seeds."""
    p = p_values(differences, differences.shape[2], formula)
    found: NDArray[np.bool_] = p <= single_alpha(alpha, differences.shape[1])
    return found


def holm(differences: Floats) -> NDArray[np.bool_]:
    """Return which comparisons are significant by paired t-tests with Holm's correction."""
    _, m, n = differences.shape
    t = abs(differences.mean(axis=2)) / (differences.std(axis=2, ddof=1) / math.sqrt(n))
    p = 2 * stdtr(n - 1, -t)
    order = p.argsort(axis=1)
    steps = (m - np.arange(m)) * np.take_along_axis(p, order, axis=1)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.maximum.accumulate(steps, axis=1), axis=1)
    found: NDArray[np.bool_] = corrected <= ALPHA
    return found


@dataclass(frozen=True)
class Looks:
    """Sweeps after their last look."""

    decided: NDArray[np.int64]
    """Number of seeds (T, M) with which a comparison was decided; 0 if it was not."""
    spent: NDArray[np.int64]
    """Number of seeds (T, M) of each comparison."""


def follow_looks(
    differences: Floats, looks: Sequence[int], alphas: Sequence[float] | None = None
) -> Looks:
    """Decide the comparisons of many sweeps look by look.

    Args:
        differences: (T, M, N), N the number of seeds of the last look.
        looks: Numbers of seeds.
        alphas: Family-wise error of each look; by default the package's spending.
    """
    tables, m, _ = differences.shape
    decided, spent = np.zeros((tables, m), np.int64), np.zeros((tables, m), np.int64)
    for count, alpha in zip(looks, alphas or spend_alpha(looks), strict=True):
        is_open = decided == 0
        spent[is_open] = count
        now = p_values(differences, spent) <= single_alpha(alpha, m)
        decided[is_open & now] = count
    return Looks(decided, spent)
