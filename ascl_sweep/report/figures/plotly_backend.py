"""Figures for a page: JSON for plotly.js, built without importing plotly.

Backgrounds are transparent and fonts have no color, so that a page may be light or dark.
"""

import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ascl_sweep.analysis.inference import Verdict
from ascl_sweep.analysis.stats import Interval
from ascl_sweep.report.figures.model import (
    Diagram,
    Figure,
    Forest,
    Heat,
    Panel,
    Series,
)
from ascl_sweep.report.figures.style import (
    COLORS,
    GRAY,
    HEAT,
    VERDICT_COLORS,
    columns_of,
    places,
    ticks,
)

SYMBOLS = (
    *("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star"),
    "pentagon",
)
VERDICT_SYMBOLS: dict[Verdict, str] = {
    "better": "circle",
    "worse": "square",
    "equivalent": "diamond",
    "undecided": "circle-open",
}
BAND = "rgba(140,140,140,0.16)"
DASHES = ("solid", "dash", "dot", "dashdot")
CLEAR = "rgba(0,0,0,0)"
GRID = "rgba(128,128,128,0.25)"
FEW_POINTS = 12  # lines with more points have no markers
MANY_POINTS = 100
ROW_HEIGHT, TEXT_HEIGHT = 360, 22  # pixels
DIAGRAM_MARGIN = 0.5  # on each side of a diagram, as a fraction of its width
COMPARISON_HEIGHT = 26  # pixels of a row of a forest plot
GAP = 0.1  # between panels, as a fraction of the width

Json = dict[str, Any]


def plotly(figure: Figure) -> Json:
    """Return the arguments of `Plotly.newPlot(element, data, layout)`."""
    place = places(figure)
    columns = columns_of(figure)
    rows = -(-len(figure.panels) // columns)
    height = max(map(_height, figure.panels))
    layout: Json = {
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "autosize": True,
        # The legend takes height from the plots; about two names fit in a row.
        "height": height * rows + TEXT_HEIGHT * -(-len(place) // 2),
        "margin": {"l": 60, "r": 20, "t": _top(figure), "b": 3 * TEXT_HEIGHT},
        "hovermode": "closest",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": -2.8 * TEXT_HEIGHT / ((height - 5 * TEXT_HEIGHT) * rows),
            "yanchor": "top",
        },
        "annotations": [],
        "shapes": [],
    }
    data: list[Json] = []
    named: set[str] = set()
    for i, panel in enumerate(figure.panels):
        row, column = divmod(i, columns)
        across = _domain(column, columns, GAP)
        down = _domain(rows - 1 - row, rows, 2 * GAP)
        number = str(i + 1) if i else ""
        layout[f"xaxis{number}"] = _axis(panel, "x", across) | {"anchor": f"y{number}"}
        layout[f"yaxis{number}"] = _axis(panel, "y", down) | {"anchor": f"x{number}"}
        if panel.forest:
            traces = list(_forest(panel.forest, named))
            layout["shapes"] += _lines(panel.forest, number)
        elif panel.heat:
            traces = [_heat(panel.heat, across, down)]
        elif panel.diagram:
            traces = _diagram_lines(panel.diagram)
            layout[f"xaxis{number}"] |= {"visible": False, "range": _around(panel.diagram)}
            layout[f"yaxis{number}"] |= {"visible": False, "range": [0, panel.diagram.height]}
            layout["annotations"] += _diagram_labels(panel.diagram, number)
        else:
            traces = [t for s in panel.series for t in _traces(s, place, named)]
        data += [trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"} for trace in traces]
        if panel.title:
            layout["annotations"].append(
                {
                    "text": _text(panel.title),
                    "x": sum(across) / 2,
                    "y": down[1],
                    "xref": "paper",
                    "yref": "paper",
                    "yanchor": "bottom",
                    "showarrow": False,
                }
            )
    return {"data": data, "layout": layout}


def _domain(place: int, of: int, gap: float) -> list[float]:
    """Return a panel's range of the width or height."""
    size = (1 - gap * (of - 1)) / of
    start = place * (size + gap)
    return [round(start, 4), round(start + size, 4)]


def _axis(panel: Panel, which: str, domain: Sequence[float]) -> Json:
    x = which == "x"
    title = panel.x_label if x else panel.y_label
    found: Json = {
        "title": {"text": _text(title)},
        "domain": domain,
        "gridcolor": GRID,
        "zeroline": False,
        "automargin": True,
    }
    if panel.heat:
        return found | {"type": "category", "showgrid": False}
    if panel.forest and not x:
        found |= {"showgrid": False, "range": [len(panel.forest.rows) - 0.4, -0.6]}
        found |= {"tickvals": list(range(len(panel.forest.rows)))}
        return found | {"ticktext": [_text(row.label) for row in panel.forest.rows]}
    if panel.forest:
        return found
    if x and panel.log_x:
        found["type"] = "log"
    if x and (values := ticks(panel)):
        found |= {"tickvals": values, "ticktext": [f"{v:g}" for v in values]}
    if not panel.x_label and not panel.y_label:
        found |= {"showticklabels": False, "showgrid": False}
    return found


# ---------------------------------------------------------------- series


def _traces(series: Series, place: dict[str, int], named: set[str]) -> Iterator[Json]:
    i = place.get(series.label, 0)
    plain = series.role == "data"
    color = COLORS[i % len(COLORS)] if plain else GRAY
    text = "<br>%{text}" if series.text else ""
    trace: Json = {
        "type": "scatter",
        "x": [_number(v) for v in series.x],
        "y": [_number(v) for v in series.y],
        "name": _text(series.label),
        "legendgroup": series.label,
        "showlegend": series.label not in named,
        "hovertemplate": f"%{{x}}, %{{y:.2f}}{text}<extra>{_text(series.label)}</extra>",
    }
    named.add(series.label)
    if series.text:
        trace["text"] = [_text(text) for text in series.text]
    symbol = SYMBOLS[i % len(SYMBOLS)] if plain else "x-thin"
    size = 5 if len(series.x) > MANY_POINTS else 7
    marker: Json = {"color": color, "symbol": symbol, "size": size}
    if not plain:
        marker["line"] = {"width": 1.5, "color": color}  # a thin cross consists only of its line
    if series.kind == "points":
        yield trace | {"mode": "markers", "marker": marker, "opacity": 0.8} | _error_bars(series)
        return
    if series.role == "guide":
        line: Json = {"color": GRAY, "dash": "dot", "width": 1}
        yield trace | {"mode": "lines", "line": line, "hoverinfo": "skip", "hovertemplate": None}
        return
    bundle = None in series.y
    yield from _band(series, color)
    yield trace | {
        "mode": "lines+markers" if len(series.x) <= FEW_POINTS and not bundle else "lines",
        "line": {
            "color": color,
            "dash": DASHES[i % len(DASHES)] if plain else "solid",
            "width": 1 if bundle else 2,
        },
        "marker": marker,
        "opacity": 0.5 if series.role == "behind" else 1,
    }


def _band(series: Series, color: str) -> Iterator[Json]:
    """Draw the area between low and high."""
    if series.low is None or series.high is None:
        return
    whole = [
        (x, low, high)
        for x, low, high in zip(series.x, series.low, series.high, strict=True)
        if low is not None and high is not None
    ]
    if not whole:
        return
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    yield {
        "type": "scatter",
        "x": [x for x, _, _ in whole] + [x for x, _, _ in reversed(whole)],
        "y": [_number(h) for _, _, h in whole] + [_number(low) for _, low, _ in reversed(whole)],
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.18)",
        "mode": "lines",
        "line": {"width": 0, "color": color},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": series.label,
    }


def _error_bars(series: Series) -> Json:
    if series.low is None or series.high is None:
        return {}
    parts = list(zip(series.y, series.low, series.high, strict=True))
    return {
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [0 if h is None or y is None else _number(h - y) for y, _, h in parts],
            "arrayminus": [0 if w is None or y is None else _number(y - w) for y, w, _ in parts],
        }
    }


def _heat(heat: Heat, across: Sequence[float], down: Sequence[float]) -> Json:
    return {
        "type": "heatmap",
        "x": [_text(v) for v in heat.columns],
        "y": [_text(v) for v in heat.rows],
        "z": [[_number(v) for v in row] for row in heat.values],
        "text": [["" if v is None else f"{v:.1f}" for v in row] for row in heat.values],
        "texttemplate": "%{text}",
        "hovertemplate": "%{x}, %{y}: %{z:.2f}<extra></extra>",
        "hoverongaps": False,
        "colorscale": HEAT.capitalize(),
        "colorbar": {
            "title": {"text": _text(heat.label), "side": "right"},
            "x": across[1],
            "y": sum(down) / 2,
            "len": down[1] - down[0],
            "thickness": 12,
        },
    }


def _diagram_lines(diagram: Diagram) -> list[Json]:
    return [
        {
            "type": "scatter",
            "x": list(line.x),
            "y": list(line.y),
            "mode": "lines",
            "line": {
                "color": COLORS[0] if line.bold else GRAY,
                "width": 5 if line.bold else 1,
            },
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for line in diagram.lines
    ]


def _diagram_labels(diagram: Diagram, number: str) -> list[Json]:
    return [
        {
            "text": _text(label.text).replace("\n", "<br>"),
            "x": label.x,
            "y": label.y,
            "xref": f"x{number}",
            "yref": f"y{number}",
            "xanchor": label.align,
            "yanchor": "middle",
            "align": label.align,
            "showarrow": False,
        }
        for label in diagram.labels
    ]


def _around(diagram: Diagram) -> list[float]:
    """Return a range of x with a margin on both sides, because labels do not widen an axis."""
    x = [value for line in diagram.lines for value in line.x]
    margin = DIAGRAM_MARGIN * (max(x) - min(x))
    return [min(x) - margin, max(x) + margin]


def _top(figure: Figure) -> int:
    """Return the height above the panels: two lines, but none above a forest plot without title."""
    bare = all(panel.forest and not panel.title for panel in figure.panels)
    return TEXT_HEIGHT // 2 if bare else 2 * TEXT_HEIGHT


def _height(panel: Panel) -> int:
    """Return the height of a panel with its title, axis and legend."""
    if panel.forest is None:
        return ROW_HEIGHT
    return (
        5 * TEXT_HEIGHT
        + (TEXT_HEIGHT if panel.title else 0)
        + COMPARISON_HEIGHT * max(2, len(panel.forest.rows))
    )


def _forest(forest: Forest, named: set[str]) -> Iterator[Json]:
    """Draw a trace per verdict, so that the legend explains the markers."""
    for verdict, color in VERDICT_COLORS.items():
        own = [(i, row) for i, row in enumerate(forest.rows) if row.verdict == verdict]
        if not own:
            continue
        ends_of = [(r.interval or Interval(r.mean, r.mean), r.mean) for _, r in own]
        yield {
            "type": "scatter",
            "mode": "markers",
            "x": [_number(row.mean) for _, row in own],
            "y": [place for place, _ in own],
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [_number(ends.high - mean) for ends, mean in ends_of],
                "arrayminus": [_number(mean - ends.low) for ends, mean in ends_of],
                "color": color,
                "width": 0,
                "thickness": 2,
            },
            "marker": {"color": color, "symbol": VERDICT_SYMBOLS[verdict], "size": 9},
            "name": verdict,
            "legendgroup": verdict,
            "showlegend": verdict not in named,
            "text": [_text(f"{row.label}: {row.text}, {row.verdict}") for _, row in own],
            "hovertemplate": "%{text}<extra></extra>",
        }
        named.add(verdict)


def _lines(forest: Forest, number: str) -> Iterator[Json]:
    """Draw the line of no difference and the equivalence region over the height of the panel."""
    across = {"xref": f"x{number}", "yref": f"y{number} domain", "y0": 0, "y1": 1, "layer": "below"}
    if forest.region:
        ends = {"x0": -forest.region, "x1": forest.region}
        yield across | ends | {"type": "rect", "fillcolor": BAND, "line": {"width": 0}}
    yield across | {"type": "line", "x0": 0, "x1": 0, "line": {"color": GRAY, "width": 1}}


def _number(value: float | None) -> float | None:
    """Round to six digits to keep pages small; NaN becomes None because JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _text(text: str) -> str:
    """Escape text, because plotly interprets some HTML."""
    return html.escape(text, quote=False)
