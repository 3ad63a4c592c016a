"""Figures as values: `figures.py` computes them, `draw.py` turns them into files."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Series:
    """One line, cloud of points or row of bars."""

    label: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    """None breaks a line, so that one series can hold a bundle of them."""
    low: tuple[float | None, ...] | None = None
    """With `high`, a band or error bars around y."""
    high: tuple[float | None, ...] | None = None
    kind: Literal["line", "points", "bars"] = "line"
    text: tuple[str, ...] | None = None
    """Of each point, for a pointer over it."""
    role: Literal["data", "behind", "guide"] = "data"
    """`behind` is thin and grey, and its points are crosses; a `guide` is dotted and no data."""


@dataclass(frozen=True)
class Heat:
    """A matrix of values; the first row is the lowest."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    label: str


@dataclass(frozen=True)
class Parallel:
    """Configurations as lines across one axis for each key, coloured by their score."""

    axes: tuple[str, ...]
    values: tuple[tuple[float | str | None, ...], ...]
    """A tuple for each configuration, a value for each axis."""
    score: tuple[float, ...]
    label: str
    log: tuple[str, ...] = ()
    """Those of the axes whose values span more than tenfold."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes; if neither has a label, they have no unit and no ticks."""

    title: str = ""
    x_label: str = ""
    y_label: str = ""
    series: tuple[Series, ...] = ()
    heat: Heat | None = None
    parallel: Parallel | None = None
    log_x: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels side by side."""

    name: str
    """A word that names its files: sweep and kind."""
    title: str
    caption: str
    """What it shows, with its n; also what is read out in place of the picture."""
    panels: tuple[Panel, ...]
