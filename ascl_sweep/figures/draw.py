"""Figures as files, for papers: SVG and PNG by matplotlib, as wide as a column or a page.

The same figure gives the same bytes. The caption is not in the picture but in the file's
description: in a paper it stands below, set as text.
"""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from ascl_sweep.figures.interactive import plotly
from ascl_sweep.figures.looks import COLOURS, GREY, HEAT, LINES, axis, columns_of, places, ticks
from ascl_sweep.figures.panels import Figure, Heat, Panel, Parallel, Series

__all__ = ["plotly", "png", "svg", "write_figures"]

COLUMN, PAGE = 3.4, 7.0  # inches: widths that journals and conferences print at
PANEL_HEIGHT = 2.3
LETTER, LEGEND_LINE = 0.0525, 0.15  # inches: a letter's mean width in a legend, a line's height
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MANY_POINTS = 100
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.7,
    "hatch.linewidth": 0.4,
    "text.parse_math": False,  # a dollar sign in a name is one
    "svg.fonttype": "none",  # text stays text: to be searched, read out and edited
    "svg.hashsalt": "ascl-sweep",
}


def svg(figure: Figure) -> str:
    """A figure as SVG."""
    with _style():
        out = io.StringIO()
        facts = {"Title": figure.title, "Description": figure.caption, "Date": None}
        _drawn(figure).savefig(out, format="svg", metadata=facts)
        return out.getvalue()


def png(figure: Figure, dpi: int = 150) -> bytes:
    """A figure as PNG."""
    with _style():
        out = io.BytesIO()
        facts = {"Title": figure.title, "Description": figure.caption, "Software": None}
        _drawn(figure).savefig(out, format="png", dpi=dpi, metadata=facts)
        return out.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    """Our settings alone: a user's own matplotlibrc must not change the bytes."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def write_figures(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Write each figure as `<name>.svg` and `<name>.png`; a file is there whole or not at all."""
    from ascl_sweep.store import Store

    written = []
    for figure in figures:
        for ending, content in (("svg", svg(figure).encode()), ("png", png(figure))):
            Store(folder).write(f"{figure.name}.{ending}", content)
            written.append(folder / f"{figure.name}.{ending}")
    return written


# ---------------------------------------------------------------- the canvas


def _drawn(figure: Figure) -> Canvas:
    place = places(figure)
    columns = columns_of(len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    width = PAGE if columns > 1 or any(map(_is_wide, figure.panels)) else COLUMN
    canvas = Canvas(figsize=(width, PANEL_HEIGHT * rows), layout="constrained")
    grid = canvas.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(figure.panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid, figure.panels, strict=False):
        _panel(axes, panel, place)
    _legend(canvas, grid.tolist(), width)
    return canvas


def _is_wide(panel: Panel) -> bool:
    """Whether a panel needs a page's width."""
    return panel.parallel is not None or (panel.heat is not None and len(panel.heat.columns) > 6)


def _panel(axes: Axes, panel: Panel, place: dict[str, int]) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(textwrap.fill(panel.y_label, 26))
    if panel.heat is not None:
        _heat(axes, panel.heat)
        return
    if panel.parallel is not None:
        _parallel(axes, panel.parallel)
        return
    if panel.log_x:
        axes.set_xscale("log")
    with_line = {series.label for series in panel.series if series.kind == "line"}
    for series in panel.series:
        if series.kind == "bars":
            _bars(axes, series)
        elif series.kind == "points":
            _points(axes, series, place, beside_line=series.label in with_line)
        else:
            _line(axes, series, place)
    if panel.log_x:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if values := ticks(panel):
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.set_minor_locator(NullLocator())
    elif not panel.log_x and all(series.kind != "bars" for series in panel.series):
        whole = all(isinstance(x, int) for series in panel.series for x in series.x)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
    if not panel.x_label and not panel.y_label:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set(visible=True, color=GREY)


def _legend(canvas: Canvas, panels: Sequence[Axes], width: float) -> None:
    """One legend for all panels, below them, where it covers no data."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    room = int((width - 0.6) / LETTER)
    texts = [_wrapped(label, room) for label in handles]
    longest = max(len(line) for text in texts for line in text.splitlines())
    columns = min(len(texts), max(1, int(width / (0.55 + LETTER * longest))))
    lines = [text.count("\n") + 1 for text in texts]
    rows = -(-len(texts) // columns)
    tallest = max(sum(lines[i * rows : (i + 1) * rows]) for i in range(columns))
    canvas.set_figheight(canvas.get_figheight() + LEGEND_LINE * tallest + 0.1)
    legend = canvas.legend(
        list(handles.values()),
        texts,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=2.6,
        borderpad=0.1,
        columnspacing=1.2,
        labelspacing=0.3,
    )
    for mark in legend.legend_handles:
        if isinstance(mark, PathCollection):  # however small its points are
            mark.set_sizes([16])
            mark.set_alpha(1)


def _wrapped(text: str, room: int) -> str:
    """Text in lines of so many letters, `K = 5` in one piece."""
    return textwrap.fill(text.replace(" = ", "\xa0=\xa0"), room).replace("\xa0", " ")


# ---------------------------------------------------------------- series


def _array(values: Iterable[float | None]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _line(axes: Axes, series: Series, place: dict[str, int]) -> None:
    x, y = _array(series.x), _array(series.y)  # type: ignore[arg-type]
    if series.role == "guide":
        axes.plot(x, y, color=GREY, linestyle=":", linewidth=0.9, label=series.label)
        return
    if series.role == "behind":
        axes.plot(x, y, color=GREY, linewidth=0.5, alpha=0.6, label=series.label)
        return
    i = place[series.label]
    colour = COLOURS[i % len(COLOURS)]
    if series.low is not None and series.high is not None:
        low, high = _array(series.low), _array(series.high)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    bundle = None in series.y
    step = max(1, len(x) // 7)
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=DASHES[i % len(DASHES)],
        linewidth=0.7 if bundle else 1.3,
        marker=None if bundle else MARKS[i % len(MARKS)],
        markersize=3.5,
        # Marks of different lines at different epochs, so that they do not cover each other.
        markevery=(i * step // 4 % step, step),
        label=series.label,
    )


def _points(axes: Axes, series: Series, place: dict[str, int], *, beside_line: bool) -> None:
    x, y = _array(series.x), _array(series.y)  # type: ignore[arg-type]
    if series.role != "data":
        axes.scatter(x, y, s=14, color=GREY, marker="x", linewidths=0.9, label=series.label)
        return
    i = place[series.label]
    colour, mark = COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]
    if beside_line:  # the runs behind its means
        axes.scatter(x, y, s=7, color=colour, marker=mark, alpha=0.45, linewidths=0)
        return
    if series.low is not None and series.high is not None:
        around = np.nan_to_num(np.stack((y - _array(series.low), _array(series.high) - y)))
        axes.errorbar(
            x, y, yerr=around, fmt=mark, color=colour, markersize=5, capsize=2, label=series.label
        )
        return
    size = 5 if len(x) > MANY_POINTS else 16
    axes.scatter(
        x, y, s=size, color=colour, marker=mark, alpha=0.8, linewidths=0, label=series.label
    )


def _bars(axes: Axes, series: Series) -> None:
    names, values = [str(x) for x in series.x], _array(series.y)
    bars = axes.barh(names, values, color=COLOURS[0], height=0.6)
    axes.bar_label(bars, fmt="%.0f", padding=2)
    axes.invert_yaxis()  # the first on top
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)


# ---------------------------------------------------------------- matrices and parallel axes


def _heat(axes: Axes, heat: Heat) -> None:
    values = np.ma.masked_invalid(np.stack([_array(row) for row in heat.values]))
    axes.set_facecolor("#e4e4e4")  # where there is nothing
    image = axes.imshow(values, cmap=HEAT, origin="lower", aspect="auto")
    tilted = 45 if max(map(len, heat.columns)) > 5 and len(heat.columns) > 4 else 0
    turn: dict[str, Any] = {"rotation": tilted, "ha": "right"} if tilted else {}
    axes.set_xticks(range(len(heat.columns)), heat.columns, rotation_mode="anchor", **turn)
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    middle = (values.min() + values.max()) / 2
    for row, column in zip(*np.nonzero(~np.ma.getmaskarray(values)), strict=True):
        value = values[row, column]
        colour = "black" if value > middle else "white"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=6.5)
    figure = axes.figure
    figure.colorbar(image, ax=axes, label=textwrap.fill(heat.label, 26))


def _parallel(axes: Axes, parallel: Parallel) -> None:
    """Each configuration a line; the score is the last axis and the colour."""
    titles = [*parallel.axes, parallel.label]
    columns = [*zip(*parallel.values, strict=True), parallel.score]
    found = [
        axis(column, log=title in parallel.log)
        for title, column in zip(titles, columns, strict=True)
    ]
    crossings = np.array([each.at for each in found]).T  # configurations × axes
    order = np.argsort(parallel.score, kind="stable")  # the best on top
    x = np.arange(len(found))
    lines = LineCollection(
        [np.column_stack((x, crossings[i])) for i in order],
        cmap=LinearSegmentedColormap.from_list("scores", LINES),
        array=np.array(parallel.score)[order],
        linewidths=0.9,
        alpha=0.75,
    )
    axes.add_collection(lines)
    axes.set_xlim(-0.15, len(found) - 0.6)
    axes.set_ylim(-0.04, 1.04)
    for place, each in enumerate(found):
        axes.axvline(place, color="black", linewidth=0.7)
        for where, text in each.ticks:
            axes.text(
                place + 0.03, where, text, fontsize=6.5, va="center",
                bbox={"facecolor": "white", "alpha": 0.75, "pad": 0.8, "linewidth": 0},
            )  # fmt: skip
    axes.set_xticks(x, [textwrap.fill(title, 16) for title in titles])
    axes.tick_params(axis="x", length=0)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
