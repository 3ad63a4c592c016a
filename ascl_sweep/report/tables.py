"""Tables as text: types, and the formatting of numbers in every format."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ascl_sweep.analysis.inference import Verdict
from ascl_sweep.analysis.stats import Interval
from ascl_sweep.spec.metrics import Metric

NONE = "–"
VERDICT_SIGNS: dict[Verdict, str] = {"better": "†", "worse": "‡", "equivalent": "≈"}
SIGNIFICANT = 4  # digits of a number that is not a percentage


@dataclass(frozen=True)
class Number:
    """A mean with its standard deviation, as text."""

    mean: str
    sd: str = ""
    """Empty with a single value."""

    def __str__(self) -> str:
        return f"{self.mean} ± {self.sd}" if self.sd else self.mean


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    bold: bool = False
    marks: tuple[str, ...] = ()
    """Letters and signs of the table's notes."""
    muted: bool = False
    """Whether nothing is decided about it; gray where a format can."""
    number: Number | None = None
    """The mean and standard deviation in the text, for formats that align them."""


@dataclass(frozen=True)
class Table:
    """A grid of cells with a caption and notes; the first column names the rows."""

    name: str
    """Sweep and kind of table; unique in the report."""
    title: str
    header: tuple[str, ...]
    align: str
    """`l` or `r` for each column."""
    rows: tuple[tuple[Cell, ...], ...]
    caption: tuple[str, ...] = ()
    """Sentences without their final periods."""
    notes: tuple[tuple[str, str], ...] = ()
    """Letter or sign, and text, of each note that a cell refers to."""


def split_columns(widths: Sequence[int], width: int, gap: int = 2) -> Iterator[list[int]]:
    """Split a table's columns into parts that each fit next to the first column."""
    part: list[int] = []
    used = widths[0]
    for column in range(1, len(widths)):
        if part and used + gap + widths[column] > width:
            yield part
            part, used = [], widths[0]
        part.append(column)
        used += gap + widths[column]
    if part:
        yield part


# ---------------------------------------------------------------- numbers


@dataclass(frozen=True)
class Precision:
    """Decimals of the numbers of a metric, in every format."""

    plain: int
    """Decimals of a number without an uncertainty."""
    most: int | None = None
    """Decimals of a number whose uncertainty is small."""

    def decimals(self, spread: float | None) -> int:
        """Return the decimals that show an uncertainty with two significant digits.

        Args:
            spread: A standard deviation or half of an interval; it is ignored if it is only a
                rounding error.
        """
        if spread is None or not math.isfinite(spread) or spread < 10.0 ** -(self.plain + 4):
            return self.plain
        decimals = max(0, 1 - int(f"{spread:.1e}".partition("e")[2]))
        return decimals if self.most is None else min(decimals, self.most)


PERCENT = Precision(2, most=2)
"""The small standard deviation of a few seeds does not make a percentage more precise."""


def precision_of(metric: Metric, means: Iterable[float | None] = ()) -> Precision:
    """Return the precision of a metric in a table with these means."""
    if metric.percent:
        return PERCENT
    return Precision(_decimals(max(map(abs, filter(None, means)), default=1.0), SIGNIFICANT))


def number(value: float, decimals: int, *, plus: bool = False) -> str:
    """Format a number such as −0.45; a number that rounds to zero has no sign."""
    text = f"{value:{'+' if plus else ''}.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def signed(value: float, decimals: int) -> str:
    return number(value, decimals, plus=True)


def mean_sd(mean: float | None, sd: float | None, precision: Precision) -> Number:
    """Format a mean with its standard deviation, such as 32.0 ± 4.9.

    Args:
        mean: The mean; None for a dash.
        sd: Its standard deviation, with two significant digits; None with a single value.
        precision: The precision of the metric.
    """
    if mean is None:
        return Number(NONE)
    decimals = precision.decimals(sd)
    return Number(number(mean, decimals), "" if sd is None else number(sd, decimals))


def effect(mean: float, interval: Interval | None, precision: Precision) -> tuple[str, str]:
    """Format a difference and its interval, whose half-width has two significant digits."""
    if interval is None:
        return signed(mean, precision.plain), NONE
    ends = (interval.low, interval.high)
    decimals = precision.decimals((interval.high - interval.low) / 2)
    # An end beside 0 must not be rounded to 0.
    beside = [end for end in ends if end]
    decimals += next((i for i in range(5) if all(round(end, decimals + i) for end in beside)), 0)
    low, high = (signed(end, decimals) for end in ends)
    return signed(mean, decimals), f"[{low}, {high}]"


def probability(p: float | None) -> str:
    """Format a p value with two significant digits."""
    if p is None:
        return NONE
    text = f"{p:#.2g}"
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−") if e else text


def significant(value: float | None, digits: int = 3) -> str:
    """Format a positive number with this many significant digits, never rounding integer digits."""
    if value is None or value <= 0:
        return NONE
    return f"{value:.{_decimals(value, digits)}f}"


def _decimals(value: float, digits: int) -> int:
    """Return the number of decimals that shows this many significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(value)))
