"""Statistics of tables: against scipy, against loops, as laws, and by simulation."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from ascl_sweep.stats import (
    DRAWS,
    Interval,
    Paired,
    bca,
    holm,
    interval_of_mean,
    mean_sd,
    paired,
    proportion_interval,
    rank_correlation,
    rank_correlation_p,
    sign_flip_p,
    smallest_p,
    verdict,
)

ROOT = Path(__file__).parent.parent.parent
SEED = 0
"""Of every simulation here; a bound too tight for it asks for more draws, not for another seed."""

STEPS = st.integers(-50, 50)
"""Scores come in steps of one image, so that ties are common."""
DIFFERENCES = st.lists(STEPS.map(lambda k: k / 10), min_size=2, max_size=12)
PS = st.lists(st.none() | st.floats(0, 1), max_size=8)


def drawn(n: int, shift: float = 0.0) -> list[float]:
    return [float(x) for x in np.random.default_rng(n).normal(shift, 1, n)]


def skewed(n: int) -> list[float]:
    return [float(x) for x in np.random.default_rng(n).lognormal(0, 1, n)]


def ends(interval: Interval | Paired | None) -> tuple[float, float]:
    assert interval is not None and interval.low is not None and interval.high is not None
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
    assert paired([3.5]) == Paired(1, 3.5, None, None, None, wins=1)


@pytest.mark.parametrize("function", [mean_sd, paired, sign_flip_p])
def test_nothing_has_no_mean(function: Callable[[Sequence[float]], object]) -> None:
    with pytest.raises(ValueError, match="a mean is of at least one number, got none"):
        function([])
    assert interval_of_mean([]) is None and bca([]) is None


@pytest.mark.parametrize(
    "function",
    [
        mean_sd,
        interval_of_mean,
        paired,
        bca,
        sign_flip_p,
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
    sentence = f"finite numbers, got {bad} at place {n - 1}; leave out the runs that diverged"
    with pytest.raises(ValueError, match=sentence):
        function([0.5] * (n - 1) + [bad])


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_pairing_is_the_paired_t_test_of_scipy(n: int, level: float) -> None:
    base, arm = np.array(drawn(n)), np.array(drawn(n + 1, shift=0.5)[:n])
    result, reference = paired(list(arm - base), level), stats.ttest_rel(arm, base)
    assert result.mean == pytest.approx((arm - base).mean())
    assert result.p == pytest.approx(reference.pvalue, rel=1e-9)
    assert ends(result) == pytest.approx(tuple(reference.confidence_interval(level)))
    assert (result.n, result.wins) == (n, int((arm > base).sum()))
    assert isinstance(result.wins, int), "numpy's integers are no JSON"


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
def test_the_interval_of_a_mean_is_students(n: int) -> None:
    values = drawn(n)
    expected = stats.t.interval(0.9, n - 1, np.mean(values), stats.sem(values))
    assert ends(interval_of_mean(values, 0.9)) == pytest.approx(expected)
    assert ends(paired(values)) == ends(interval_of_mean(values))


@given(DIFFERENCES)
def test_p_is_below_five_percent_just_where_the_interval_leaves_out_zero(d: list[float]) -> None:
    result = paired(d)
    assert result.p is not None
    assume(mean_sd(d)[1] != 0 and abs(result.p - 0.05) > 1e-9)
    assert (result.p < 0.05) == (0 not in Interval(*ends(result)))


@given(DIFFERENCES)
def test_swapping_the_arms_mirrors_the_difference_and_keeps_p(d: list[float]) -> None:
    there, back = paired(d), paired([-x for x in d])
    low, high = ends(there)
    assert (back.mean, back.low, back.high, back.p) == (-there.mean, -high, -low, there.p)
    assert there.wins + back.wins == sum(x != 0 for x in d) <= there.n
    assert sign_flip_p(d) == sign_flip_p([-x for x in d])


@given(DIFFERENCES, st.sampled_from([0.01, 1 / 3, 100]))
def test_percent_or_share_is_the_same_claim(d: list[float], unit: float) -> None:
    one, other = paired(d), paired([unit * x for x in d])
    assert other.p == pytest.approx(one.p, rel=1e-6) and other.wins == one.wins
    assert (other.mean, *ends(other)) == pytest.approx(
        [unit * x for x in (one.mean, *ends(one))], abs=1e-9 * unit
    )
    assert sign_flip_p([unit * x for x in d]) == sign_flip_p(d)


@given(DIFFERENCES, st.randoms())
@settings(max_examples=50)
def test_the_order_of_the_seeds_does_not_matter(d: list[float], random: Random) -> None:
    d = d * 2  # from 4 to 24: enumerated and drawn, with and without bootstrap
    shuffled = list(d)
    random.shuffle(shuffled)
    assert paired(shuffled) == paired(d)
    assert sign_flip_p(shuffled) == sign_flip_p(d)
    assert bca(shuffled, draws=100) == bca(d, draws=100)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_equal_differences_prove_no_more_than_their_signs(n: int) -> None:
    result = paired([0.5] * n)
    assert ends(result) == (0.5, 0.5) and result.p == smallest_p(n) == sign_flip_p([0.5] * n)


def test_differences_equal_but_for_rounding_are_equal() -> None:
    d = [0.3 - 0.2, 0.2 - 0.1, 0.8 - 0.7]
    assert len(set(d)) == 3
    assert paired(d).p == 0.25 and mean_sd(d)[1] == 0
    low, high = ends(bca(d * 4))
    assert low == high == pytest.approx(0.1)
    assert mean_sd([90.0, 90.0, 90.0001])[1] == pytest.approx(0.0001 / math.sqrt(3))


def test_identical_runs_show_nothing() -> None:
    assert paired([0.0] * 5) == Paired(5, 0, 0, 0, p=1, wins=0)
    assert sign_flip_p([0.0] * 5) == 1


@pytest.mark.parametrize("level", [0.0, 1.0, 95, math.nan])
def test_a_level_is_a_share(level: float) -> None:
    for function in (paired, interval_of_mean, bca):
        with pytest.raises(ValueError, match=f"between 0 and 1, got {level}; 95% is 0.95"):
            function(drawn(10), level)
    with pytest.raises(ValueError, match=f"got {level}; 95% is 0.95"):
        proportion_interval(1, 2, level)


# ---------------------------------------------------------------- bootstrap


@pytest.mark.parametrize("n", [10, 30])
def test_the_bootstrap_is_scipys(n: int) -> None:
    values, draws = skewed(n), 50_000
    expected, plain = (
        stats.bootstrap(
            (values,), np.mean, n_resamples=draws, method=method, batch=10_000, rng=SEED + 1
        ).confidence_interval
        for method in ("BCa", "percentile")
    )
    near = 0.05 * stats.sem(values)  # some three standard errors of the draws
    assert ends(bca(values, draws=draws)) == pytest.approx(tuple(expected), abs=near)
    assert abs(plain.high - expected.high) > 2 * near, "else it might be the percentile's"


def test_the_bootstrap_leans_to_the_long_tail() -> None:
    values = skewed(20)
    mean, _ = mean_sd(values)
    low, high = ends(bca(values))
    assert high - mean > 1.3 * (mean - low)
    near = 0.1 * stats.sem(values)  # the draws differ
    assert ends(bca([-x for x in values])) == pytest.approx((-high, -low), abs=near)


def test_the_bootstrap_is_the_same_each_time_and_of_its_seed() -> None:
    assert bca(skewed(12)) == bca(skewed(12)) != bca(skewed(12), seed=1)


def test_the_bootstrap_knows_ties_from_rounding() -> None:
    tenths = [-3, -1, -1, 0, 0, 0, 1, 1, 2, 3, 4]
    expected = [end / 10 for end in ends(bca(tenths))]
    assert ends(bca([k / 10 for k in tenths])) == pytest.approx(expected)


def test_the_bootstrap_of_mirrored_steps_leans_nowhere() -> None:
    low, high = ends(bca([-1, 1] + [0] * 10))  # a third of the draws equal the mean
    assert low == -high < 0


def test_the_bootstrap_is_not_for_few_seeds() -> None:
    assert bca(drawn(9)) is None
    low, high = ends(bca(drawn(10)))
    assert low < high


# ---------------------------------------------------------------- tests without a distribution


def test_few_seeds_cannot_show_a_small_p() -> None:
    assert [smallest_p(n) for n in (1, 2, 3, 5, 6)] == [None, 0.5, 0.25, 0.0625, 0.03125]


@given(st.lists(st.floats(0.1, 1), min_size=2, max_size=12))
def test_the_smallest_p_is_reached_where_all_seeds_agree_and_never_undercut(d: list[float]) -> None:
    assert sign_flip_p(d) == smallest_p(len(d))
    flipped = [-d[0], *d[1:]]
    assert sign_flip_p(flipped) > sign_flip_p(d)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 11])
def test_sign_flips_are_scipys(n: int) -> None:
    d = drawn(n, shift=0.4)
    expected = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    assert sign_flip_p(d) == pytest.approx(expected, rel=1e-12)


def flips_counted(steps: Sequence[int]) -> float:
    """The sign-flip p of whole numbers, exact at any length."""
    sums = Counter({0: 1})
    for step in steps:
        sums = sum(
            (Counter({s + sign * step: c for s, c in sums.items()}) for sign in (-1, 1)), Counter()
        )
    extreme = sum(count for s, count in sums.items() if abs(s) >= abs(sum(steps)))
    return extreme / 2 ** len(steps)


@given(st.lists(STEPS, min_size=1, max_size=16))
def test_sign_flips_count_ties_despite_rounding(steps: list[int]) -> None:
    assert sign_flip_p([k / 10 for k in steps]) == flips_counted(steps)


@pytest.mark.parametrize("n", [16, 17, 30])
def test_many_sign_flips_are_drawn_close_to_the_exact_p(n: int) -> None:
    steps = [int(k) for k in np.random.default_rng(n).integers(-20, 35, n)]
    exact = flips_counted(steps)
    error = math.sqrt(exact * (1 - exact) / DRAWS) if n > 16 else 0
    assert 0.001 < exact < 0.5
    assert sign_flip_p([k / 10 for k in steps]) == pytest.approx(exact, abs=4 * error + 1e-15)


def test_no_number_of_draws_makes_p_zero() -> None:
    assert sign_flip_p([1.0] * 60) == 1 / (DRAWS + 1)
    assert rank_correlation_p(range(60), range(60)) == 1 / (DRAWS + 1)


PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=15)


@given(PAIRS)
def test_rank_correlation_is_scipys_with_ties(pairs: list[tuple[int, int]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    tau = rank_correlation(a, b)
    if len(set(a)) < 2 or len(set(b)) < 2:
        assert tau is None and rank_correlation_p(a, b) is None
    else:
        assert tau == pytest.approx(stats.kendalltau(a, b).statistic, abs=1e-12)


@given(PAIRS)
def test_rank_correlation_is_of_ranks_alone(pairs: list[tuple[int, int]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    tau = rank_correlation(a, b)
    assert rank_correlation([math.exp(x) for x in a], b) == tau == rank_correlation(b, a)
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
        with pytest.raises(ValueError, match="of pairs, got 3 and 2 values"):
            function([1, 2, 3], [1, 2])


# ---------------------------------------------------------------- a table's arms


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.04, None, 0.03]) == pytest.approx([0.06, None, 0.06])
    assert holm([]) == [] and holm([None]) == [None] and holm([0.2]) == [0.2]


@given(PS)
def test_holm_rejects_just_what_his_procedure_in_words_does(ps: list[float | None]) -> None:
    """Compare the smallest p with α/m, the next with α/(m − 1), …; stop at the first failure."""
    alpha = 0.05
    known = sorted(p for p in ps if p is not None)
    cuts = [alpha / (len(known) - rank) for rank in range(len(known))]
    assume(all(abs(p - cut) > 1e-9 for p in known for cut in cuts))
    rejected = 0
    while rejected < len(known) and known[rejected] <= cuts[rejected]:
        rejected += 1
    assert sum(p is not None and p <= alpha for p in holm(ps)) == rejected


@given(PS)
def test_holm_raises_p_keeps_its_order_and_stays_below_one(ps: list[float | None]) -> None:
    adjusted = holm(ps)
    assert [p is None for p in adjusted] == [p is None for p in ps]
    known = sorted(
        (p, q) for p, q in zip(ps, adjusted, strict=True) if p is not None and q is not None
    )
    assert all(p <= q <= 1 for p, q in known)
    assert [q for _, q in known] == sorted(q for _, q in known)


@given(PS, st.randoms())
def test_holm_does_not_care_for_the_order_of_arms(ps: list[float | None], random: Random) -> None:
    order = list(range(len(ps)))
    random.shuffle(order)
    adjusted = holm(ps)
    assert holm([ps[k] for k in order]) == [adjusted[k] for k in order]


@given(PS)
def test_arms_without_p_do_not_count(ps: list[float | None]) -> None:
    assert [q for q in holm(ps) if q is not None] == holm([p for p in ps if p is not None])


@pytest.mark.parametrize("p", [math.nan, -0.1, 1.1])
def test_holm_takes_probabilities(p: float) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 1, got {p}"):
        holm([0.5, p, None])


@pytest.mark.parametrize(
    ("low", "high", "p", "region", "expected"),
    [
        (0.2, 0.8, 0.01, 0.1, "better"),
        (-0.8, -0.2, 0.01, 0.1, "worse"),
        (0.2, 0.8, 0.05, 0.1, "better"),
        (0.2, 0.8, 0.051, 0.1, "undecided"),
        (-0.3, 0.8, 0.3, 0.1, "undecided"),
        (0.2, 0.8, None, 0.1, "undecided"),
        (0.2, 0.8, 0.01, 0.9, "equivalent"),
        (-0.8, -0.2, 0.01, 0.9, "equivalent"),
        (-0.05, 0.08, 0.6, 0.1, "equivalent"),
        (0.02, 0.1, 0.01, 0.1, "better"),
        (-0.1, 0.02, 0.6, 0.1, "undecided"),
        (0.0, 0.0, 1.0, 0.0, "undecided"),
        (0.0, 0.0, 1.0, 0.1, "equivalent"),
    ],
)
def test_the_verdict_of_an_arm(
    low: float, high: float, p: float | None, region: float, expected: str
) -> None:
    result = Paired(5, (low + high) / 2, low, high, p, wins=3)
    assert verdict(result, p, region) == expected


def test_the_verdict_is_of_the_corrected_p_and_the_given_alpha() -> None:
    result = paired([0.9, 1.0, 1.1])
    assert result.p is not None and result.p < 0.01
    assert verdict(result, 0.04, 0.1) == "better"
    assert verdict(result, 0.04, 0.1, alpha=0.01) == verdict(result, 0.06, 0.1) == "undecided"


@given(DIFFERENCES, st.sampled_from([0, 0.1, 1, 6]))
@settings(max_examples=300)
def test_the_verdict_is_mirrored_with_the_sign_or_the_metric(d: list[float], region: float) -> None:
    mirror = {"better": "worse", "worse": "better"}
    there, back = paired(d), paired([-x for x in d])
    said = verdict(there, there.p, region)
    assert said is not None
    assert verdict(back, back.p, region) == mirror.get(said, said)
    assert verdict(there, there.p, region, higher_is_better=False) == mirror.get(said, said)
    assert verdict(back, back.p, region, higher_is_better=False) == said


@given(DIFFERENCES)
def test_a_region_of_zero_calls_nothing_equivalent(d: list[float]) -> None:
    assert verdict(paired(d), paired(d).p, region=0) != "equivalent"


def test_two_seeds_with_the_same_step_are_no_verdict_but_many_are() -> None:
    assert verdict(paired([0.5] * 2), paired([0.5] * 2).p, region=0.1) == "undecided"
    assert verdict(paired([0.5] * 6), paired([0.5] * 6).p, region=0.1) == "better"


def test_one_seed_says_nothing() -> None:
    assert verdict(paired([5.0]), None, region=10) is None


@pytest.mark.parametrize("region", [-0.1, math.nan])
def test_a_region_has_a_size(region: float) -> None:
    with pytest.raises(ValueError, match=f"must be 0 or more, got {region}"):
        verdict(paired([1, 2]), 0.5, region)


@pytest.mark.parametrize(("hits", "of"), [(0, 1), (0, 20), (1, 2), (3, 20), (20, 20), (75, 300)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_a_proportion_is_the_exact_one(hits: int, of: int, level: float) -> None:
    expected = stats.binomtest(hits, of).proportion_ci(level, method="exact")
    assert ends(proportion_interval(hits, of, level)) == pytest.approx(tuple(expected))
    low, high = ends(proportion_interval(of - hits, of, level))
    assert (1 - high, 1 - low) == pytest.approx(tuple(expected)), "misses mirror hits"


def test_of_nothing_any_proportion_is_plausible() -> None:
    assert proportion_interval(0, 0) == Interval(0, 1)


@pytest.mark.parametrize(("hits", "of"), [(-1, 3), (4, 3)])
def test_hits_are_among_the_tried(hits: int, of: int) -> None:
    with pytest.raises(ValueError, match=f"got {hits} of {of}"):
        proportion_interval(hits, of)


# ---------------------------------------------------------------- what the numbers promise


@pytest.mark.parametrize("n", [3, 5, 10])
def test_ninety_five_intervals_of_a_hundred_hold_the_truth(n: int) -> None:
    truth, draws = 0.7, 10_000
    samples = np.random.default_rng(SEED).normal(truth, 2, (draws, n)).tolist()
    held = sum(truth in Interval(*ends(paired(d))) for d in samples) / draws
    assert held == pytest.approx(0.95, abs=0.01)  # rule 4; 0.0022 is the standard error


def test_holm_keeps_the_errors_of_a_table_below_five_percent() -> None:
    """Four arms that change nothing, against one base: how many tables claim that one does."""
    tables, arms, n = 2_000, 4, 5
    base, *others = np.random.default_rng(SEED).normal(size=(1 + arms, tables, n))
    corrected = uncorrected = 0
    for table in range(tables):
        ps = [paired((arm[table] - base[table]).tolist()).p for arm in others]
        uncorrected += any(p is not None and p <= 0.05 for p in ps)
        corrected += any(p is not None and p <= 0.05 for p in holm(ps))
    bound = 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)
    assert corrected / tables <= bound < uncorrected / tables
    assert corrected / tables > 0.02, "it is not bought by never claiming anything"


def test_pairing_triples_the_power_of_five_seeds() -> None:
    """Rule 3: at correlation 0.8, an effect of one seed-sd is found with 0.76, not with 0.24."""
    draws, n = 4_000, 5
    generator = np.random.default_rng(SEED)
    seeds = math.sqrt(0.8) * generator.normal(size=(draws, n))
    base, arm = seeds + math.sqrt(0.2) * generator.normal(size=(2, draws, n))
    arm = arm + 1
    found = sum(p <= 0.05 for d in arm - base if (p := paired(d.tolist()).p) is not None) / draws
    welch = stats.ttest_ind(arm, base, axis=1, equal_var=False).pvalue
    assert found == pytest.approx(0.76, abs=0.03)
    assert float((welch <= 0.05).mean()) == pytest.approx(0.24, abs=0.03)


# ---------------------------------------------------------------- what it loads


def test_no_statistic_loads_what_is_slow() -> None:
    code = (
        "import sys; from ascl_sweep import stats as s\n"
        "assert 'scipy' not in sys.modules, 'loaded before it is used'\n"
        "s.paired([1, 2]); s.interval_of_mean([1, 2]); s.bca([*range(12)]); s.sign_flip_p([1, 2])\n"
        "s.rank_correlation_p([1, 2], [2, 1]); s.proportion_interval(1, 2); s.holm([0.5])\n"
        "assert 'scipy.special' in sys.modules\n"
        "slow = {'torch', 'ray', 'pandas', 'scipy.stats'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
