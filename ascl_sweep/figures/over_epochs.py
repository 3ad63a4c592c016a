"""Figures over epochs: learning curves, what the soft labels do, and what a search stopped when."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ascl_sweep.figures.panels import Figure, Panel, Series
from ascl_sweep.figures.shown import HOLDOUT, Shown, counted, name, scored_on, spread
from ascl_sweep.ledger import Curves
from ascl_sweep.report.ablation import METRICS
from ascl_sweep.report.report import SweepReport
from ascl_sweep.report.searches import Trial

TRIALS = 150  # lines of a search's runs in one panel
MEASURED = ("knn_top1", "confidence", "purity")
Epochs = Mapping[str, Curves]
"""Of a table's complete runs and a search's trials: their epochs in order, with these metrics."""


def curve(epochs: Curves | None, metric: str) -> dict[int, float]:
    """A run's metric by epoch, where it was measured; accuracies in percent."""
    if epochs is None:
        return {}
    values = epochs[metric] * (100 if METRICS[metric].percent else 1)
    measured = np.isfinite(values)
    places = epochs["epoch"][measured].astype(np.int64)
    return dict(zip(places.tolist(), values[measured].tolist(), strict=True))


def band(label: str, curves: Sequence[Mapping[int, float]]) -> tuple[Series, int] | None:
    """Mean ± sd over an arm's seeds, and how many those are.

    Over the epochs that every seed has: the mean must not jump because another seed comes in.
    """
    curves = [c for c in curves if c]
    shared = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not shared:
        return None
    values = np.array([[c[epoch] for epoch in shared] for c in curves])
    mean, n = values.mean(axis=0), len(curves)
    if n == 1:
        text = tuple("one seed" for _ in shared)
        return Series(label, tuple(shared), tuple(mean.tolist()), text=text), n
    sd = values.std(axis=0, ddof=1)
    series = Series(
        label,
        x=tuple(shared),
        y=tuple(mean.tolist()),
        low=tuple((mean - sd).tolist()),
        high=tuple((mean + sd).tolist()),
        text=tuple(f"± {each:.3g}, n = {n}" for each in sd.tolist()),
    )
    return series, n


def curves(report: SweepReport, shown: Sequence[Shown], epochs: Epochs) -> Figure | None:
    """Online kNN per arm: how fast each learns."""
    panels, counts = _panels("knn_top1", shown, epochs)
    if not panels:
        return None
    return Figure(
        name(report, "curves"),
        "Learning speed",
        f"Online kNN top-1 on {scored_on(report)} after each epoch; {_bands(counts)}"
        f"{_left_out(shown, report)}.",
        tuple(panels),
    )


def soft_labels(report: SweepReport, shown: Sequence[Shown], epochs: Epochs) -> Figure | None:
    """Confidence and label purity per arm, of those that relabel."""
    sure, n_sure = _panels("confidence", shown, epochs)
    pure, n_pure = _panels("purity", shown, epochs)
    if not sure and not pure:
        return None
    return Figure(
        name(report, "labels"),
        "Soft labels",
        "Confidence c (1: the neighbour is certain, 0: any may be one) and the share of the "
        "neighbours' label mass that falls on the image's own class, over training; "
        f"{_bands(n_sure + n_pure)}{_left_out(shown, report)}.",
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
        # A single epoch is a number, which the table has, and no curve.
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


def _left_out(shown: Sequence[Shown], report: SweepReport) -> str:
    """What is said of arms that there was no room for."""
    assert report.table is not None
    if all(len(part.arms) == part.of for part in shown):
        return ""
    arms = " and ".join(f"{len(part.arms)} of {part.of} {part.dataset}".strip() for part in shown)
    return f"; the best by {report.table.metric.label} with the baseline, {arms} arms"


# ---------------------------------------------------------------- a search


def shown_trials(report: SweepReport) -> list[Trial]:
    """The trials that `rungs` draws: if there are many, evenly from the best to the worst."""
    trials = report.search.trials if report.search else ()
    begun = [trial for trial in trials if trial.epochs]
    return spread(sorted(begun, key=lambda t: -(t.score or 0.0)), TRIALS)


def rung_epochs(stop: Mapping[str, Any] | None, epochs: int) -> list[int]:
    """The epochs at which a rule may stop runs of this length; of the median rule the first.

    As `stopping.Stopper` looks, which takes Ray to ask.
    """
    match stop:
        case {"rule": "asha", "grace": grace, "factor": factor}:
            power = math.log(epochs / grace) / math.log(factor) if epochs > grace else 0
            looks = [math.ceil(grace * factor**k) for k in range(math.ceil(power) + 1)]
        case {"rule": "median", "grace": grace}:
            looks = [grace]
        case {"rule": "keep_top", "at": at}:
            looks = [at]
        case _:
            looks = []
    return sorted({epoch for epoch in looks if epoch < epochs})


def rungs(report: SweepReport, trials: Sequence[Trial], epochs: Epochs) -> Figure | None:
    """Each run of a search as a line, and where it was ended."""
    lines: dict[str, list[tuple[Trial, dict[int, float]]]] = {}
    for trial in trials:
        if found := curve(epochs.get(trial.run_id), "knn_top1"):
            lines.setdefault(_fate(trial), []).append((trial, found))
    if report.search is None or not lines:
        return None
    every = [value for bundle in lines.values() for _, line in bundle for value in line.values()]
    length = max(int(row.config.get("epochs") or 0) for row in report.runs if row.phase == "search")
    looks = rung_epochs(report.digest.stop, length)
    series = [_rungs(looks, min(every), max(every))] if looks else []
    # Those that were stopped lie behind: what went on is read off the lines in front.
    for fate in sorted(lines, key=FATES.index):
        series.append(_bundle(fate, lines[fate]))
    if stopped := lines.get(STOPPED):
        series.append(_ends(stopped))
    of = sum(trial.epochs > 0 for trial in report.search.trials)
    some = f"; {len(trials)} of {of} trials, evenly from the best to the worst" * (of > len(trials))
    marks = f" Dotted: {'rungs at epochs' if len(looks) > 1 else 'the rule looks from epoch'} "
    return Figure(
        name(report, "rungs"),
        "What was stopped when",
        f"Online kNN of every trial of the search by epoch, on the holdout, one seed; "
        f"{report.search.rule}; × where a trial was stopped{some}."
        + (f"{marks}{', '.join(map(str, looks))}." if looks else ""),
        (Panel("", "epoch", HOLDOUT, tuple(series)),),
    )


STOPPED, AUDITED, COMPLETE = "stopped", "let through as an audit", "complete"
FATES = (STOPPED, "unfinished", "diverged or failed", COMPLETE, AUDITED)


def _fate(trial: Trial) -> str:
    if trial.state == "stopped":
        return STOPPED
    if trial.state in ("diverged", "failed"):
        return "diverged or failed"
    if trial.audit:
        return AUDITED
    return COMPLETE if trial.state == "done" else "unfinished"


def _bundle(fate: str, lines: Sequence[tuple[Trial, Mapping[int, float]]]) -> Series:
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


def _ends(stopped: Sequence[tuple[Trial, Mapping[int, float]]]) -> Series:
    ends = [(max(line), line[max(line)], trial) for trial, line in stopped]
    return Series(
        "stopped here",
        x=tuple(epoch for epoch, _, _ in ends),
        y=tuple(value for _, value, _ in ends),
        kind="points",
        role="behind",
        text=tuple(f"{trial.label}: {trial.because or 'stopped'}" for _, _, trial in ends),
    )


def _rungs(looks: Sequence[int], low: float, high: float) -> Series:
    x = [epoch for look in looks for epoch in (look, look, look)]
    y = [value for _ in looks for value in (low, high, None)]
    label = "rungs" if len(looks) > 1 else "the rule looks"
    return Series(label, tuple(x[:-1]), tuple(y[:-1]), role="guide")
