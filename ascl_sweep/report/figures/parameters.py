"""Figures of the score by one or two hyperparameters."""

from collections.abc import Iterable, Mapping, Sequence

from ascl_sweep.analysis import labels, stats
from ascl_sweep.analysis.comparison import Arm
from ascl_sweep.contracts import Scalar
from ascl_sweep.report.figures.model import Figure, Heat, Panel, Series
from ascl_sweep.report.figures.selection import (
    HOLDOUT,
    around,
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
from ascl_sweep.report.report import SweepReport

LINES = 6  # maximum number of lines in a panel of one parameter
POINTS = 2000
SEARCHED = "search: holdout, one seed"


def _numeric(keys: Iterable[str], found: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Return the keys with more than one numeric value."""
    distinct = {key: {number(values.get(key)) for values in found} - {None} for key in keys}
    return [key for key in distinct if len(distinct[key]) > 1]


# ---------------------------------------------------------------- one parameter


def parameters(report: SweepReport) -> list[Figure]:
    """Build a figure for each numeric parameter: score of the search's trials and the arms."""
    figures = []
    for key in report.digest.axes:
        tables = by_dataset(report, scored_arms(report)).items()
        parts = [
            _search_panel(report, key),
            *(_table_panel(report, key, dataset, arms) for dataset, arms in tables),
        ]
        found = [part for part in parts if part is not None]
        if found:
            panels, sentences = zip(*found, strict=True)
            title = labels.name_of(key)
            caption = f"Score by {title}. {' '.join(dict.fromkeys(sentences))}"
            kind = f"parameter_{key}"
            figures.append(Figure(name(report, kind), f"Effect of {title}", caption, panels))
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
    some = f" ({len(shown)} shown)" if len(shown) < len(complete) else ""
    sentence = (
        f"Search: n = {len(complete)} complete trials{some} with one seed on the holdout; stopped "
        "trials are excluded, and the other parameters vary too."
    )
    return Panel(SEARCHED, labels.name_of(key), HOLDOUT, series, log_x=log), sentence


def _cloud(label: str, points: Iterable[tuple[float, float, str]]) -> Series:
    x, y, text = zip(*points, strict=True)
    return Series(label, x, y, kind="points", text=text)


def _table_panel(
    report: SweepReport, key: str, dataset: str, arms: Sequence[Arm]
) -> tuple[Panel, str] | None:
    """Draw lines through arms that are equal in all other keys, and levels of arms without it."""
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
        title = "mean over seeds" if label == "base" else label
        series += _line(title, key, sorted(group, key=lambda arm: _x(arm, key)))
    values = [_x(arm, key) for group in lines for arm in group]
    without = [arm for arm in arms if key not in arm.values]
    if len(without) <= LINES - len(lines):
        for arm, label in zip(without, names(report, without), strict=True):
            series.append(_level(f"{label} (no {labels.name_of(key)})", arm, values))
    counts = [arm.n for group in lines for arm in group]
    some = f"; the best {len(lines)} of {of} lines" if of > len(lines) else ""
    spread_of = "one seed" if max(counts) == 1 else f"± 1 sd, {counted(counts)}"
    sentence = (
        f"Table: one point per complete run on {scored_on(report)}; lines connect the means "
        f"({spread_of}) of arms that are equal in all other keys{some}."
    )
    title = dataset or ("table" if report.search else "")
    log = is_wide(values)
    return Panel(title, labels.name_of(key), measured(table), tuple(series), log_x=log), sentence


def _x(arm: Arm, key: str) -> float:
    value = number(arm.values[key])
    assert value is not None
    return value


def _line(label: str, key: str, arms: Sequence[Arm]) -> list[Series]:
    """Return the means and, with the same label, the individual runs."""
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
    """Return an arm without the parameter as a horizontal line."""
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
    """Build the heat map of mean scores by the first two numeric parameters."""
    panels, counts = [], []
    for dataset, arms in by_dataset(report, scored_arms(report)).items():
        if panel := _heat_panel(report, dataset, arms):
            panels.append(panel)
            counts.append(len(arms))
    if not panels:
        return None
    keys = dict.fromkeys(f"{panel.x_label} and {panel.y_label}" for panel in panels)
    return Figure(
        name(report, "heatmap"),
        "Interaction of two parameters",
        f"Mean score on {scored_on(report)} by {', '.join(keys)}, over all arms with these values "
        f"({counted(counts, 'arm')}, means over seeds). An empty cell has no complete run.",
        tuple(panels),
    )


def _heat_panel(report: SweepReport, title: str, arms: Sequence[Arm]) -> Panel | None:
    keys = _numeric(report.digest.axes, [arm.values for arm in arms])[:2]
    if len(keys) < 2:
        return None
    cells: dict[tuple[float, float], list[float]] = {}
    for arm in arms:
        x, y = (number(arm.values.get(key)) for key in keys)
        if x is not None and y is not None and arm.mean is not None:
            cells.setdefault((x, y), []).append(arm.mean)
    across, down = (sorted({place[i] for place in cells}) for i in (0, 1))
    # Two parameters that always change together form a diagonal, which shows no interaction.
    if len(cells) <= max(len(across), len(down)):
        return None
    assert report.table is not None
    heat = Heat(
        columns=tuple(map(labels.value_of, across)),
        rows=tuple(map(labels.value_of, down)),
        values=tuple(
            tuple(stats.mean_sd(cells[x, y])[0] if (x, y) in cells else None for x in across)
            for y in down
        ),
        label=measured(report.table),
    )
    return Panel(title, labels.name_of(keys[0]), labels.name_of(keys[1]), heat=heat)
