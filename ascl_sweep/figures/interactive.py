"""Figures for a page: plotly's JSON, made without plotly.

Backgrounds are transparent and no font has a colour, so that a page may be light or dark.
"""

import html
from collections.abc import Iterator, Sequence
from typing import Any

from ascl_sweep.figures.looks import COLOURS, GREY, HEAT, LINES, axis, columns_of, places, ticks
from ascl_sweep.figures.panels import Figure, Heat, Panel, Parallel, Series

SYMBOLS = (
    *("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star"),
    "pentagon",
)
DASHES = ("solid", "dash", "dot", "dashdot")
CLEAR = "rgba(0,0,0,0)"
GRID = "rgba(128,128,128,0.25)"
FEW_POINTS = 12  # above these a line has no marks
MANY_POINTS = 100
ROW_HEIGHT, TEXT_HEIGHT = 360, 22  # pixels
GAP = 0.1  # of the width, between panels

Json = dict[str, Any]


def plotly(figure: Figure) -> Json:
    """A figure as plotly draws it: `Plotly.newPlot(element, it.data, it.layout)`."""
    place = places(figure)
    columns = columns_of(len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    layout: Json = {
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "autosize": True,
        # A legend takes its room from the plots: about two of its names stand in a row.
        "height": ROW_HEIGHT * rows + TEXT_HEIGHT * -(-len(place) // 2),
        "margin": {"l": 60, "r": 20, "t": 2 * TEXT_HEIGHT, "b": 3 * TEXT_HEIGHT},
        "hovermode": "closest",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": -2.8 * TEXT_HEIGHT / ((ROW_HEIGHT - 5 * TEXT_HEIGHT) * rows),
            "yanchor": "top",
        },
        "annotations": [],
    }
    data: list[Json] = []
    named: set[str] = set()
    for i, panel in enumerate(figure.panels):
        row, column = divmod(i, columns)
        across = _domain(column, columns, GAP)
        down = _domain(rows - 1 - row, rows, 2 * GAP)
        if panel.parallel is not None:
            data.append(_parallel(panel.parallel, across, down))
            layout["margin"] |= {"l": 80, "t": 70}
            continue
        number = str(i + 1) if i else ""
        layout[f"xaxis{number}"] = _axis(panel, "x", across) | {"anchor": f"y{number}"}
        layout[f"yaxis{number}"] = _axis(panel, "y", down) | {"anchor": f"x{number}"}
        traces = (
            [_heat(panel.heat, across, down)]
            if panel.heat
            else [t for s in panel.series for t in _traces(s, place, named)]
        )
        data += [trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"} for trace in traces]
        if panel.title:
            layout["annotations"].append(_title(panel.title, across, down))
    return {"data": data, "layout": layout}


def _domain(place: int, of: int, gap: float) -> list[float]:
    """A panel's part of the width, or of the height."""
    size = (1 - gap * (of - 1)) / of
    start = place * (size + gap)
    return [round(start, 4), round(start + size, 4)]


def _title(text: str, across: Sequence[float], down: Sequence[float]) -> Json:
    return {
        "text": _text(text),
        "x": sum(across) / 2,
        "y": down[1],
        "xref": "paper",
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
    }


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
    if not x and any(s.kind == "bars" for s in panel.series):
        return found | {"type": "category", "autorange": "reversed"}
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
    colour = COLOURS[i % len(COLOURS)] if plain else GREY
    y = [_number(v) for v in series.y]
    trace: Json = {
        "x": [v if isinstance(v, str) else _number(v) for v in series.x],
        "y": y,
        "name": _text(series.label),
        "legendgroup": series.label,
        "showlegend": series.label not in named and series.kind != "bars",
    }
    named.add(series.label)
    if series.text:
        trace["text"] = [_text(text) for text in series.text]
    if series.kind == "bars":
        x = [_text(str(v)) for v in series.x]
        yield (
            trace
            | {"type": "bar", "orientation": "h", "x": y, "y": x}
            | {
                "marker": {"color": colour},
                "hovertemplate": "%{y}: %{x:.1f}<extra></extra>",
            }
        )
        return
    text = "<br>%{text}" if series.text else ""
    trace |= {
        "type": "scatter",
        "hovertemplate": f"%{{x}}, %{{y:.2f}}{text}<extra>{_text(series.label)}</extra>",
    }
    symbol = SYMBOLS[i % len(SYMBOLS)] if plain else "x-thin"
    size = 5 if len(series.x) > MANY_POINTS else 7
    marker: Json = {"color": colour, "symbol": symbol, "size": size}
    if not plain:
        marker["line"] = {"width": 1.5, "color": colour}  # a thin cross is nothing but its line
    if series.kind == "points":
        yield trace | {"mode": "markers", "marker": marker, "opacity": 0.8} | _bars(series)
        return
    if series.role == "guide":
        line: Json = {"color": GREY, "dash": "dot", "width": 1}
        yield trace | {"mode": "lines", "line": line, "hoverinfo": "skip", "hovertemplate": None}
        return
    bundle = None in series.y
    yield from _band(series, colour)
    yield trace | {
        "mode": "lines+markers" if len(series.x) <= FEW_POINTS and not bundle else "lines",
        "line": {
            "color": colour,
            "dash": DASHES[i % len(DASHES)] if plain else "solid",
            "width": 1 if bundle else 2,
        },
        "marker": marker,
        "opacity": 0.5 if series.role == "behind" else 1,
    }


def _band(series: Series, colour: str) -> Iterator[Json]:
    """The area between low and high."""
    if series.low is None or series.high is None:
        return
    whole = [
        (x, low, high)
        for x, low, high in zip(series.x, series.low, series.high, strict=True)
        if low is not None and high is not None
    ]
    if not whole:
        return
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    yield {
        "type": "scatter",
        "x": [x for x, _, _ in whole] + [x for x, _, _ in reversed(whole)],
        "y": [_number(h) for _, _, h in whole] + [_number(low) for _, low, _ in reversed(whole)],
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.18)",
        "mode": "lines",
        "line": {"width": 0, "color": colour},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": series.label,
    }


def _bars(series: Series) -> Json:
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


def _parallel(parallel: Parallel, across: Sequence[float], down: Sequence[float]) -> Json:
    columns = list(zip(*parallel.values, strict=True))
    found = [
        (label, axis(column, log=label in parallel.log))
        for label, column in zip(parallel.axes, columns, strict=True)
    ]
    dimensions = [
        {
            "label": _text(label),
            "values": [_number(v) for v in each.at],
            "range": [0, 1],
            "tickvals": [where for where, _ in each.ticks],
            "ticktext": [_text(text) for _, text in each.ticks],
        }
        for label, each in found
    ]
    score = [_number(v) for v in parallel.score]
    scale = [[i / (len(LINES) - 1), colour] for i, colour in enumerate(LINES)]
    return {
        "type": "parcoords",
        "domain": {"x": across, "y": down},
        "dimensions": [*dimensions, {"label": _text(parallel.label), "values": score}],
        "line": {"color": score, "colorscale": scale, "showscale": True},
    }


def _number(value: float | None) -> float | None:
    """As many digits as a screen can show: a page holds many of these."""
    return None if value is None else float(f"{value:.6g}")


def _text(text: str) -> str:
    """Plotly takes some HTML in its texts."""
    return html.escape(text, quote=False)
