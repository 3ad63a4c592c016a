"""Ranks over datasets and the probability of improvement, against published and own examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import friedmanchisquare

from ascl_sweep.analysis.comparison import DATASET, Arm, Options
from ascl_sweep.analysis.datasets import (
    DatasetRanks,
    RankTest,
    critical_difference,
    group_ranks,
    probability_of_improvement,
    rank_systems,
    rank_test,
)
from ascl_sweep.analysis.looks import compare_arms
from ascl_sweep.contracts import RunState, Scalar
from ascl_sweep.spec.metrics import find_metric

PROBE, LOSS = find_metric("probe_top1"), find_metric("loss")
NAMES = ("cifar10", "cifar100", "stl10", "tiny_imagenet")
MOCO = {"method.name": "moco"}

# Demšar (2006), table 6: AUC of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 datasets. The 13th
# row prints 0.975 twice and ranks the two systems 2 and 3, hence 0.9751.
DEMSAR = (
    (0.763, 0.768, 0.771, 0.798),
    (0.599, 0.591, 0.590, 0.569),
    (0.954, 0.971, 0.968, 0.967),
    (0.628, 0.661, 0.654, 0.657),
    (0.882, 0.888, 0.886, 0.898),
    (0.936, 0.931, 0.916, 0.931),
    (0.661, 0.668, 0.609, 0.685),
    (0.583, 0.583, 0.563, 0.625),
    (0.775, 0.838, 0.866, 0.875),
    (1.000, 1.000, 1.000, 1.000),
    (0.940, 0.962, 0.965, 0.962),
    (0.619, 0.666, 0.614, 0.669),
    (0.972, 0.981, 0.9751, 0.975),
    (0.957, 0.978, 0.946, 0.970),
)


def an_arm(
    system: str, dataset: str, scores: Mapping[int, float], values: Mapping[str, Scalar]
) -> Arm:
    config = {"method.name": system, DATASET: dataset, **values}
    return Arm(
        label=f"{system}, {dataset}",
        values=config,
        config=config,
        idle=(),
        scores=scores,
        planned=3,
        mean=None,
        sd=None,
        interval=None,
        states={},
        epochs=0,
        device_hours=0,
        run_ids=(),
    )


def a_table(scores: Mapping[str, Sequence[Sequence[float]]], **values: Scalar) -> list[Arm]:
    """Arms of systems with the scores of each seed on each dataset."""
    arms = [
        an_arm(system, NAMES[i], dict(enumerate(row)), values)
        for system, rows in scores.items()
        for i, row in enumerate(rows)
    ]
    return compare_arms(arms, MOCO, PROBE, Options())[0]


def ranked(arms: Sequence[Arm]) -> DatasetRanks:
    found = rank_systems(arms, PROBE)
    assert found is not None
    return found


FOUR = {
    "moco": [[80.0, 81.0, 82.0]] * 4,
    "byol": [[83.0, 84.0, 85.0]] * 4,
    "simclr": [[70.0, 71.0, 72.0]] * 4,
}

# ---------------------------------------------------------------- ranks


def test_demsars_example() -> None:
    """CD = 1.25 with q = 2.569; mean ranks 3.143, 2.000, 2.893 and 1.964; χ² = 9.28."""
    from scipy.stats import rankdata

    ranks = np.array([rankdata([-score for score in row]) for row in DEMSAR]).T
    means = ranks.mean(axis=1)
    assert means.tolist() == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    test = rank_test(ranks.tolist())
    assert test is not None
    assert test.critical_difference == pytest.approx(1.25, abs=0.005)
    # Demšar's 9.28 does not correct for ties; the correction makes it larger.
    assert 12 * 14 / 20 * ((means**2).sum() - 4 * 25 / 4) == pytest.approx(9.28, abs=0.01)
    assert test.statistic == pytest.approx(friedmanchisquare(*np.array(DEMSAR).T).statistic)
    assert test.statistic > 9.28 and test.p < 0.05
    # 3.143 − 1.964 < 1.25: Demšar finds differences at 10% only, so at 5% there is one group.
    assert group_ranks(sorted(means), test) == ((0, 3),)


@pytest.mark.parametrize(
    ("systems", "q"),
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (7, 2.949), (10, 3.164)],
)
def test_critical_values_are_those_of_demsars_table(systems: int, q: float) -> None:
    found = critical_difference(systems, 6)
    assert found / np.sqrt(systems * (systems + 1) / 36) == pytest.approx(q, abs=1.1e-3)


def test_the_best_system_has_rank_one() -> None:
    found = ranked(a_table(FOUR))
    assert [(s.label, s.mean_rank) for s in found.systems] == [
        ("BYOL", 1.0),
        ("MoCo", 2.0),
        ("SimCLR", 3.0),
    ]
    assert found.datasets == ("CIFAR-10", "CIFAR-100", "STL-10", "Tiny ImageNet")
    assert found.test is not None and found.test.statistic == pytest.approx(8)


def test_a_metric_that_is_better_when_lower_reverses_the_ranks() -> None:
    found = rank_systems(a_table(FOUR), LOSS)
    assert found is not None
    assert [system.label for system in found.systems] == ["SimCLR", "MoCo", "BYOL"]
    improvement = found.systems[0].improvement
    assert improvement is not None and improvement.probability == 1


@pytest.mark.parametrize(("datasets", "tested"), [(2, False), (3, True), (4, True)])
def test_two_datasets_give_ranks_without_a_test(datasets: int, tested: bool) -> None:
    found = ranked(a_table({name: rows[:datasets] for name, rows in FOUR.items()}))
    assert (found.test is not None) == tested
    assert bool(found.groups) == tested


def test_one_dataset_or_one_system_has_no_ranks() -> None:
    assert rank_systems(a_table({name: rows[:1] for name, rows in FOUR.items()}), PROBE) is None
    assert rank_systems(a_table({"moco": FOUR["moco"]}), PROBE) is None
    assert rank_systems([], PROBE) is None


def test_reference_arms_are_not_ranked() -> None:
    found = ranked(a_table({"supervised": [[99.0] * 3] * 4, **FOUR}))
    assert "Supervised" not in [system.label for system in found.systems]
    assert found.systems[0].mean_rank == 1


def test_a_system_without_a_score_on_a_dataset_is_excluded_by_name() -> None:
    found = ranked(a_table({**FOUR, "simclr": [[70.0], [71.0], [], [72.0]]}))
    assert found.excluded == ("SimCLR",)
    assert len(found.systems) == 2 and found.test is None


def test_a_dataset_without_scores_is_not_counted() -> None:
    found = ranked(a_table({name: [*rows[:3], []] for name, rows in FOUR.items()}))
    assert len(found.datasets) == 3 and found.excluded == ()


def test_systems_are_ranked_on_their_common_seeds() -> None:
    # BYOL is better on both common seeds; its third seed, which MoCo lacks, is a hard one.
    rows = {"moco": [[80.0, 80.0]] * 4, "byol": [[81.0, 81.0, 60.0]] * 4}
    assert ranked(a_table(rows)).systems[0].label == "BYOL"


def test_a_key_that_depends_on_the_dataset_does_not_split_a_system() -> None:
    arms = [
        replace(arm, values={**arm.values, "epochs": 100 + NAMES.index(str(arm.config[DATASET]))})
        for arm in a_table(FOUR)
    ]
    assert len(ranked(arms).systems) == 3


def test_without_a_significant_friedman_test_all_systems_are_one_group() -> None:
    assert group_ranks([1.0, 2.0, 3.0], RankTest(1.0, 0.2, 0.5)) == ((0, 2),)


@given(st.lists(st.floats(1, 8), min_size=2, max_size=8), st.floats(0.1, 8))
def test_groups_join_exactly_the_systems_closer_than_the_critical_difference(
    ranks: list[float], difference: float
) -> None:
    ranks = sorted(ranks)
    groups = group_ranks(ranks, RankTest(9.0, 0.01, difference))
    for a, b in product(range(len(ranks)), repeat=2):
        if a < b:
            joined = any(first <= a and b <= last for first, last in groups)
            assert joined == (ranks[b] - ranks[a] < difference)
    assert not any(x != y and x[0] <= y[0] and y[1] <= x[1] for x in groups for y in groups)


# ---------------------------------------------------------------- probability of improvement

scores = st.lists(st.integers(0, 10).map(float), min_size=1, max_size=5)


@given(st.lists(st.tuples(scores, scores), min_size=1, max_size=4))
def test_the_probability_is_the_share_of_won_pairs(
    pairs: list[tuple[list[float], list[float]]],
) -> None:
    expected = [
        sum((x > y) + 0.5 * (x == y) for x in a for y in b) / len(a) / len(b) for a, b in pairs
    ]
    probability, interval = probability_of_improvement(pairs, draws=200)
    assert probability == pytest.approx(sum(expected) / len(expected))
    assert interval is None or 0 <= interval.low < interval.high <= 1
    assert probability_of_improvement([(a[::-1], b) for a, b in pairs], draws=200) == (
        probability,
        interval,
    ), "the order of the seeds does not matter"
    other, _ = probability_of_improvement([(b, a) for a, b in pairs], draws=200)
    assert other == pytest.approx(1 - probability)


def test_the_bootstrap_interval_is_that_of_scipy() -> None:
    from scipy.stats import bootstrap

    generator = np.random.default_rng(0)
    a, b = generator.normal(0.5, 1, 12), generator.normal(0, 1, 12)

    def wins(x: np.ndarray, y: np.ndarray) -> float:
        return float((x[:, None] > y[None, :]).mean())

    theirs = bootstrap(
        (a, b), wins, n_resamples=4000, method="percentile", vectorized=False, rng=generator
    ).confidence_interval
    _, ours = probability_of_improvement([(a.tolist(), b.tolist())], draws=4000)
    assert ours is not None
    assert [ours.low, ours.high] == pytest.approx([theirs.low, theirs.high], abs=0.02)


def test_each_system_is_compared_with_its_baseline() -> None:
    found = {system.label: system.improvement for system in ranked(a_table(FOUR)).systems}
    byol, simclr = found["BYOL"], found["SimCLR"]
    assert byol is not None and simclr is not None and found["MoCo"] is None
    assert (byol.baseline, byol.probability) == ("MoCo", 1.0)
    assert simclr.probability == 0.0


def test_a_diverged_seed_counts_as_a_loss() -> None:
    arms = [
        replace(arm, unscored={9: RunState.DIVERGED})
        if arm.config["method.name"] == "byol"
        else arm
        for arm in a_table({name: [row[:3] for row in rows] for name, rows in FOUR.items()})
    ]
    system = ranked(arms).systems[0]
    assert system.lost_seeds == 4
    assert system.improvement is not None
    assert system.improvement.probability == pytest.approx(0.75)
