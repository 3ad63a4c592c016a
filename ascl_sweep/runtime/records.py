"""Rows of runs: creation when a sweep claims a run, update after epochs, recovery after a crash."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from ascl.metrics import EpochMetrics
from ascl_sweep import __version__
from ascl_sweep.clock import unix_time
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.search.study import PlannedRun, Study
from ascl_sweep.spec.sweep import SweepSpec
from ascl_sweep.store.commit import read_commit

MICROSECONDS = 1_000_000  # per second; the resolution of times in the store


@dataclass(frozen=True)
class Provenance:
    """Version of the code that trains a run: Git commit, uncommitted changes, package versions."""

    commit: str | None
    dirty: bool | None
    python: str
    ray: str
    ascl_sweep: str

    @classmethod
    def current(cls) -> "Provenance":
        made_by, changed = read_commit()
        return cls(made_by, changed, platform.python_version(), version("ray"), __version__)


def claim_runs(study: Study, rows: Mapping[str, RunRow]) -> Iterator[RunRow]:
    """Yield the rows to change so that exactly the runs of a sweep carry the sweep's name.

    A run that has not started gets a row, so that tables show it as missing. A run that the sweep
    file no longer includes loses the sweep's name and stays in the store.
    """
    name, created = study.spec.name, next_created(rows)
    for run in study.wanted():
        row = rows.get(run.run_id)
        if row is None:
            yield planned_row(run, study.spec, created)
            created = _after(created)
        elif (now := add_sweep(row, run, name)) != row:
            yield now
    own = study.own()
    for row in list(rows.values()):
        if name in row.sweeps and row.run_id not in own:
            yield replace(row, sweeps=tuple(other for other in row.sweeps if other != name))


def add_sweep(row: RunRow, run: PlannedRun, sweep: str) -> RunRow:
    """Return a run's row with a sweep's name and with config keys that newer versions have added.

    Without these keys, the run would be a separate arm in a table.
    """
    missing = {k: v for k, v in run.config.flat_values().items() if k not in row.config}
    sweeps = row.sweeps if sweep in row.sweeps else (*row.sweeps, sweep)
    cost = run.config.method.cost()
    return replace(
        row,
        sweeps=sweeps,
        config={**row.config, **missing},
        backprops=cost.backprops,
        ema=cost.ema,
    )


def next_created(rows: Mapping[str, RunRow]) -> float:
    """Return the Unix time to record as the creation of a run that is newer than these runs.

    Runs are in order of creation, also if the clock was set back since the last of them.
    """
    newest = max((row.created or 0.0 for row in rows.values()), default=0.0)
    return max(unix_time(), _after(newest))


def _after(created: float) -> float:
    """Return the next time that the store can tell apart; a sum of floats would be less."""
    return (round(created * MICROSECONDS) + 1) / MICROSECONDS


def planned_row(run: PlannedRun, spec: SweepSpec, created: float) -> RunRow:
    """Return the row of a run that has not started."""
    cost = run.config.method.cost()
    return RunRow(
        run.run_id,
        (spec.name,),
        run.config.flat_values(),
        phase=run.phase,
        scale=spec.scale,
        idle=run.config.idle_keys(),
        created=created,
        backprops=cost.backprops,
        ema=cost.ema,
    )


def looks_complete(row: RunRow, curve: Mapping[int, float | None]) -> bool:
    """Whether all epochs of an unfinished run are recorded: its driver died before the last row."""
    unfinished = row.state in (RunState.RUNNING, RunState.PLANNED, RunState.LOST)
    return unfinished and bool(row.epochs) and len(curve) == row.config["epochs"]


def summarize_epochs(row: RunRow, epochs: Sequence[EpochMetrics]) -> RunRow:
    """Return a run's row with the results of its epochs."""
    knn = [e.knn_top1 for e in epochs if e.knn_top1 is not None]
    last = epochs[-1]
    train = sum(e.train_seconds for e in epochs)
    evaluation = sum(e.eval_seconds for e in epochs)
    # A resumed run restarts its memory measurement: take the maximum over all epochs.
    memory = [e.peak_memory_gb for e in epochs if e.peak_memory_gb is not None]
    return replace(
        row,
        epochs=len(epochs),
        knn_last_top1=knn[-1] if knn else None,
        knn_best_top1=max(knn, default=None),
        probe_top1=last.probe_top1,
        probe_best_top1=last.probe_best_top1,
        train_seconds=train,
        eval_seconds=evaluation,
        images_per_second=sum(e.images_per_second for e in epochs) / len(epochs),
        peak_memory_gb=max(memory, default=None),
        device_hours=(train + evaluation) / 3600 * row.workers,
    )
