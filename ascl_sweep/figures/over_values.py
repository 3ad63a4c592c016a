"""Figures over the values of one parameter, or of two."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ascl_sweep import labels, stats
from ascl_sweep.figures.panels import Figure, Heat, Panel, Series
from ascl_sweep.figures.shown import (
    HOLDOUT,
    Scored,
    around,
    axes,
    by_dataset,
    complete_trials,
    counted,
    is_wide,
    measured,
    name,
    names,
    number,
    ranked,
    scored_arms,
    scored_on,
    spread,
)
from ascl_sweep.ledger import Scalar
from ascl_sweep.report.ablation import Arm
from ascl_sweep.report.report import SweepReport

LINES = 6  # of otherwise unlike arms, in a panel of one parameter
POINTS = 2000
EXACT = 10  # values of a parameter that have a column of their own in a heat-map
BINS = 6
SEARCHED = "search: holdout, one seed"


def _numeric(keys: Iterable[str], found: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """The keys at which configurations differ in a number."""
    distinct = {key: {number(values.get(key)) for values in found} - {None} for key in keys}
    return [key for key in distinct if len(distinct[key]) > 1]


# ---------------------------------------------------------------- one parameter


def parameters(report: SweepReport) -> list[Figure]:
    """The score against each numeric parameter: of the search's trials, and of the table's arms."""
    figures = []
    for key in axes(report):
        panels, said = [], []
        if found := _search_panel(report, key):
            panels.append(found[0])
            said.append(found[1])
        for dataset, arms in by_dataset(report, scored_arms(report)).items():
            if part := _table_panel(report, key, dataset, arms):
                panels.append(part[0])
                said.append(part[1])
        if panels:
            title = labels.name_of(key)
            caption = f"The score against {title}. {' '.join(dict.fromkeys(said))}"
            kind = f"parameter_{key}"
            figures.append(Figure(name(report, kind), f"Effect of {title}", caption, tuple(panels)))
    return figures


def _search_panel(report: SweepReport, key: str) -> tuple[Panel, str] | None:
    complete = complete_trials(report)
    if not _numeric([key], [trial.values for trial, _ in complete]):
        return None
    shown = spread(sorted(complete, key=lambda found: -found[1]), POINTS)
    points: dict[str, list[tuple[float, float, str]]] = {}
    for trial, score in shown:
        if (value := number(trial.values.get(key))) is not None:
            points.setdefault(trial.system, []).append((value, score, trial.label))
    if not 1 < len(points) <= LINES:
        points = {"trials": [point for kind in points.values() for point in kind]}
    series = tuple(_cloud(kind, found) for kind, found in points.items())
    log = is_wide(x for kind in points.values() for x, _, _ in kind)
    some = f" ({len(shown)} of them shown)" if len(shown) < len(complete) else ""
    said = (
        f"Search: n = {len(complete)} complete trials{some} of one seed on the holdout; what was "
        "stopped early has no final score and is left out; the other parameters vary too."
    )
    return Panel(SEARCHED, labels.name_of(key), HOLDOUT, series, log_x=log), said


def _cloud(label: str, points: Iterable[tuple[float, float, str]]) -> Series:
    x, y, text = zip(*points, strict=True)
    return Series(label, x, y, kind="points", text=text)


def _table_panel(
    report: SweepReport, key: str, dataset: str, arms: Sequence[Arm]
) -> tuple[Panel, str] | None:
    """Lines through arms that are alike in all else; beside them those that lack the parameter."""
    table = report.table
    assert table is not None
    groups: dict[object, list[Arm]] = {}
    for arm in arms:
        if number(arm.values.get(key)) is not None:
            rest = tuple((k, v) for k, v in arm.values.items() if k != key)
            groups.setdefault(rest, []).append(arm)
    lines = [group for group in groups.values() if len(group) > 1]
    if not lines:
        return None
    of = len(lines)
    firsts = ranked(report, [ranked(report, group)[0] for group in lines])[:LINES]
    lines = [group for group in lines if any(arm is first for arm in group for first in firsts)]
    series: list[Series] = []
    for group, label in zip(lines, names(report, [g[0] for g in lines], without=key), strict=True):
        title = "mean of the seeds" if label == "base" else label
        series += _line(title, key, sorted(group, key=lambda arm: _x(arm, key)))
    values = [_x(arm, key) for group in lines for arm in group]
    without = [arm for arm in arms if key not in arm.values]
    if len(without) <= LINES - len(lines):
        for arm, label in zip(without, names(report, without), strict=True):
            series.append(_level(f"{label} (no {labels.name_of(key)})", arm, values))
    counts = [arm.n for group in lines for arm in group]
    some = f"; the best {len(lines)} of {of} lines" if of > len(lines) else ""
    spread_of = "one seed" if max(counts) == 1 else f"± 1 sd, {counted(counts)}"
    said = (
        f"Table: a point for each complete run on {scored_on(report)}, lines through the means "
        f"({spread_of}) of arms that are alike in all else{some}."
    )
    title = dataset or ("table" if report.search else "")
    log = is_wide(values)
    return Panel(title, labels.name_of(key), measured(table), tuple(series), log_x=log), said


def _x(arm: Arm, key: str) -> float:
    value = number(arm.values[key])
    assert value is not None
    return value


def _line(label: str, key: str, arms: Sequence[Arm]) -> list[Series]:
    """The means and, under the same label, the runs behind them."""
    low, high = around(arms)
    mean = Series(
        label,
        x=tuple(_x(arm, key) for arm in arms),
        y=tuple(arm.mean for arm in arms),
        low=low,
        high=high,
        text=tuple(f"{arm.label}: n = {arm.n}" for arm in arms),
    )
    runs = [(_x(a, key), score, f"seed {seed}") for a in arms for seed, score in a.scores.items()]
    return [mean, _cloud(label, spread(runs, POINTS))]


def _level(label: str, arm: Arm, values: Sequence[float]) -> Series:
    """An arm that lacks the parameter, as wide as the axis."""
    (low,), (high,) = around([arm])
    return Series(
        label,
        x=(min(values), max(values)),
        y=(arm.mean, arm.mean),
        low=(low, low),
        high=(high, high),
        text=(f"n = {arm.n}",) * 2,
    )


# ---------------------------------------------------------------- two parameters


def heatmap(report: SweepReport) -> Figure | None:
    """The mean score by the first two numeric parameters."""
    panels, said = [], []
    complete: list[Scored] = [(trial.values, score) for trial, score in complete_trials(report)]
    if panel := _heat_panel(report, SEARCHED, HOLDOUT, complete):
        panels.append(panel)
        said.append(f"Search: {len(complete)} complete trials on the holdout.")
    for dataset, arms in by_dataset(report, scored_arms(report)).items():
        found = [(arm.values, arm.mean) for arm in arms if arm.mean is not None]
        assert report.table is not None
        title = dataset or ("table" if report.search else "")
        if panel := _heat_panel(report, title, measured(report.table), found):
            panels.append(panel)
            said.append(f"Table: {len(found)} arms on {scored_on(report)}, means over seeds.")
    if not panels:
        return None
    keys = dict.fromkeys(f"{panel.x_label} and {panel.y_label}" for panel in panels)
    return Figure(
        name(report, "heatmap"),
        "Two parameters together",
        f"Mean score by {', '.join(keys)}, over all that is alike in these two. "
        f"{' '.join(dict.fromkeys(said))} Empty: nothing complete there.",
        tuple(panels),
    )


def _heat_panel(
    report: SweepReport, title: str, score_label: str, found: Sequence[Scored]
) -> Panel | None:
    keys = _numeric(axes(report), [values for values, _ in found])[:2]
    if len(keys) < 2:
        return None
    across, down = (_places(key, found) for key in keys)
    cells: dict[tuple[int, int], list[float]] = {}
    for values, score in found:
        x, y = (number(values.get(key)) for key in keys)
        if x is not None and y is not None:
            cells.setdefault((down.at(y), across.at(x)), []).append(score)
    # Two that always change together are one, and a diagonal says nothing of either.
    if len(cells) <= max(len(across.names), len(down.names)):
        return None
    matrix = tuple(
        tuple(
            stats.mean_sd(cells[row, column])[0] if (row, column) in cells else None
            for column in range(len(across.names))
        )
        for row in range(len(down.names))
    )
    heat = Heat(across.names, down.names, matrix, score_label)
    return Panel(title, labels.name_of(keys[0]), labels.name_of(keys[1]), heat=heat)


@dataclass(frozen=True)
class _Places:
    """The columns or rows of a heat-map, and in which one a value falls."""

    names: tuple[str, ...]
    at: Callable[[float], int]


def _places(key: str, found: Sequence[Scored]) -> _Places:
    """One for each value; intervals of equal width where there are many."""
    numbers = (number(values.get(key)) for values, _ in found)
    values = sorted({value for value in numbers if value is not None})
    if len(values) <= EXACT:
        return _Places(tuple(labels.value_of(v) for v in values), values.index)
    scale: Callable[[float], float] = math.log if is_wide(values) else float
    back: Callable[[float], float] = math.exp if is_wide(values) else float
    low, width = scale(values[0]), (scale(values[-1]) - scale(values[0])) / BINS
    edges = [back(low + i * width) for i in range(BINS + 1)]
    titles = tuple(f"{a:.2g}–{b:.2g}" for a, b in pairwise(edges))
    return _Places(titles, lambda value: min(BINS - 1, int((scale(value) - low) / width)))
