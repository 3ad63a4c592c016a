"""Figures of arms (learning curves, soft labels, cost) and of the trials of a search."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ascl_sweep.analysis import stats
from ascl_sweep.analysis.search_summary import SearchRun
from ascl_sweep.contracts import RunState
from ascl_sweep.report.figures.model import Figure, Panel, Series
from ascl_sweep.report.figures.selection import (
    HOLDOUT,
    Shown,
    around,
    counted,
    is_wide,
    measured,
    name,
    scored_on,
    spread,
)
from ascl_sweep.report.report import SweepReport
from ascl_sweep.spec.metrics import METRICS
from ascl_sweep.store.store import Curves

TRIALS = 150  # maximum number of trials in one panel
MEASURED = ("knn_top1", "confidence", "purity")
Epochs = Mapping[str, Curves]
"""Metrics by epoch, for a table's complete runs and a search's trials."""


def curve(epochs: Curves | None, metric: str) -> dict[int, float]:
    """Return a run's measured values of a metric by epoch; accuracies in percent."""
    if epochs is None:
        return {}
    values = epochs[metric] * (100 if METRICS[metric].percent else 1)
    measured = np.isfinite(values)
    places = epochs["epoch"][measured].astype(np.int64)
    return dict(zip(places.tolist(), values[measured].tolist(), strict=True))


def band(label: str, curves: Sequence[Mapping[int, float]]) -> tuple[Series, int] | None:
    """Return the mean ± sd over an arm's seeds, and the number of seeds.

    Only epochs that every seed has are included; the mean would otherwise jump where a seed is
    missing.
    """
    curves = [c for c in curves if c]
    shared = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not shared:
        return None
    values = np.array([[c[epoch] for epoch in shared] for c in curves])
    mean, n = values.mean(axis=0), len(curves)
    line = Series(label, tuple(shared), tuple(mean.tolist()), text=("one seed",) * len(shared))
    if n == 1:
        return line, n
    sd = values.std(axis=0, ddof=1)
    low, high = tuple((mean - sd).tolist()), tuple((mean + sd).tolist())
    text = tuple(f"± {each:.3g}, n = {n}" for each in sd.tolist())
    return replace(line, low=low, high=high, text=text), n


def curves(report: SweepReport, shown: Sequence[Shown], epochs: Epochs) -> Figure | None:
    """Build the figure of online kNN by epoch, per arm."""
    panels, counts = _panels("knn_top1", shown, epochs)
    if not panels:
        return None
    return Figure(
        name(report, "curves"),
        "Learning speed",
        f"Online kNN top-1 on {scored_on(report)} after each epoch; {_bands(counts)}"
        f"{_omitted(shown, report)}.",
        tuple(panels),
    )


def soft_labels(report: SweepReport, shown: Sequence[Shown], epochs: Epochs) -> Figure | None:
    """Build the figure of confidence and label purity, for arms that relabel."""
    sure, n_sure = _panels("confidence", shown, epochs)
    pure, n_pure = _panels("purity", shown, epochs)
    if not sure and not pure:
        return None
    return Figure(
        name(report, "labels"),
        "Soft labels",
        "Confidence c (1: the neighbor is certain, 0: all candidates are equally likely) and label "
        "purity (share of the neighbors' label mass on the image's own class) by epoch; "
        f"{_bands(n_sure + n_pure)}{_omitted(shown, report)}.",
        (*sure, *pure),
    )


def _panels(metric: str, shown: Sequence[Shown], epochs: Epochs) -> tuple[list[Panel], list[int]]:
    panels, counts = [], []
    what = METRICS[metric]
    for part in shown:
        bands = []
        for arm, label in zip(part.arms, part.names, strict=True):
            runs = [curve(epochs.get(i), metric) for i in arm.run_ids]
            if found := band(label, runs):
                bands.append(found)
        # A single epoch makes no curve; the table has its value.
        if any(len(series.x) > 1 for series, _ in bands):
            y_label = f"{what.label} (%)" if what.percent else what.label
            series = tuple(series for series, _ in bands)
            panels.append(Panel(part.dataset, "epoch", y_label, series))
            counts += [n for _, n in bands]
    return panels, counts


def _bands(counts: Sequence[int]) -> str:
    if max(counts) == 1:
        return "one seed per arm"
    return f"mean over complete runs, band ± 1 sd, {counted(counts)} per arm"


def _omitted(shown: Sequence[Shown], report: SweepReport) -> str:
    """Return the caption's words on omitted arms."""
    assert report.table is not None
    if all(len(part.arms) == part.of for part in shown):
        return ""
    arms = " and ".join(f"{len(part.arms)} of {part.of} {part.dataset}".strip() for part in shown)
    return f"; baseline and best arms by {report.table.metric.label} ({arms} arms)"


def cost(report: SweepReport, shown: Sequence[Shown], done: Mapping[str, float]) -> Figure | None:
    """Build the figure of score against cost; `done` has the device-hours of complete runs."""
    panels, counts = [], []
    for part in shown:
        arms = [(a, label) for a, label in zip(part.arms, part.names, strict=True) if a.n]
        series = []
        for arm, label in arms:
            hours, sd = stats.mean_sd([done[run_id] for run_id in arm.run_ids if run_id in done])
            low, high = around([arm])
            spent = f"{hours:.3g} ± {sd:.2g} device-hours" if sd else f"{hours:.3g} device-hours"
            text = (f"{spent}, n = {arm.n}",)
            series.append(Series(label, (hours,), (arm.mean,), low, high, "points", text))
        if len(series) > 1:
            assert report.table is not None
            counts += [arm.n for arm, _ in arms]
            log = is_wide(s.x[0] for s in series)
            y_label = measured(report.table)
            panel = Panel(part.dataset, "device-hours per run", y_label, tuple(series), log_x=log)
            panels.append(panel)
    if not panels:
        return None
    bars = "one seed per arm" if max(counts) == 1 else f"bars ± 1 sd, {counted(counts)} per arm"
    some = "; baseline and best arms" if any(len(p.arms) < p.of for p in shown) else ""
    return Figure(
        name(report, "cost"),
        "Score against cost",
        f"Mean score on {scored_on(report)} against the mean device-hours of the complete runs; "
        f"{bars}{some}.",
        tuple(panels),
    )


# ---------------------------------------------------------------- a search


def shown_trials(report: SweepReport) -> list[SearchRun]:
    """Return the trials that `rungs` draws; if there are many, evenly spaced by rank."""
    trials = report.search.trials if report.search else ()
    begun = [trial for trial in trials if trial.epochs]
    return spread(sorted(begun, key=lambda t: -(t.score or 0.0)), TRIALS)


def rungs(report: SweepReport, trials: Sequence[SearchRun], epochs: Epochs) -> Figure | None:
    """Build the figure of all trials of a search and where they were stopped."""
    lines: dict[str, list[tuple[SearchRun, dict[int, float]]]] = {}
    for trial in trials:
        if found := curve(epochs.get(trial.run_id), "knn_top1"):
            lines.setdefault(_fate(trial), []).append((trial, found))
    if report.search is None or not lines:
        return None
    every = [value for bundle in lines.values() for _, line in bundle for value in line.values()]
    length = max(int(row.config.get("epochs") or 0) for row in report.runs if row.phase == "search")
    rungs = report.digest.stop.rungs(length) if report.digest.stop else ()
    series = [_rungs(rungs, min(every), max(every))] if rungs else []
    # Stopped trials are drawn first, behind the trials that continued.
    for fate in sorted(lines, key=FATES.index):
        series.append(_bundle(fate, lines[fate]))
    if stopped := lines.get(STOPPED):
        series.append(_ends(stopped))
    of = sum(trial.epochs > 0 for trial in report.search.trials)
    some = f"; {len(trials)} of {of} trials, evenly spaced by rank" * (of > len(trials))
    marks = f" Dotted: {'rungs at epochs' if len(rungs) > 1 else 'stopping starts at epoch'} "
    return Figure(
        name(report, "rungs"),
        "Early stopping",
        "Online kNN of every trial by epoch on the holdout, one seed; "
        f"{report.search.rule}; ×: trial stopped{some}."
        + (f"{marks}{', '.join(map(str, rungs))}." if rungs else ""),
        (Panel("", "epoch", HOLDOUT, tuple(series)),),
    )


STOPPED, AUDITED, COMPLETE = "stopped", "audited (not stopped)", "complete"
FATES = (STOPPED, "unfinished", "diverged or failed", COMPLETE, AUDITED)


def _fate(trial: SearchRun) -> str:
    if trial.state == RunState.STOPPED:
        return STOPPED
    if trial.state in (RunState.DIVERGED, RunState.FAILED):
        return "diverged or failed"
    if trial.audit:
        return AUDITED
    return COMPLETE if trial.state == RunState.DONE else "unfinished"


def _bundle(fate: str, lines: Sequence[tuple[SearchRun, Mapping[int, float]]]) -> Series:
    x: list[float] = []
    y: list[float | None] = []
    text: list[str] = []
    for trial, line in lines:
        x += [*line, max(line)]
        y += [*line.values(), None]
        text += [trial.label] * (len(line) + 1)
    return Series(
        f"{fate} ({len(lines)})",
        x=tuple(x[:-1]),
        y=tuple(y[:-1]),
        text=tuple(text[:-1]),
        role="behind" if fate == STOPPED else "data",
    )


def _ends(stopped: Sequence[tuple[SearchRun, Mapping[int, float]]]) -> Series:
    ends = [(max(line), line[max(line)], trial) for trial, line in stopped]
    return Series(
        "stopped here",
        x=tuple(epoch for epoch, _, _ in ends),
        y=tuple(value for _, value, _ in ends),
        kind="points",
        role="behind",
        text=tuple(f"{trial.label}: {trial.because or 'stopped'}" for _, _, trial in ends),
    )


def _rungs(rungs: Sequence[int], low: float, high: float) -> Series:
    x = [epoch for rung in rungs for epoch in (rung, rung, rung)]
    y = [value for _ in rungs for value in (low, high, None)]
    label = "rungs" if len(rungs) > 1 else "start of stopping"
    return Series(label, tuple(x[:-1]), tuple(y[:-1]), role="guide")
