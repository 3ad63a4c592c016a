"""Statistics of tables: against scipy, against loops, as laws, and by simulation."""

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ascl_sweep.analysis.stats import (
    DRAWS,
    Interval,
    interval_of_mean,
    mean_correlation,
    mean_sd,
    rank_correlation,
    rank_correlation_p,
)
from tests.paths import ROOT

SEED = 0
"""Seed of every simulation; if a bound fails, use more draws, not another seed."""


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


# ---------------------------------------------------------------- means and differences


def test_an_interval_holds_its_ends_and_nothing_beyond() -> None:
    interval = Interval(-1, 2)
    assert -1 in interval and 0.5 in interval and 2 in interval
    assert -1.001 not in interval and 2.001 not in interval and math.nan not in interval


def test_the_deviation_is_that_of_a_sample() -> None:
    assert mean_sd([1, 2, 6]) == (3, pytest.approx(math.sqrt((4 + 1 + 9) / 2)))


def test_one_value_has_a_mean_but_no_deviation_interval_or_p() -> None:
    assert mean_sd([3.5]) == (3.5, None)
    assert interval_of_mean([3.5]) is None


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ValueError, match="the mean needs at least one number, got none"):
        mean_sd([])
    assert interval_of_mean([]) is None


@pytest.mark.parametrize(
    "function",
    [
        mean_sd,
        interval_of_mean,
        lambda values: rank_correlation(values, [1.0] * len(values)),
        lambda values: rank_correlation([1.0] * len(values), values),
        lambda values: rank_correlation_p([1.0] * len(values), values),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("n", [1, 3, 12])
def test_what_diverged_is_never_averaged(
    function: Callable[[Sequence[float]], object], bad: float, n: int
) -> None:
    sentence = f"finite numbers, got {bad} at index {n - 1}; exclude diverged runs"
    with pytest.raises(ValueError, match=sentence):
        function([0.5] * (n - 1) + [bad])


def test_differences_equal_but_for_rounding_are_equal() -> None:
    d = [0.3 - 0.2, 0.2 - 0.1, 0.8 - 0.7]
    assert len(set(d)) == 3
    assert mean_sd(d)[1] == 0
    assert mean_sd([90.0, 90.0, 90.0001])[1] == pytest.approx(0.0001 / math.sqrt(3))


# ---------------------------------------------------------------- tests without a distribution


def test_no_number_of_draws_makes_p_zero() -> None:
    assert rank_correlation_p(range(20), range(20)) == 1 / (DRAWS + 1)


PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=15)


@given(PAIRS)
def test_rank_correlation_is_of_ranks_alone(pairs: list[tuple[int, int]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    tau = rank_correlation(a, b)
    assert rank_correlation([math.exp(x) for x in a], b) == tau == rank_correlation(b, a)
    assert (tau is None) == (len(set(a)) < 2 or len(set(b)) < 2)
    if tau is not None:
        assert rank_correlation(a, [-y for y in b]) == -tau
        assert rank_correlation(a, a) == 1


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_p_of_few_ranks_is_scipys_exact_one(n: int, seed: int) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, n))
    expected = stats.kendalltau(a, b, method="exact").pvalue
    assert rank_correlation_p(list(a), list(b)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1, 1, 2, 3, 4], [1, 2, 2, 3, 4]),
        ([1, 1, 1, 2, 3], [5, 4, 4, 1, 1]),
        ([1, 1, 2], [3, 3, 1]),
    ],
)
def test_the_p_of_tied_ranks_is_that_of_all_orders_in_a_loop(a: list[int], b: list[int]) -> None:
    seen = abs(stats.kendalltau(a, b).statistic)
    taus = [abs(stats.kendalltau(a, order).statistic) for order in permutations(b)]
    expected = sum(tau >= seen - 1e-12 for tau in taus) / len(taus)
    assert rank_correlation_p(a, b) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n", [9, 12, 25])
def test_the_p_of_many_ranks_is_drawn_close_to_the_exact_one(n: int) -> None:
    a, noise = np.random.default_rng(SEED).normal(size=(2, n))
    b = 0.4 * a + noise
    exact = stats.kendalltau(a, b, method="exact").pvalue
    error = math.sqrt(exact * (1 - exact) / DRAWS)
    assert rank_correlation_p(list(a), list(b)) == pytest.approx(exact, abs=4 * error)
    assert rank_correlation_p(list(a), list(b)) == rank_correlation_p(list(a[::-1]), list(b[::-1]))


def test_ranks_are_of_pairs() -> None:
    for function in (rank_correlation, rank_correlation_p):
        with pytest.raises(ValueError, match="needs pairs, got 3 and 2 values"):
            function([1, 2, 3], [1, 2])


@given(st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=2, max_size=5))
def test_the_mean_correlation_is_mean_covariance_over_mean_variance(rows: list[list[int]]) -> None:
    matrix = np.cov(np.array(rows, dtype=float))
    variance = np.diag(matrix).mean()
    found = mean_correlation(np.array(rows, dtype=float))
    if variance == 0:
        assert found is None
        return
    pairs = matrix[~np.eye(len(rows), dtype=bool)]
    assert found == pytest.approx(pairs.mean() / variance)


# ---------------------------------------------------------------- what it loads


def test_no_statistic_loads_what_is_slow() -> None:
    code = (
        "import sys; from ascl_sweep.analysis import stats as s\n"
        "assert 'scipy' not in sys.modules, 'loaded before it is used'\n"
        "s.interval_of_mean([1, 2]); s.rank_correlation_p([1, 2], [2, 1])\n"
        "slow = {'torch', 'ray', 'pandas'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
