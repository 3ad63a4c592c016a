"""SVG and PNG files for papers, drawn by matplotlib, as wide as a column or a page.

The same figure gives the same bytes. The caption is only in the file's metadata, because a paper
prints it as text below the figure.
"""

import io
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from matplotlib.typing import LineStyleType
from numpy.typing import NDArray

from ascl_sweep.analysis.inference import Verdict
from ascl_sweep.report.figures.model import Diagram, Figure, Forest, Heat, Panel, Series
from ascl_sweep.report.figures.style import (
    COLORS,
    GRAY,
    HEAT,
    VERDICT_COLORS,
    columns_of,
    places,
    ticks,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType  # since matplotlib 3.11

COLUMN, PAGE = 3.4, 7.0  # inches: usual widths in journals and conferences
PANEL_HEIGHT = 2.3
ROW_HEIGHT, ROWS_EDGE = 0.19, 0.75  # inches of a row of a forest plot, and of its axis and title
LONG_NAME = 24  # letters; a forest plot with longer names is as wide as a page
LETTER, LEGEND_LINE = 0.0525, 0.15  # inches: mean letter width and line height in a legend
TEXT_LINE = 0.15  # inches: line height in a diagram
SHORT = 14  # letters of a diagram's labels that fit in a column
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
VERDICT_MARKS: dict[Verdict, str] = {
    "better": "o",
    "worse": "s",
    "equivalent": "D",
    "undecided": "o",
}
DASHES: tuple[LineStyleType, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MANY_POINTS = 100
STYLE: "dict[RcKeyType, object]" = {
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
    "text.parse_math": False,  # names may contain dollar signs
    "svg.fonttype": "none",  # text stays searchable, accessible and editable
    "svg.hashsalt": "ascl-sweep",
}


def svg(figure: Figure) -> str:
    """Draw a figure as SVG."""
    return _save(figure, "svg", Date=None).decode()


def png(figure: Figure, dpi: int = 150) -> bytes:
    """Draw a figure as PNG."""
    return _save(figure, "png", dpi, Software=None)


def _save(figure: Figure, format: str, dpi: float = 100, **omitted: None) -> bytes:
    """Draw with default settings, so that a user's matplotlibrc does not change the bytes."""
    out = io.BytesIO()
    facts = {"Title": figure.title, "Description": figure.caption, **omitted}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        _draw(figure).savefig(out, format=format, dpi=dpi, metadata=facts)
    return out.getvalue()


def write_figures(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Write each figure atomically as `<name>.svg` and `<name>.png`."""
    from ascl_sweep.store.filesystem import StoreFiles

    written = []
    for figure in figures:
        for ending, content in (("svg", svg(figure).encode()), ("png", png(figure))):
            StoreFiles(folder).write(f"{figure.name}.{ending}", content)
            written.append(folder / f"{figure.name}.{ending}")
    return written


# ---------------------------------------------------------------- the canvas


def _draw(figure: Figure) -> Canvas:
    place = places(figure)
    columns = columns_of(figure)
    rows = -(-len(figure.panels) // columns)
    wide = any(map(_is_wide, figure.panels))
    width = PAGE if columns > 1 or wide else COLUMN
    height = max(map(_height, figure.panels))
    canvas = Canvas(figsize=(width, height * rows), layout="constrained")
    grid = canvas.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(figure.panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid, figure.panels, strict=False):
        _panel(axes, panel, place, width / columns)
    _legend(canvas, grid.tolist(), width)
    return canvas


def _is_wide(panel: Panel) -> bool:
    if panel.forest is not None:
        return any(len(row.label) > LONG_NAME for row in panel.forest.rows)
    if panel.diagram is not None:
        return _label_letters(panel.diagram, "left", "right") > SHORT
    return panel.heat is not None and len(panel.heat.columns) > 6


def _height(panel: Panel) -> float:
    if panel.forest is not None:
        return ROWS_EDGE + ROW_HEIGHT * len(panel.forest.rows)
    if panel.diagram is not None:
        return panel.diagram.height * TEXT_LINE
    return PANEL_HEIGHT


def _panel(axes: Axes, panel: Panel, place: dict[str, int], width: float) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(textwrap.fill(panel.y_label, 26))
    if panel.heat is not None:
        _heat(axes, panel.heat)
        return
    if panel.diagram is not None:
        _diagram(axes, panel.diagram, width)
    if panel.forest is not None:
        _forest(axes, panel.forest)
        return
    if panel.log_x:
        axes.set_xscale("log")
    with_line = {series.label for series in panel.series if series.kind == "line"}
    for series in panel.series:
        if series.kind == "points":
            _points(axes, series, place, beside_line=series.label in with_line)
        else:
            _line(axes, series, place)
    if panel.log_x:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if values := ticks(panel):
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.set_minor_locator(NullLocator())
    elif not panel.log_x:
        whole = all(isinstance(x, int) for series in panel.series for x in series.x)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
    if not panel.x_label and not panel.y_label:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set(visible=True, color=GRAY)


def _legend(canvas: Canvas, panels: Sequence[Axes], width: float) -> None:
    """Draw one legend below all panels."""
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    letters = int((width - 0.6) / LETTER)
    texts = [wrapped(label, letters) for label in handles]
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
        if isinstance(mark, PathCollection):  # independent of the size of its points
            mark.set_sizes([16])
            mark.set_alpha(1)


# ---------------------------------------------------------------- series


def _array(values: Iterable[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _line(axes: Axes, series: Series, place: dict[str, int]) -> None:
    x, y = _array(series.x), _array(series.y)
    if series.role == "guide":
        axes.plot(x, y, color=GRAY, linestyle=":", linewidth=0.9, label=series.label)
        return
    if series.role == "behind":
        axes.plot(x, y, color=GRAY, linewidth=0.5, alpha=0.6, label=series.label)
        return
    i = place[series.label]
    color = COLORS[i % len(COLORS)]
    if series.low is not None and series.high is not None:
        low, high = _array(series.low), _array(series.high)
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    bundle = None in series.y
    step = max(1, len(x) // 7)
    axes.plot(
        x,
        y,
        color=color,
        linestyle=DASHES[i % len(DASHES)],
        linewidth=0.7 if bundle else 1.3,
        marker=None if bundle else MARKS[i % len(MARKS)],
        markersize=3.5,
        # Markers of different lines are at different epochs, so that they do not overlap.
        markevery=(i * step // 4 % step, step),
        label=series.label,
    )


def _points(axes: Axes, series: Series, place: dict[str, int], *, beside_line: bool) -> None:
    x, y = _array(series.x), _array(series.y)
    if series.role != "data":
        axes.scatter(x, y, s=14, color=GRAY, marker="x", linewidths=0.9, label=series.label)
        return
    i = place[series.label]
    color, mark = COLORS[i % len(COLORS)], MARKS[i % len(MARKS)]
    if beside_line:  # individual runs of the means
        axes.scatter(x, y, s=7, color=color, marker=mark, alpha=0.45, linewidths=0)
        return
    if series.low is not None and series.high is not None:
        around = np.nan_to_num(np.stack((y - _array(series.low), _array(series.high) - y)))
        axes.errorbar(
            x, y, yerr=around, fmt=mark, color=color, markersize=5, capsize=2, label=series.label
        )
        return
    size = 5 if len(x) > MANY_POINTS else 16
    axes.scatter(
        x, y, s=size, color=color, marker=mark, alpha=0.8, linewidths=0, label=series.label
    )


def _heat(axes: Axes, heat: Heat) -> None:
    values = np.ma.masked_invalid(np.stack([_array(row) for row in heat.values]))
    axes.set_facecolor("#e4e4e4")  # empty cells
    image = axes.imshow(values, cmap=HEAT, origin="lower", aspect="auto")
    tilted = 45 if max(map(len, heat.columns)) > 5 and len(heat.columns) > 4 else 0
    axes.set_xticks(
        range(len(heat.columns)),
        heat.columns,
        rotation=tilted,
        rotation_mode="anchor",
        ha="right" if tilted else "center",
    )
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    middle = (values.min() + values.max()) / 2
    for row, column in zip(*np.nonzero(~np.ma.getmaskarray(values)), strict=True):
        value = values[row, column]
        color = "black" if value > middle else "white"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=color, fontsize=6.5)
    axes.figure.colorbar(image, ax=axes, label=textwrap.fill(heat.label, 26))


def _diagram(axes: Axes, diagram: Diagram, width: float) -> None:
    """Draw a diagram `width` inches wide, with margins for the labels at its sides."""
    axes.set_axis_off()
    x = [value for line in diagram.lines for value in line.x]
    left, right = (
        0.15 + 1.15 * LETTER * _label_letters(diagram, side) for side in ("right", "left")
    )
    inch = (max(x) - min(x)) / max(0.5, width - left - right)
    axes.set_xlim(min(x) - left * inch, max(x) + right * inch)
    axes.set_ylim(0, diagram.height)
    for line in diagram.lines:
        axes.plot(
            line.x,
            line.y,
            color=COLORS[0] if line.bold else GRAY,
            linewidth=3 if line.bold else 0.8,
            solid_capstyle="butt",
        )
    for label in diagram.labels:
        # Constrained layout would shrink the axes again and again for texts at their sides.
        text = axes.text(label.x, label.y, label.text, ha=label.align, va="center")
        text.set_in_layout(False)


def _label_letters(diagram: Diagram, *aligned: str) -> int:
    """Return the number of letters of the longest line in the labels with these alignments."""
    texts = [label.text for label in diagram.labels if label.align in aligned]
    return max((len(line) for text in texts for line in text.splitlines()), default=0)


def _forest(axes: Axes, forest: Forest) -> None:
    """Draw the first row at the top, and the equivalence region behind all rows."""
    axes.axvline(0, color=GRAY, linewidth=0.9)
    if forest.region:
        label = f"±{forest.region:g}"
        axes.axvspan(-forest.region, forest.region, color=GRAY, alpha=0.15, lw=0, label=label)
    for place, row in enumerate(forest.rows):
        color = VERDICT_COLORS[row.verdict]
        if row.interval is not None:
            ends = [row.interval.low, row.interval.high]
            axes.plot(ends, [place, place], color=color, linewidth=1.3)
        axes.plot(
            [row.mean],
            [place],
            color=color,
            marker=VERDICT_MARKS[row.verdict],
            markersize=4.5,
            markerfacecolor="none" if row.verdict == "undecided" else color,
            linestyle="none",
            label=row.verdict,
        )
    axes.set_yticks(range(len(forest.rows)), [row.label for row in forest.rows])
    axes.set_ylim(len(forest.rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6))
