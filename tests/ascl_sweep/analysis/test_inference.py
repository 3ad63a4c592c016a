"""Inference of a table: against scipy, as laws, and by simulation."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from ascl_sweep.analysis.inference import (
    ALPHA,
    LATER_SHARE,
    MOST_BORROWED,
    Estimate,
    Inference,
    decide,
    estimate_pool,
    later_chances,
    seeds_needed,
    single_alpha,
    smallest_effect,
    spend_alpha,
)

VALUES = st.integers(-50, 50).map(lambda k: k / 10)
"""Scores are multiples of one image, so ties are common."""
DIFFERENCES = st.lists(VALUES, max_size=8).map(lambda values: dict(enumerate(values)))
POOLS = st.lists(DIFFERENCES, min_size=1, max_size=6)
MIRROR = {"better": "worse", "worse": "better"}


def by_seed(values: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


def only(values: Sequence[float]) -> Estimate:
    (found,) = estimate_pool([by_seed(values)])
    assert found is not None
    return found


def decided(values: Sequence[float], family: int = 1, region: float = 0.0) -> Inference:
    return decide(only(values), family, region)


# ---------------------------------------------------------------- one comparison


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
def test_a_comparison_alone_is_the_paired_t_test_of_scipy(n: int) -> None:
    arm, base = np.random.default_rng(n).normal(size=(2, n))
    found, reference = only(arm - base), stats.ttest_rel(arm, base)
    assert found.p == pytest.approx(reference.pvalue, rel=1e-9)
    interval, expected = found.interval(0.05), reference.confidence_interval(0.95)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert (found.n, found.wins) == (n, int((arm > base).sum()))


def test_no_paired_seed_gives_no_estimate() -> None:
    assert estimate_pool([{}, by_seed([1, 2])])[0] is None


def test_one_seed_alone_has_no_interval_and_no_verdict() -> None:
    found = decided([0.5])
    assert (found.p, found.interval, found.verdict) == (None, None, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_diverged_values_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=f"must be finite, got {bad} for seed 1"):
        estimate_pool([by_seed([1, bad])])


@pytest.mark.parametrize("n", [3, 6])
@pytest.mark.parametrize("value", [0.0, 0.3])
def test_identical_differences_prove_nothing(n: int, value: float) -> None:
    found = decided([value] * n, region=0.5)
    assert (found.p, found.interval, found.verdict) == (None, None, "undecided")


# ---------------------------------------------------------------- pools


@given(POOLS)
def test_the_variance_is_that_of_the_formula(pool: list[dict[int, float]]) -> None:
    """The documented formula, written as loops."""
    seeds = [s for s in range(8) if all(s in d for d in pool if len(d) > 1)]
    known = [d for d in pool if len(d) > 1]
    correlation = 1.0
    if len(known) > 1 and len(seeds) > 1:
        rows = np.array([[d[s] for s in seeds] for d in known])
        covariance = np.cov(rows)
        off = covariance[~np.eye(len(known), dtype=bool)].mean()
        total = np.diag(covariance).mean()
        correlation = float(np.clip(off / total, 0.5, 1)) if total > 1e-12 else 1.0
    for i, (differences, found) in enumerate(zip(pool, estimate_pool(pool), strict=True)):
        if not differences:
            assert found is None
            continue
        assert found is not None
        n, values = len(differences), list(differences.values())
        own = float(np.var(values, ddof=1)) if n > 1 else 0.0
        own = own if own > 1e-12 else 0.0
        others = [d for j, d in enumerate(pool) if j != i and len(d) > 1]
        freedom = sum(len(d) - 1 for d in others)
        prior = sum(float(np.var(list(d.values()), ddof=1)) * (len(d) - 1) for d in others)
        prior = prior / freedom if freedom else 0.0
        if prior < 1e-12:
            assert found.df == (n - 1 if own else None)
            continue
        k, shared = len(others), correlation**2
        borrowed = min(6.0, freedom * (1 - shared / k) / (1 + (k - 1) * shared))
        if borrowed == 0:
            assert found.df == (n - 1 if own else None)
            continue
        moderated = (borrowed * prior + (n - 1) * own) / (borrowed + n - 1)
        trust = min(1.0, prior / own) ** 0.5 if own else 1.0
        assert found.se == pytest.approx(math.sqrt(max(own, moderated) / n))
        assert found.df == pytest.approx(n - 1 + borrowed * trust)


@given(POOLS, st.sampled_from([0.01, 1 / 3, 100]))
def test_percent_or_share_is_the_same_claim(pool: list[dict[int, float]], unit: float) -> None:
    scaled = [{s: unit * x for s, x in d.items()} for d in pool]
    for one, other in zip(estimate_pool(pool), estimate_pool(scaled), strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None and one.p is not None and other.p is not None:
            assert other.p == pytest.approx(one.p, rel=1e-6)


@given(POOLS, st.randoms())
def test_the_order_of_the_arms_does_not_matter(pool: list[dict[int, float]], random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(pool)))
    random.shuffle(order)
    found, shuffled = estimate_pool(pool), estimate_pool([pool[i] for i in order])
    for place, i in enumerate(order):
        one, other = found[i], shuffled[place]
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (other.n, other.mean, other.wins) == (one.n, one.mean, one.wins)
            assert other.se == pytest.approx(one.se) and other.df == pytest.approx(one.df)


@given(POOLS)
def test_a_standard_error_is_never_below_the_comparisons_own(pool: list[dict[int, float]]) -> None:
    for differences, found in zip(pool, estimate_pool(pool), strict=True):
        if found is not None and found.se is not None and len(differences) > 1:
            own = np.std(list(differences.values()), ddof=1) / math.sqrt(len(differences))
            assert found.se >= own - 1e-9


def test_borrowed_freedom_is_bounded() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=3)
    pool = [by_seed(rng.normal(size=3) - base) for _ in range(24)]
    for found in estimate_pool(pool):
        assert found is not None and found.df is not None
        assert found.df <= 2 + MOST_BORROWED


# ---------------------------------------------------------------- decisions


@given(
    st.lists(VALUES, min_size=3, max_size=8),
    st.integers(1, 30),
    st.sampled_from([0.0, 0.5, 5.0]),
    st.sampled_from([ALPHA, ALPHA / 2, 0.0082, 0.001, 0.0001]),
)
def test_interval_p_and_verdict_never_disagree(
    values: list[float], family: int, region: float, alpha: float
) -> None:
    """Whatever part of the error a look may spend, p is compared with 5%."""
    found = decide(only(values), family, region, alpha=alpha)
    assume(found.p is not None and abs(found.p - ALPHA) > 1e-9)
    assert found.p is not None and found.interval is not None
    excluded = 0 not in found.interval
    assert excluded == (found.p < ALPHA)
    if found.verdict in ("better", "worse"):
        assert excluded and (found.estimate.mean > 0) == (found.verdict == "better")
    if found.verdict == "undecided":
        assert not excluded
    if max(abs(found.interval.low), abs(found.interval.high)) < region:
        assert found.verdict == "equivalent"


@given(st.lists(VALUES, min_size=3, max_size=8), st.sampled_from([0.0, 0.1, 1.0, 6.0]))
def test_the_verdict_is_mirrored_with_the_sign_or_the_metric(
    values: list[float], region: float
) -> None:
    said = decided(values, region=region).verdict
    assert said is not None
    back = [-value for value in values]
    assert decided(back, region=region).verdict == MIRROR.get(said, said)
    other = decide(only(values), 1, region, higher_is_better=False)
    assert other.verdict == MIRROR.get(said, said)


@given(st.lists(VALUES, min_size=3, max_size=8), st.integers(1, 20))
def test_a_larger_family_never_decides_more(values: list[float], family: int) -> None:
    small, large = decided(values, family, 0.5), decided(values, family + 1, 0.5)
    if large.verdict != "undecided":
        assert small.verdict != "undecided"


@given(st.lists(VALUES, min_size=3, max_size=8), st.sampled_from([0.0, 2.0]))
def test_a_side_that_lost_a_seed_gains_nothing(values: list[float], region: float) -> None:
    """Divergence is evidence: the arm is not better, and over a diverged baseline not worse."""
    plain = decide(only(values), 1, region).verdict
    arm = decide(only(values), 1, region, arm_lost_seeds=True)
    base = decide(only(values), 1, region, baseline_lost_seeds=True)
    assert arm.verdict == ("worse" if plain == "worse" else "undecided")
    assert base.verdict == ("better" if plain == "better" else "undecided")
    assert arm.blocked == (arm.verdict != plain) and base.blocked == (base.verdict != plain)


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_seeds_have_no_verdict(n: int) -> None:
    rng = np.random.default_rng(0)
    pool = [by_seed(10 + rng.normal(size=n)), *(by_seed(rng.normal(size=3)) for _ in range(4))]
    found = estimate_pool(pool)[0]
    assert found is not None
    decision = decide(found, 5, 0.5)
    assert (decision.verdict, decision.p, decision.interval) == (None, None, None)
    assert decision.seeds_needed == 3 - n


def test_a_region_of_zero_calls_nothing_equivalent() -> None:
    assert decided([0.001, -0.001, 0.0005]).verdict == "undecided"


@pytest.mark.parametrize(("region", "family"), [(-0.1, 1), (math.nan, 1), (0.5, 0)])
def test_regions_and_families_have_a_size(region: float, family: int) -> None:
    with pytest.raises(ValueError, match=r"or more, got|at least 1"):
        decide(only([1, 2, 3]), family, region)


# ---------------------------------------------------------------- seeds needed


@given(st.lists(VALUES, min_size=3, max_size=5), st.integers(1, 12))
def test_the_seeds_needed_are_the_fewest_that_decide(values: list[float], family: int) -> None:
    found = decided(values, family, 0.5)
    assume(found.verdict == "undecided" and found.seeds_needed is not None)
    assert found.seeds_needed is not None and found.seeds_needed > 0
    estimate = found.estimate
    assert estimate.se is not None and estimate.df is not None

    def verdict_with(more: int) -> str | None:
        n = estimate.n + more
        assert estimate.se is not None and estimate.df is not None
        se = estimate.se * math.sqrt(estimate.n / n)
        again = Estimate(n, estimate.mean, 0, se, estimate.df + more)
        return decide(again, family, 0.5, alpha=ALPHA * LATER_SHARE).verdict

    assert verdict_with(found.seeds_needed) != "undecided", "with the error of a changed plan"
    assert verdict_with(found.seeds_needed - 1) == "undecided"


def test_no_number_of_seeds_decides_a_difference_of_exactly_the_region() -> None:
    estimate = Estimate(3, 0.0, 0, 0.1, 2.0)
    assert seeds_needed(estimate, 1, 0.0, later_chances(3, ALPHA)) is None


# ---------------------------------------------------------------- what the seeds can show


@pytest.mark.parametrize("comparisons", [1, 2, 4, 12])
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_smallest_effect_is_found_four_times_in_five(seeds: int, comparisons: int) -> None:
    effect = smallest_effect((seeds,), comparisons)
    assert effect is not None
    rng, found, tables = np.random.default_rng(1), 0, 400
    for _ in range(tables):
        base, *arms = rng.normal(scale=math.sqrt(0.5), size=(1 + comparisons, seeds))
        arms[0] += effect
        estimate = estimate_pool([by_seed(arm - base) for arm in arms])[0]
        assert estimate is not None
        found += decide(estimate, comparisons, 0.0).verdict == "better"
    assert found / tables == pytest.approx(0.8, abs=0.06)


@given(st.lists(VALUES, min_size=3, max_size=8), st.integers(1, 12), st.sampled_from([0.0, 2.0]))
def test_a_mirrored_decision_is_that_of_the_exchanged_sides(
    values: list[float], family: int, region: float
) -> None:
    there, back = decided(values, family, region), decided([-x for x in values], family, region)
    mirrored = there.mirrored
    assert (mirrored.estimate.mean, mirrored.p) == (back.estimate.mean, back.p)
    assert (mirrored.interval, mirrored.verdict) == (back.interval, back.verdict)


def test_with_fewer_than_three_seeds_no_effect_is_detected() -> None:
    assert smallest_effect((2,), 4) is None and smallest_effect((3,), 4) is not None
    assert smallest_effect((2, 5), 4) is None


def test_more_seeds_fewer_comparisons_and_a_larger_error_detect_smaller_effects() -> None:
    def effect(seeds: int, comparisons: int, alpha: float) -> float:
        found = smallest_effect((seeds,), comparisons, alpha)
        assert found is not None
        return found

    for comparisons in (3, 12, 24):
        for alpha in (0.05, 0.005):
            effects = [effect(seeds, comparisons, alpha) for seeds in (3, 5, 10, 20)]
            assert effects == sorted(effects, reverse=True)
    assert effect(10, 1, 0.05) < effect(10, 12, 0.05) < effect(10, 12, 0.01) < 2


# ---------------------------------------------------------------- planned looks


@given(st.sets(st.integers(3, 60), min_size=1, max_size=6).map(sorted))
def test_planned_looks_spend_the_whole_error_once(looks: list[int]) -> None:
    spent = spend_alpha(looks)
    assert len(spent) == len(looks) and all(part > 0 for part in spent)
    assert sum(spent) == pytest.approx(ALPHA)


@given(st.floats(0.001, 0.2), st.integers(1, 50))
def test_single_tests_together_spend_the_family_error(alpha: float, family: int) -> None:
    assert (1 - single_alpha(alpha, family)) ** family == pytest.approx(1 - alpha)


# ---------------------------------------------------------------- what the numbers promise


def test_a_table_without_effects_is_wrong_in_at_most_five_percent() -> None:
    tables, arms, n = 2_000, 4, 3
    base, *others = np.random.default_rng(0).normal(size=(1 + arms, tables, n))
    wrong = 0
    for table in range(tables):
        pool = [by_seed(arm[table] - base[table]) for arm in others]
        ps = [decide(found, arms, 0.0).p for found in estimate_pool(pool) if found]
        wrong += any(p is not None and p <= ALPHA for p in ps)
    assert 0.01 < wrong / tables <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / tables)
