"""Numbers as text: their decimals follow their uncertainty."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.analysis.stats import Interval
from ascl_sweep.report.tables import PERCENT, Precision, effect, mean_sd, number


@pytest.mark.parametrize(
    ("mean", "sd", "shown"),
    [
        (32.04, 4.94, "32.0 ± 4.9"),
        (88.512, 0.1123, "88.51 ± 0.11"),
        (88.512, 0.0996, "88.51 ± 0.10"),
        (31.7, 12.4, "32 ± 12"),
        (-3.14159, 0.25, "−3.14 ± 0.25"),
        (88.512, None, "88.51"),
        (88.512, 0.0, "88.51 ± 0.00"),
        (88.512, 1e-14, "88.51 ± 0.00"),
        (88.512, 0.097, "88.51 ± 0.10"),
        (88.512, 0.0049, "88.51 ± 0.00"),
        (-0.001, 0.25, "0.00 ± 0.25"),
        (None, None, "–"),
    ],
)
def test_decimals_follow_the_standard_deviation(
    mean: float | None, sd: float | None, shown: str
) -> None:
    assert str(mean_sd(mean, sd, PERCENT)) == shown


@given(st.floats(1e-3, 99.0))
def test_a_standard_deviation_has_two_significant_digits(sd: float) -> None:
    text = mean_sd(50.0, sd, Precision(2)).sd
    assert float(text) == pytest.approx(sd, rel=0.051)
    assert len(text.replace(".", "").lstrip("0")) == 2


@given(st.floats(-20, 20), st.floats(1e-3, 20))
def test_an_interval_is_shown_on_the_side_of_zero_where_it_is(mean: float, half: float) -> None:
    low, high = mean - half, mean + half
    _, shown = effect(mean, Interval(low, high), PERCENT)
    ends = [float(end.replace("−", "-")) for end in shown.strip("[]").split(", ")]
    for end, text in zip((low, high), ends, strict=True):
        if abs(end) > half / 1000:
            assert (end > 0) == (text > 0) and text != 0


def test_without_an_uncertainty_decimals_are_those_of_the_metric() -> None:
    for precision in (PERCENT, Precision(2)):
        assert [precision.decimals(x) for x in (None, 0.0, math.nan, math.inf)] == [2] * 4
        assert effect(0.456, None, precision) == ("+0.46", "–")


def test_a_small_uncertainty_does_not_make_a_percentage_more_precise() -> None:
    assert [PERCENT.decimals(sd) for sd in (0.011, 0.0049, 12.0)] == [2, 2, 0]
    assert [Precision(2).decimals(sd) for sd in (0.011, 0.0049, 12.0)] == [3, 4, 0]


@pytest.mark.parametrize(
    ("value", "plus", "text"),
    [(0.456, True, "+0.46"), (-0.456, True, "−0.46"), (-0.001, True, "0.00"), (2.0, False, "2.00")],
)
def test_a_number_that_rounds_to_zero_has_no_sign(value: float, plus: bool, text: str) -> None:
    assert number(value, 2, plus=plus) == text
