"""What is written down of a sweep's runs: which are its own, what made them, what they came to."""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from ascl_sweep import __version__
from ascl_sweep.agenda import Agenda, Task, config_values, idle_keys
from ascl_sweep.commit import commit
from ascl_sweep.ledger import Ledger, RunRow
from ascl_sweep.spec import SweepSpec


def claims(agenda: Agenda, rows: Mapping[str, RunRow]) -> Iterator[RunRow]:
    """The rows that change so that a sweep's name stands on what it wants, and on nothing else.

    What it wants and nobody has started gets a row: a table then shows what is missing. What a
    former edition of the file wanted is the sweep's no more, though it stays in the ledger.
    """
    name = agenda.spec.name
    for task in agenda.wanted():
        row = rows.get(task.run_id)
        if row is None:
            yield planned_row(task, agenda.spec)
        elif (now := claimed(row, task, name)) != row:
            yield now
    own = agenda.own()
    for row in list(rows.values()):
        if name in row.sweeps and row.run_id not in own:
            yield replace(row, sweeps=tuple(other for other in row.sweeps if other != name))


def claimed(row: RunRow, task: Task, sweep: str) -> RunRow:
    """A run's row with a sweep's name on it, and with what an older version did not note.

    A run that lacks a key would stand apart from its like in a table.
    """
    lacking = {k: v for k, v in config_values(task.config).items() if k not in row.config}
    sweeps = row.sweeps if sweep in row.sweeps else (*row.sweeps, sweep)
    return replace(row, sweeps=sweeps, config={**row.config, **lacking}, **method_cost(task))


def planned_row(task: Task, spec: SweepSpec) -> RunRow:
    """A run that is wanted and not started."""
    return RunRow(
        task.run_id,
        (spec.name,),
        config_values(task.config),
        phase=task.phase,
        scale=spec.scale,
        idle=idle_keys(task.config),
        created=time.time(),
        **method_cost(task),
    )


def method_cost(task: Task) -> dict[str, Any]:
    """What a run's row says of its method's cost."""
    cost = task.config.method.cost()
    return {"backprops": cost.backprops, "ema": cost.ema}


def provenance() -> dict[str, Any]:
    """Which code ran: commit, whether it was changed since, versions."""
    made_by, changed = commit()
    return {
        "commit": made_by,
        "dirty": changed,
        "python": platform.python_version(),
        "ray": version("ray"),
        "ascl_sweep": __version__,
    }


def complete_but_not_said(rows: Mapping[str, RunRow], ledger: Ledger) -> Iterator[RunRow]:
    """Runs whose last epoch was recorded by a driver that died before it could say so."""
    unsaid = [r for r in rows.values() if r.state in ("running", "planned", "lost") and r.epochs]
    epochs = ledger.epochs([row.run_id for row in unsaid]) if unsaid else {}
    for row in unsaid:
        found = epochs.get(row.run_id, [])
        if found and found[-1]["epoch"] == row.config["epochs"] == len(found):
            yield replace(summed_up(row, found), state="done", ended=time.time())


def summed_up(row: RunRow, epochs: Sequence[Mapping[str, Any]]) -> RunRow:
    """A run's row with what its epochs come to."""
    knn = [e["knn_top1"] for e in epochs if e["knn_top1"] is not None]
    last = epochs[-1]
    train = sum(e["train_seconds"] for e in epochs)
    evaluation = sum(e["eval_seconds"] for e in epochs)
    # An epoch may come from an older version; a run that went on counts its memory anew.
    memory = [gb for e in epochs if (gb := e.get("peak_memory_gb")) is not None]
    return replace(
        row,
        epochs=len(epochs),
        knn_last_top1=knn[-1] if knn else None,
        knn_best_top1=max(knn, default=None),
        probe_top1=last["probe_top1"],
        probe_best_top1=last["probe_best_top1"],
        train_seconds=train,
        eval_seconds=evaluation,
        images_per_second=sum(e["images_per_second"] for e in epochs) / len(epochs),
        peak_memory_gb=max(memory, default=None),
        device_hours=(train + evaluation) / 3600 * row.workers,
    )
