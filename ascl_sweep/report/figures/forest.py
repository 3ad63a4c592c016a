"""Forest plot: the differences of a table from their baselines, with simultaneous intervals."""

from collections.abc import Sequence

from ascl_sweep.analysis.comparison import Arm
from ascl_sweep.report.figures.model import Figure, Forest, ForestRow, Panel
from ascl_sweep.report.figures.selection import by_dataset, counted, name, names
from ascl_sweep.report.report import SweepReport
from ascl_sweep.report.sweep_tables import effect_text

KIND = "forest"


def forest(report: SweepReport) -> Figure | None:
    """Build the forest plot of a sweep; None if its table compares nothing.

    Args:
        report: The part of a report on the sweep.

    Returns:
        A figure with a panel for each dataset and a row for each comparison, in the table's order.
    """
    table = report.table
    arms = [arm for arm in table.arms if arm.comparison] if table is not None else []
    if table is None or not arms:
        return None
    region = table.region if table.metric.percent else 0.0
    unit = " (points)" if table.metric.percent else ""
    panels = tuple(
        Panel(
            title=dataset,
            x_label=f"Δ {table.metric.label}{unit}",
            forest=Forest(_rows(report, own), region),
        )
        for dataset, own in by_dataset(report, arms).items()
    )
    bases = {arm.comparison.baseline for arm in arms if arm.comparison}
    against = bases.pop() if len(bases) == 1 else "the baseline, all else equal"
    seeds = counted(arm.comparison.estimate.n for arm in arms if arm.comparison)
    band = f"; band: equivalence within ±{region:g} points" if region else ""
    return Figure(
        name(report, KIND),
        "Differences from the baseline",
        f"Mean difference from {against} with simultaneous intervals, paired by seed ({seeds})"
        f"{band}.",
        panels,
    )


def _rows(report: SweepReport, arms: Sequence[Arm]) -> tuple[ForestRow, ...]:
    found = []
    for arm, label in zip(arms, names(report, arms), strict=True):
        assert arm.comparison is not None and report.table is not None
        found.append(
            ForestRow(
                label,
                arm.comparison.estimate.mean,
                arm.comparison.inference.interval,
                arm.comparison.verdict or "undecided",
                effect_text(report.table, arm.comparison),
            )
        )
    return tuple(found)
