"""The figures of a sweep, computed as values; `draw.py` makes files and pages of them."""

from ascl_sweep.figures.over_epochs import MEASURED, curves, rungs, shown_trials, soft_labels
from ascl_sweep.figures.over_values import heatmap, parameters
from ascl_sweep.figures.overviews import cost, importances, parallel
from ascl_sweep.figures.panels import Figure, Heat, Panel, Parallel, Series
from ascl_sweep.figures.shown import best_arms
from ascl_sweep.ledger import Ledger
from ascl_sweep.report.report import SweepReport

__all__ = ["Figure", "Heat", "Panel", "Parallel", "Series", "figures_of"]


def figures_of(report: SweepReport, ledger: Ledger) -> tuple[Figure, ...]:
    """Every figure that the sweep has data for.

    Those of a table show complete runs only. Where there is more than can be read, the best is
    shown and the caption says how much that is.
    """
    done = {row.run_id: row.device_hours for row in report.runs if row.state == "done"}
    arms, trials = best_arms(report, done), shown_trials(report)
    finals = {run_id for part in arms for arm in part.arms for run_id in arm.run_ids} & done.keys()
    wanted = finals | {trial.run_id for trial in trials}
    measured = ledger.curves(MEASURED) if wanted else ()
    epochs = {run_id: found for run_id, found in measured if run_id in wanted}
    figures = (
        curves(report, arms, epochs),
        *parameters(report),
        heatmap(report),
        parallel(report),
        importances(report),
        soft_labels(report, arms, epochs),
        rungs(report, trials, epochs),
        cost(report, arms, done),
    )
    return tuple(figure for figure in figures if figure is not None)
