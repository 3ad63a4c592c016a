"""Which arms and trials a figure has room for, and what it calls them."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ascl_sweep import labels
from ascl_sweep.ledger import Scalar
from ascl_sweep.report.ablation import AblationTable, Arm
from ascl_sweep.report.report import SweepReport
from ascl_sweep.report.searches import Trial

ARMS = 12  # more lines with bands than this cannot be told apart
DATASET = "data.name"
HOLDOUT = "online kNN top-1 on the holdout (%)"
Scored = tuple[Mapping[str, Scalar], float]
"""A configuration's values, and its score."""

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """The arms of a table that go into one panel."""

    dataset: str
    """Empty where all arms have the same."""
    arms: tuple[Arm, ...]
    names: tuple[str, ...]
    of: int
    """How many there are."""


def name(report: SweepReport, kind: str) -> str:
    """The name of a figure and of its files."""
    return f"{report.sweep.name}-{kind.replace('.', '_')}"


def by_dataset(report: SweepReport, arms: Iterable[Arm]) -> dict[str, list[Arm]]:
    """Arms by the dataset they were trained on: numbers of two are not to share an axis."""
    varied = report.table is not None and any(DATASET in arm.values for arm in report.table.arms)
    found: dict[str, list[Arm]] = {}
    for arm in arms:
        title = labels.value_label(DATASET, arm.config.get(DATASET)) if varied else ""
        found.setdefault(title, []).append(arm)
    return found


def best_arms(report: SweepReport, done: Collection[str]) -> list[Shown]:
    """For each dataset the best arms that have a complete run, the baseline always among them."""
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
    """Best first; those without a number last."""
    better = report.table is None or report.table.metric.higher_is_better
    sign = -1 if better else 1
    return sorted(arms, key=lambda arm: math.inf if arm.mean is None else sign * arm.mean)


def names(report: SweepReport, arms: Sequence[Arm], without: str = "") -> tuple[str, ...]:
    """What to call arms of one dataset, if need be without their value at a key."""
    keys = [key for key in axes(report) if key not in (DATASET, without)]
    short = [labels.system_arm(a.config, [k for k in keys if k in a.values]) for a in arms]
    return tuple(short) if len(set(short)) == len(short) else tuple(arm.label for arm in arms)


def axes(report: SweepReport) -> list[str]:
    """The sweep's own axes; all keys in which its runs differ if an older version noted none."""
    searched = report.search.axes if report.search else ()
    varied = (key for arm in (report.table.arms if report.table else ()) for key in arm.values)
    return list(report.digest.axes or dict.fromkeys([*searched, *varied]))


def measured(table: AblationTable) -> str:
    """What a table's scores are, along an axis."""
    unit = f" ({table.metric.unit})" if table.metric.unit else ""
    return f"{table.metric.label}{unit}"


def scored_arms(report: SweepReport) -> list[Arm]:
    """The arms that have a number."""
    return [arm for arm in (report.table.arms if report.table else ()) if arm.mean is not None]


def around(arms: Sequence[Arm]) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Mean ± sd; None where a single seed has no spread."""

    def at(sign: int) -> tuple[float | None, ...]:
        return tuple(
            None if arm.mean is None or arm.sd is None else arm.mean + sign * arm.sd for arm in arms
        )

    return at(-1), at(1)


def complete_trials(report: SweepReport) -> list[tuple[Trial, float]]:
    """A search's trials that came to their end, and their scores."""
    trials = report.search.trials if report.search else ()
    return [(t, t.score) for t in trials if t.state == "done" and t.score is not None]


def spread(things: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly spaced, the first and the last among them."""
    if len(things) <= most:
        return list(things)
    return [things[round(i * (len(things) - 1) / (most - 1))] for i in range(most)]


def number(value: Scalar) -> float | None:
    """A parameter's value if it is one that an axis can show."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def is_wide(values: Iterable[float]) -> bool:
    """Whether values span more than tenfold, and so want a logarithmic axis."""
    found = list(values)
    return bool(found) and min(found) > 0 and max(found) / min(found) > 10


def counted(counts: Iterable[int], thing: str = "seed") -> str:
    """n = 3 seeds, or n = 2 to 3 seeds."""
    found = sorted(set(counts))
    many = f"{found[0]} to {found[-1]}" if len(found) > 1 else str(found[0])
    return f"n = {many} {thing}{'' if found[-1] == 1 else 's'}"


def scored_on(report: SweepReport) -> str:
    """Which images the table's runs are scored on, in a caption."""
    rows = [row for row in report.runs if row.phase == "final"]
    parts = {"the holdout" if row.config.get("data.holdout") else "test" for row in rows}
    scale = " (laptop scale)" if report.sweep.scale == "laptop" else ""
    return f"{' and '.join(sorted(parts))}{scale}"
