"""Warnings about assumptions: they find planted cases and are rare where the spreads are equal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ascl_sweep.analysis.assumptions import (
    LEVEL,
    baseline_excess,
    find_outlier,
)
from ascl_sweep.analysis.table import build_table
from tests.stores import MOCO, RELABEL, arm, in_order, sweep, table

TABLES = 300


def scores(rng: np.random.Generator, arms: int, seeds: int) -> NDArray[np.float64]:
    """Arms with equal spreads, and a common effect of each seed."""
    found: NDArray[np.float64] = rng.normal(size=(arms, seeds)) + 2 * rng.normal(size=(1, seeds))
    return found


@pytest.mark.parametrize(("comparisons", "seeds"), [(4, 3), (4, 10), (12, 3)])
def test_tables_with_equal_spreads_are_rarely_warned_of(comparisons: int, seeds: int) -> None:
    rng = np.random.default_rng(comparisons * seeds)
    baselines = outliers = 0
    for _ in range(TABLES):
        found = scores(rng, comparisons + 1, seeds)
        p = baseline_excess(found, 0)
        baselines += p is not None and p < LEVEL
        outliers += find_outlier(found, range(seeds)) is not None
    assert baselines / TABLES < 0.05 and outliers / TABLES < 0.06


def test_a_baseline_that_varies_much_more_is_found() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(TABLES):
        found = rng.normal(size=(13, 5))
        found[0] *= 4
        p = baseline_excess(found, 0)
        hits += p is not None and p < LEVEL
    assert hits / TABLES > 0.9


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_collapsed_run_is_found(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    hits = 0
    for _ in range(TABLES):
        found = scores(rng, 9, seeds)
        found[4, 1] -= 12
        outlier = find_outlier(found, range(10, 10 + seeds))
        hits += outlier is not None and (outlier.arm, outlier.seed) == (4, 11)
    assert hits / TABLES > 0.95


@given(st.integers(0, 10**6), st.floats(-50, 50), st.floats(0.1, 10))
def test_the_checks_depend_on_neither_level_nor_unit(key: int, level: float, unit: float) -> None:
    found = scores(np.random.default_rng(key), 6, 4)
    found[2, 3] += 20
    one, other = find_outlier(found, range(4)), find_outlier(level + unit * found, range(4))
    assert one is not None and other is not None
    assert other.sds == pytest.approx(one.sds, rel=1e-6)
    assert baseline_excess(level + unit * found, 0) == pytest.approx(
        baseline_excess(found, 0), rel=1e-6
    )


def test_small_tables_and_tables_without_spread_are_not_checked() -> None:
    rng = np.random.default_rng(1)
    assert baseline_excess(rng.normal(size=(4, 5)), 0) is None
    assert baseline_excess(rng.normal(size=(6, 2)), 0) is None
    assert find_outlier(rng.normal(size=(3, 5)), range(5)) is None
    assert baseline_excess(np.ones((6, 3)), 0) is None
    assert find_outlier(np.ones((6, 3)), range(3)) is None


@pytest.mark.parametrize("more", [0, 2])
def test_a_table_names_a_noisy_baseline_also_if_it_has_more_seeds(more: int) -> None:
    noisy = [88.0, 95.0, 82.0, 91.0, 85.0]
    asked = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO))
    for base, there in ((noisy, True), ([88.0, 88.2, 87.9, 88.1, 88.0], False)):
        rows = arm("it", MOCO, base[: 3 + more])
        for i, relabel in enumerate(("hard", "ahcl", "ascl", "one", "two")):
            scores = [89.0 + 0.1 * i, 89.2 - 0.1 * i, 89.1 + 0.2 * (i % 2)]
            rows += arm("it", {RELABEL: relabel}, scores)
        found = build_table(asked, in_order(rows))
        assert found is not None
        warned = [text for text in found.remarks if "baseline MoCo" in text and "varies" in text]
        assert bool(warned) == there


def test_a_table_names_the_collapsed_run() -> None:
    rows = arm("it", MOCO, [88.0, 88.2, 88.1])
    for i, relabel in enumerate(("hard", "ahcl", "ascl", "other")):
        rows += arm("it", {RELABEL: relabel}, [89.0 + 0.1 * i, 89.3, 89.1 - 0.1 * i])
    collapsed = arm("it", {RELABEL: "late"}, [89.0, 60.0, 89.2])
    asked = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO))
    for extra, there in (([], False), (collapsed, True)):
        found = build_table(asked, in_order([*rows, *extra]))
        assert found is not None
        warnings = [text for text in found.remarks if text.startswith("Assumption: seed 1 of")]
        assert bool(warnings) == there
