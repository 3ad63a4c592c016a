"""Checks of the assumption that all arms of a table vary about equally between seeds.

Comparisons borrow their variances from each other. That keeps the error rate except where the
common baseline, or a single run, varies much more than the rest; a remark then warns.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ascl_sweep.analysis.comparison import DATASET, Arm
from ascl_sweep.analysis.labels import value_label
from ascl_sweep.contracts import Scalar

LEVEL = 0.02
"""Probability of each warning in a table whose arms vary equally."""
FEWEST_COMPARISONS = 4
"""With fewer comparisons, the baseline's variance cannot be distinguished from that of the arms."""
FEWEST_ARMS = 4
FEWEST_SEEDS = 3
# Differences of a float's rounding are not a spread.
NO_SPREAD = 1e-9


@dataclass(frozen=True)
class Outlier:
    """A run far from what its arm and its seed predict."""

    arm: int
    """Index of the arm."""
    seed: int
    sds: float
    """Its absolute residual in pooled standard deviations of the other arms."""


def check_assumptions(arms: Sequence[Arm]) -> Iterator[str]:
    """Yield a warning for each dataset and assumption that visibly fails.

    Args:
        arms: The arms of one table, compared. Reference arms do not count.

    Yields:
        Sentences for the table's remarks.
    """
    datasets: dict[Scalar, list[Arm]] = {}
    for arm in arms:
        if not arm.is_reference and arm.scores:
            datasets.setdefault(arm.config.get(DATASET), []).append(arm)
    for dataset, own in datasets.items():
        where = f" on {value_label(DATASET, dataset)}" if len(datasets) > 1 else ""
        found, seeds = _complete(own)
        bases = [i for i, arm in enumerate(found) if arm.is_baseline]
        scores = np.array([[arm.scores[seed] for seed in seeds] for arm in found])
        if len(bases) == 1:
            p = baseline_excess(scores, bases[0])
            if p is not None and p < LEVEL:
                yield (
                    f"Assumption: the baseline {found[bases[0]].label} varies more between seeds "
                    f"than the other arms{where} (p = {p:.1g}), so its comparisons share an error "
                    "that the intervals understate. Give the baseline more seeds."
                )
        outlier = find_outlier(scores, seeds)
        if outlier is not None:
            yield (
                f"Assumption: seed {outlier.seed} of {found[outlier.arm].label}{where} is "
                f"{outlier.sds:.0f} pooled standard deviations from what its arm and seed predict. "
                "Check this run; the intervals assume about equal spreads."
            )


def _complete(arms: Sequence[Arm]) -> tuple[list[Arm], list[int]]:
    """Return the arms with at least the usual number of seeds, and the seeds that they share."""
    counts = Counter(arm.n for arm in arms)
    usual = max(counts, key=lambda n: (counts[n], n))
    found = [arm for arm in arms if arm.n >= usual]
    return found, sorted(set.intersection(*(set(arm.scores) for arm in found)))


def baseline_excess(scores: NDArray[np.float64], baseline: int) -> float | None:
    """Return the p of the hypothesis that the baseline does not vary more than the other arms.

    The differences dᵢⱼ of m arms from the baseline share its noise. With equal spreads, the mean
    square between seeds is m + 1 times the residual mean square of an arm + seed model of dᵢⱼ, and
    their ratio over m + 1 has an F distribution.

    Args:
        scores: Scores by arm and seed.
        baseline: Index of the baseline.

    Returns:
        p; None with too few arms or seeds, or without any spread.
    """
    m, n = len(scores) - 1, scores.shape[-1] if scores.ndim == 2 else 0
    if m < FEWEST_COMPARISONS or n < FEWEST_SEEDS:
        return None
    from scipy.special import fdtrc

    differences = np.delete(scores, baseline, axis=0) - scores[baseline]
    residuals = _residuals(differences)
    error = float((residuals**2).sum()) / ((m - 1) * (n - 1))
    between = m * float(differences.mean(axis=0).var(ddof=1))
    if error <= NO_SPREAD**2:
        return None
    return float(fdtrc(n - 1, (m - 1) * (n - 1), between / error / (m + 1)))


def find_outlier(scores: NDArray[np.float64], seeds: Sequence[int]) -> Outlier | None:
    """Return the run that is least like the others, if it is an outlier.

    The residual of a run is its deviation from its arm's mean and from the seed's effect in the
    other arms; its standard deviation is that of the other arms (externally studentized), with
    Bonferroni's correction over all runs.

    Args:
        scores: Scores by arm and seed.
        seeds: The seeds of the columns.

    Returns:
        The outlier; None if there is none, or with too few arms or seeds.
    """
    m, n = len(scores), len(seeds)
    if m < FEWEST_ARMS or n < FEWEST_SEEDS:
        return None
    from scipy.special import stdtrit

    df = (m - 2) * (n - 1)
    limit = -float(stdtrit(df, LEVEL / (2 * m * n)))
    worst: Outlier | None = None
    for i in range(m):
        others = np.delete(scores, i, axis=0)
        pooled = math.sqrt(float((_residuals(others) ** 2).sum()) / df)
        if pooled <= NO_SPREAD:
            continue
        away = scores[i] - others.mean(axis=0)
        away = away - away.mean()
        sds = np.abs(away) / (pooled * math.sqrt((1 + 1 / (m - 1)) * (1 - 1 / n)))
        j = int(sds.argmax())
        if sds[j] > limit and (worst is None or sds[j] > worst.sds):
            worst = Outlier(i, seeds[j], float(sds[j]))
    return worst


def _residuals(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the residuals of the model score = arm + seed."""
    by_arm, by_seed = scores.mean(axis=1, keepdims=True), scores.mean(axis=0, keepdims=True)
    found: NDArray[np.float64] = scores - by_arm - by_seed + scores.mean()
    return found
