"""Data model of figures."""

from dataclasses import dataclass
from typing import Literal

from ascl_sweep.analysis.inference import Verdict
from ascl_sweep.analysis.stats import Interval


@dataclass(frozen=True)
class Series:
    """One line or cloud of points."""

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """None breaks the line, so that one series can hold several lines."""
    low: tuple[float | None, ...] | None = None
    """Lower end of a band or of error bars."""
    high: tuple[float | None, ...] | None = None
    kind: Literal["line", "points"] = "line"
    text: tuple[str, ...] | None = None
    """Hover text of each point."""
    role: Literal["data", "behind", "guide"] = "data"
    """`behind`: thin gray lines or gray crosses; `guide`: a dotted line that is not data."""


@dataclass(frozen=True)
class Heat:
    """A heat map; the first row is at the bottom."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    label: str


@dataclass(frozen=True)
class Line:
    """A line of a diagram."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    bold: bool = False
    """A thick line in color; other lines are thin and gray."""


@dataclass(frozen=True)
class Label:
    """A text of a diagram; `align` is the side of the text that is at x."""

    x: float
    y: float
    text: str
    align: Literal["left", "center", "right"] = "center"


@dataclass(frozen=True)
class Diagram:
    """Lines and labels without axes; y counts text lines from the bottom."""

    lines: tuple[Line, ...]
    labels: tuple[Label, ...]
    height: float


@dataclass(frozen=True)
class ForestRow:
    """A difference from the baseline and its interval."""

    label: str
    mean: float
    interval: Interval | None
    verdict: Verdict
    text: str
    """Difference and interval, as in the tables."""


@dataclass(frozen=True)
class Forest:
    """Differences with intervals, one below the other."""

    rows: tuple[ForestRow, ...]
    region: float
    """Half-width of the equivalence region; 0 for none."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes; axes without labels have no ticks."""

    title: str = ""
    x_label: str = ""
    y_label: str = ""
    series: tuple[Series, ...] = ()
    heat: Heat | None = None
    diagram: Diagram | None = None
    forest: Forest | None = None
    log_x: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure with one or more panels."""

    name: str
    """Name of its files: sweep and kind of figure."""
    title: str
    caption: str
    """Description with n; also the text for screen readers."""
    panels: tuple[Panel, ...]
