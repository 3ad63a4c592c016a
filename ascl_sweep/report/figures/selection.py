"""Selection and names of the arms and trials in a figure."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.comparison import DATASET, Arm
from ascl_sweep.analysis.search_summary import SearchRun
from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.contracts import RunState, Scalar
from ascl_sweep.report.report import SweepReport

ARMS = 12  # more lines with bands are unreadable
HOLDOUT = "online kNN top-1 on the holdout (%)"

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """The arms of a table that one panel shows."""

    dataset: str
    """Empty if all arms have the same dataset."""
    arms: tuple[Arm, ...]
    names: tuple[str, ...]
    of: int
    """Number of arms before selection."""


def name(report: SweepReport, kind: str) -> str:
    """Return the name of a figure and its files."""
    return f"{report.sweep.name}-{kind.replace('.', '_')}"


def by_dataset(report: SweepReport, arms: Iterable[Arm]) -> dict[str, list[Arm]]:
    """Group arms by dataset; scores on different datasets must not share an axis."""
    varied = report.table is not None and any(DATASET in arm.values for arm in report.table.arms)
    found: dict[str, list[Arm]] = {}
    for arm in arms:
        title = labels.value_label(DATASET, arm.config.get(DATASET)) if varied else ""
        found.setdefault(title, []).append(arm)
    return found


def select_arms(report: SweepReport, done: Collection[str]) -> list[Shown]:
    """Select the best arms with complete runs for each dataset, and always the baseline."""
    if report.table is None:
        return []
    complete = [a for a in report.table.arms if any(run_id in done for run_id in a.run_ids)]
    panels = []
    for dataset, arms in by_dataset(report, complete).items():
        first = sorted(ranked(report, arms), key=lambda arm: not arm.is_baseline)[:ARMS]
        kept = tuple(arm for arm in arms if any(arm is chosen for chosen in first))
        panels.append(Shown(dataset, kept, names(report, kept), len(arms)))
    return panels


def ranked(report: SweepReport, arms: Iterable[Arm]) -> list[Arm]:
    """Sort arms, best first; arms without a score last."""
    better = report.table is None or report.table.metric.higher_is_better
    sign = -1 if better else 1
    return sorted(arms, key=lambda arm: math.inf if arm.mean is None else sign * arm.mean)


def names(report: SweepReport, arms: Sequence[Arm], without: str = "") -> tuple[str, ...]:
    """Name the arms of one dataset, optionally without their value of a key."""
    keys = [key for key in report.digest.axes if key not in (DATASET, without)]
    short = [labels.system_arm(a.config, [k for k in keys if k in a.values]) for a in arms]
    return tuple(short) if len(set(short)) == len(short) else tuple(arm.label for arm in arms)


def measured(table: AblationTable) -> str:
    """Return the axis label of a table's scores."""
    unit = f" ({table.metric.unit})" if table.metric.unit else ""
    return f"{table.metric.label}{unit}"


def scored_arms(report: SweepReport) -> list[Arm]:
    """Return the arms that have a score."""
    return [arm for arm in (report.table.arms if report.table else ()) if arm.mean is not None]


def around(arms: Sequence[Arm]) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Return mean − sd and mean + sd of each arm; None with a single seed."""

    def at(sign: int) -> tuple[float | None, ...]:
        return tuple(
            None if arm.mean is None or arm.sd is None else arm.mean + sign * arm.sd for arm in arms
        )

    return at(-1), at(1)


def complete_trials(report: SweepReport) -> list[tuple[SearchRun, float]]:
    """Return a search's complete trials with their scores."""
    trials = report.search.trials if report.search else ()
    return [(t, t.score) for t in trials if t.state == RunState.DONE and t.score is not None]


def spread(things: Sequence[T], most: int) -> list[T]:
    """Select at most `most` items, evenly spaced, including the first and the last."""
    if len(things) <= most:
        return list(things)
    return [things[round(i * (len(things) - 1) / (most - 1))] for i in range(most)]


def number(value: Scalar) -> float | None:
    """Return a parameter's value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def is_wide(values: Iterable[float]) -> bool:
    """Return whether values span more than a factor of 10 and need a logarithmic axis."""
    found = list(values)
    return bool(found) and min(found) > 0 and max(found) / min(found) > 10


def counted(counts: Iterable[int], thing: str = "seed") -> str:
    """Format a count: n = 3 seeds, or n = 2 to 3 seeds."""
    found = sorted(set(counts))
    many = f"{found[0]} to {found[-1]}" if len(found) > 1 else str(found[0])
    return f"n = {many} {thing}{'' if found[-1] == 1 else 's'}"


def scored_on(report: SweepReport) -> str:
    """Return the split that the table's runs are scored on, for a caption."""
    rows = [row for row in report.runs if row.phase == "final"]
    parts = {"the holdout" if row.config.get("data.holdout") else "the test set" for row in rows}
    scale = " (laptop scale)" if report.sweep.scale == "laptop" else ""
    return f"{' and '.join(sorted(parts))}{scale}"
