"""Systems compared over several datasets: mean ranks and probability of improvement.

Demšar (2006), "Statistical comparisons of classifiers over multiple data sets", and Agarwal et al.
(2021, arXiv:2108.13264), "Deep reinforcement learning at the edge of the statistical precipice".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.comparison import DATASET, Arm
from ascl_sweep.analysis.inference import ALPHA
from ascl_sweep.analysis.stats import LEVEL, Interval
from ascl_sweep.contracts import Scalar
from ascl_sweep.spec.metrics import Metric

FEWEST_DATASETS = 3
"""With fewer datasets there are ranks but no test."""
FEWEST_SYSTEMS = 3
"""The Friedman test needs as many systems."""
DRAWS = 2000


@dataclass(frozen=True)
class Improvement:
    """Probability that a run of a system scores higher than a run of its baseline."""

    baseline: str
    probability: float
    """Mean over datasets of P(a > b) over pairs of seeds; a tie counts one half."""
    interval: Interval | None
    """Percentile interval of a stratified bootstrap over seeds; None if all draws are equal."""


@dataclass(frozen=True)
class RankedSystem:
    """One system with its rank on each dataset; rank 1 is the best."""

    label: str
    mean_rank: float
    ranks: tuple[float, ...]
    """In the order of the datasets; ties share their mean rank."""
    lost_seeds: int
    """Runs that diverged, failed or have no finite score, which its means exclude."""
    improvement: Improvement | None
    """None for a baseline and for a system without a baseline on every dataset."""


@dataclass(frozen=True)
class RankTest:
    """Friedman test over datasets, and the Nemenyi critical difference of mean ranks."""

    statistic: float
    p: float
    critical_difference: float


@dataclass(frozen=True)
class DatasetRanks:
    """The systems of a table over all its datasets."""

    datasets: tuple[str, ...]
    systems: tuple[RankedSystem, ...]
    """Best mean rank first."""
    test: RankTest | None
    """None with fewer than three datasets or systems."""
    groups: tuple[tuple[int, int], ...]
    """First and last system of each group whose mean ranks do not differ significantly."""
    excluded: tuple[str, ...]
    """Systems without a score on one of the datasets."""


def split_by_dataset(arms: Iterable[Arm]) -> dict[Scalar, list[Arm]]:
    """Group arms by their dataset, without reference arms."""
    found: dict[Scalar, list[Arm]] = {}
    for arm in arms:
        if not arm.is_reference:
            found.setdefault(arm.config.get(DATASET), []).append(arm)
    return found


def distinguishing_keys(arms: Sequence[Arm]) -> list[str]:
    """Return the keys that tell the arms of one dataset apart.

    Keys are taken in the order of the arms' values (the sweep's axes first) as long as each tells
    more arms apart. A key that follows from the keys before it is not among them, such as a
    hyperparameter that every method sets to its own value.
    """
    keys: list[str] = []
    distinct = 1
    for key in dict.fromkeys(key for arm in arms for key in arm.values if key != DATASET):
        apart = len({_values(arm, [*keys, key]) for arm in arms})
        if apart > distinct:
            keys, distinct = [*keys, key], apart
    return keys


def _values(arm: Arm, keys: Iterable[str]) -> tuple[tuple[str, Scalar], ...]:
    return tuple((key, arm.values[key]) for key in keys if key in arm.values)


# ---------------------------------------------------------------- ranks


def rank_systems(arms: Sequence[Arm], metric: Metric) -> DatasetRanks | None:
    """Rank the systems of a table on each dataset and average their ranks.

    A system is ranked by its mean over the seeds that all ranked systems have on that dataset, or
    over its own seeds if there is no common seed. Datasets without any score are not counted.

    Args:
        arms: The arms of the table with their comparisons, which name the baselines.
        metric: The metric that scores the arms.

    Returns:
        The ranks; None with fewer than two datasets or fewer than two systems.
    """
    parts = {
        dataset: found
        for dataset, found in split_by_dataset(arms).items()
        if any(arm.scores for arm in found)
    }
    keys = list(dict.fromkeys(key for part in parts.values() for key in distinguishing_keys(part)))
    systems: dict[tuple[tuple[str, Scalar], ...], dict[Scalar, Arm]] = {}
    for dataset, part in parts.items():
        for arm in part:
            systems.setdefault(_values(arm, keys), {})[dataset] = arm
    names = [
        labels.system_arm(next(iter(own.values())).config, [key for key, _ in values])
        for values, own in systems.items()
    ]
    whole: list[tuple[str, list[Arm]]] = []
    excluded: list[str] = []
    for name, own in zip(names, systems.values(), strict=True):
        if all(dataset in own and own[dataset].scores for dataset in parts):
            whole.append((name, [own[dataset] for dataset in parts]))
        else:
            excluded.append(name)
    if len(parts) < 2 or len(whole) < 2:
        return None
    ranks = np.column_stack(
        [_ranks([own[i] for _, own in whole], metric) for i in range(len(parts))]
    )
    named = {arm.label: name for name, own in whole for arm in own}
    by_label = {arm.label: arm for part in parts.values() for arm in part}
    ranked = [
        RankedSystem(
            label=name,
            mean_rank=float(row.mean()),
            ranks=tuple(row.tolist()),
            lost_seeds=sum(arm.lost_seeds for arm in own),
            improvement=_improvement(own, by_label, named, metric),
        )
        for (name, own), row in zip(whole, ranks, strict=True)
    ]
    ranked.sort(key=lambda system: system.mean_rank)
    test = rank_test([system.ranks for system in ranked])
    return DatasetRanks(
        datasets=tuple(labels.value_label(DATASET, dataset) for dataset in parts),
        systems=tuple(ranked),
        test=test,
        groups=group_ranks([system.mean_rank for system in ranked], test) if test else (),
        excluded=tuple(excluded),
    )


def _ranks(arms: Sequence[Arm], metric: Metric) -> list[float]:
    """Return the rank of each arm on one dataset, 1 for the best."""
    from scipy.stats import rankdata

    common = set.intersection(*(set(arm.scores) for arm in arms))
    means = [fmean(arm.scores[seed] for seed in sorted(common or arm.scores)) for arm in arms]
    sign = -1 if metric.higher_is_better else 1
    # Rounded, because equal accuracies may differ by a floating-point error.
    ranks: list[float] = rankdata([round(sign * mean, 9) for mean in means]).tolist()
    return ranks


def rank_test(ranks: Sequence[Sequence[float]]) -> RankTest | None:
    """Test whether systems differ.

    Args:
        ranks: The ranks of each system, one for each dataset.

    Returns:
        The Friedman test, and the critical difference of Demšar's section 3.2.2; None with fewer
        than three datasets or systems.
    """
    systems, datasets = len(ranks), len(ranks[0])
    if datasets < FEWEST_DATASETS or systems < FEWEST_SYSTEMS:
        return None
    from scipy.stats import friedmanchisquare

    difference = critical_difference(systems, datasets)
    if all(len(set(column)) == 1 for column in zip(*ranks, strict=True)):
        return RankTest(0.0, 1.0, difference)  # all systems are tied on every dataset
    found = friedmanchisquare(*ranks)
    return RankTest(float(found.statistic), float(found.pvalue), difference)


def critical_difference(systems: int, datasets: int) -> float:
    """Return the Nemenyi critical difference of mean ranks, q·√(k(k + 1) / 6N), at 5%."""
    return _nemenyi_quantile(systems) * math.sqrt(systems * (systems + 1) / (6 * datasets))


@cache
def _nemenyi_quantile(systems: int) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - ALPHA, systems, math.inf)) / math.sqrt(2)


def group_ranks(mean_ranks: Sequence[float], test: RankTest) -> tuple[tuple[int, int], ...]:
    """Return the largest groups of systems that do not differ significantly.

    Args:
        mean_ranks: Mean ranks in ascending order.
        test: Two systems differ if the Friedman test is significant and their mean ranks are at
            least the critical difference apart.

    Returns:
        The first and last index of each group of two or more systems.
    """
    last = len(mean_ranks) - 1
    if test.p > ALPHA:
        return ((0, last),)
    groups: list[tuple[int, int]] = []
    for first, rank in enumerate(mean_ranks):
        near = [i for i, r in enumerate(mean_ranks) if r - rank < test.critical_difference]
        end = max(near)
        if end > first and (not groups or end > groups[-1][1]):
            groups.append((first, end))
    return tuple(groups)


# ---------------------------------------------------------------- probability of improvement


def _improvement(
    own: Sequence[Arm], by_label: Mapping[str, Arm], named: Mapping[str, str], metric: Metric
) -> Improvement | None:
    """Compare a system with its baseline on every dataset."""
    baselines = [by_label.get(arm.comparison.baseline) if arm.comparison else None for arm in own]
    pairs = [
        (_scores(arm, metric), _scores(baseline, metric))
        for arm, baseline in zip(own, baselines, strict=True)
        if baseline is not None and baseline.scores
    ]
    if len(pairs) < len(own):
        return None
    names = dict.fromkeys(named.get(b.label, b.label) for b in baselines if b is not None)
    probability, interval = probability_of_improvement(pairs)
    return Improvement(labels.join_names(names), probability, interval)


def _scores(arm: Arm, metric: Metric) -> list[float]:
    """Return the scores so that larger is better; a lost seed is worse than any score."""
    sign = 1 if metric.higher_is_better else -1
    return [*(sign * score for score in arm.scores.values()), *[-math.inf] * arm.lost_seeds]


def probability_of_improvement(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], seed: int = 0, draws: int = DRAWS
) -> tuple[float, Interval | None]:
    """Return the probability that a run of one system scores higher than a run of another.

    Args:
        pairs: The scores of both systems on each dataset.
        seed: Seed of the bootstrap.
        draws: Number of bootstrap samples.

    Returns:
        The mean over datasets of P(a > b), and a percentile interval. The bootstrap is stratified:
        it draws runs of each system on each dataset. The interval is None if all draws are equal:
        a point would look like certainty where one system wins on each of a few seeds.
    """
    generator = np.random.default_rng(seed)
    estimates, drawn = [], []
    for a, b in pairs:
        x, y = np.sort(a)[:, None], np.sort(b)[None, :]
        wins = (x > y) + 0.5 * (x == y)
        estimates.append(float(wins.mean()))
        # A bootstrap sample counts how often each run is drawn.
        times_a = generator.multinomial(len(a), np.full(len(a), 1 / len(a)), draws)
        times_b = generator.multinomial(len(b), np.full(len(b), 1 / len(b)), draws)
        drawn.append(((times_a @ wins) * times_b).sum(axis=1) / wins.size)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.mean(drawn, axis=0), [tail, 1 - tail])
    interval = Interval(float(low), float(high)) if low < high else None
    return fmean(estimates), interval
