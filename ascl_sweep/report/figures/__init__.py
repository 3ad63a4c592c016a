"""Figures of a sweep as values; backends draw them for files and pages."""

from ascl_sweep.contracts import RunState
from ascl_sweep.report.figures.critical_difference import critical_difference
from ascl_sweep.report.figures.curves import (
    MEASURED,
    cost,
    curves,
    rungs,
    shown_trials,
    soft_labels,
)
from ascl_sweep.report.figures.forest import forest
from ascl_sweep.report.figures.model import (
    Diagram,
    Figure,
    Forest,
    ForestRow,
    Heat,
    Label,
    Line,
    Panel,
    Series,
)
from ascl_sweep.report.figures.parameters import heatmap, parameters
from ascl_sweep.report.figures.selection import select_arms
from ascl_sweep.report.report import SweepReport
from ascl_sweep.store.store import Store

__all__ = [
    "Diagram",
    "Figure",
    "Forest",
    "ForestRow",
    "Heat",
    "Label",
    "Line",
    "Panel",
    "Series",
    "build_figures",
]


def build_figures(report: SweepReport, store: Store) -> tuple[Figure, ...]:
    """Build every figure that the sweep has data for.

    Figures of arms show complete runs only. A figure with too many arms shows the best, and its
    caption states how many.
    """
    done = {row.run_id: row.device_hours for row in report.runs if row.state == RunState.DONE}
    arms, trials = select_arms(report, done), shown_trials(report)
    finals = {run_id for part in arms for arm in part.arms for run_id in arm.run_ids} & done.keys()
    wanted = finals | {trial.run_id for trial in trials}
    measured = store.curves(MEASURED) if wanted else ()
    epochs = {run_id: found for run_id, found in measured if run_id in wanted}
    figures = (
        forest(report),
        critical_difference(report),
        curves(report, arms, epochs),
        *parameters(report),
        heatmap(report),
        soft_labels(report, arms, epochs),
        rungs(report, trials, epochs),
        cost(report, arms, done),
    )
    return tuple(figure for figure in figures if figure is not None)
