"""What a report is laid out in: sheets of text and sentences, and how numbers are written there."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ascl_sweep.report.ablation import Metric

NONE = "–"
SIGNIFICANT = 4  # digits of a number that is no percentage


@dataclass(frozen=True)
class Cell:
    """A text in a sheet."""

    text: str
    bold: bool = False
    marks: tuple[str, ...] = ()
    """Letters of the sheet's notes."""


@dataclass(frozen=True)
class Sheet:
    """A grid of text with what a reader must know of it; its first column names the rows."""

    name: str
    """A word that no other sheet of the report has: sweep and shape."""
    title: str
    header: tuple[str, ...]
    align: str
    """`l` or `r` for each column."""
    rows: tuple[tuple[Cell, ...], ...]
    caption: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    """The marks that its cells have, each with its sentence."""


@dataclass(frozen=True)
class Sentences:
    """What is said beside the sheets."""

    items: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True)
class Section:
    """What is shown of one sweep, or before all of them."""

    sweep: str
    """Empty where it is of no one sweep."""
    title: str
    blocks: tuple[Sheet | Sentences, ...]


def parts(widths: Sequence[int], width: int, gap: int = 2) -> Iterator[list[int]]:
    """A sheet's columns but the first, as many at a time as stand beside it; at least one."""
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


def signed(value: float, digits: int) -> str:
    """+0.45 or −0.45; what rounds to zero has no sign."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def probability(p: float | None) -> str:
    """Two significant digits."""
    if p is None:
        return NONE
    text = f"{p:#.2g}"
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−") if e else text


def digits_of(metric: Metric, means: Sequence[float]) -> int:
    """How many decimals the numbers of a table have: two in percent."""
    if metric.percent:
        return 2
    largest = max(means, default=1.0)
    return max(0, SIGNIFICANT - 1 - math.floor(math.log10(largest)))


def significant(value: float | None, digits: int = 3) -> str:
    """A quantity above zero with so many digits, and all of those before the point."""
    if value is None or value <= 0:
        return NONE
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(value)))}f}"


def interval(low: float | None, high: float | None, digits: int) -> str:
    if low is None or high is None:
        return NONE
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
