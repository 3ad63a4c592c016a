"""Types that are exchanged between packages and between processes.

The controller sends a `RunTask` to a worker. The worker sends back `RunResult`s: one when the run
starts, one per epoch, some during the last evaluation, one when it ends. A `RunRow` is the store's
record of a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from ascl.metrics import EpochMetrics

Scalar = bool | int | float | str | None
"""Value of a config key or a metric in the store."""
Phase = Literal["search", "final"]
"""`search`: one seed, scored on holdout, may stop early. `final`: all seeds, scored on test."""


class RunState(StrEnum):
    """State of a run."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """Ended early by the scheduler."""
    DIVERGED = "diverged"
    FAILED = "failed"
    LOST = "lost"
    """Its worker or its driver died; the run will be restarted."""

    @property
    def is_over(self) -> bool:
        """Whether the run needs no more work in a search."""
        return self in (RunState.DONE, RunState.STOPPED, RunState.DIVERGED)

    @property
    def is_final(self) -> bool:
        """Whether the run needs no more work for a table; tables do not include stopped runs."""
        return self in (RunState.DONE, RunState.DIVERGED)


LOST_STATES = (RunState.DIVERGED, RunState.FAILED)
"""States of final runs that ended without a score: tables have lost their seed."""
UNSCORED_STATES = (RunState.STOPPED, *LOST_STATES, RunState.LOST)
"""States of runs that started and have no final score."""


@dataclass(frozen=True)
class RunTask:
    """One attempt at a run, as a worker receives it."""

    run_id: str
    attempt: int
    """Number of the attempt; results of older attempts are ignored."""
    config: Mapping[str, Any]
    """The complete config as plain values; parse it with `RunConfig.of`."""
    folder: str
    """Folder of the checkpoint and the log: a path, or the address of a remote folder."""
    recorded: int
    """Number of epochs already in the store; the worker reports only later ones."""
    keep_best: bool = False
    """Whether to keep the checkpoint of the epoch with the best online kNN accuracy."""
    workers: int = 1
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    avoid: tuple[str, ...] = ()
    """Ids of nodes that the run must not be placed on."""
    avoid_devices: tuple[str, ...] = ()
    """Devices on which the run must not train; its workers hold such a device instead."""


@dataclass(frozen=True)
class RunResult:
    """Report of a worker: the start of a run, a finished epoch, or the end of the run."""

    state: RunState
    metrics: EpochMetrics | None = None
    """Metrics of the finished epoch; None if the result does not finish an epoch."""
    progress: bool = False
    """Whether the run has saved a part of its last evaluation; a new worker resumes from there."""
    nodes: tuple[str, ...] = ()
    """Node id of each rank, in the first result only."""
    devices: tuple[str, ...] = ()
    """GPU of each rank, or the process if it has no GPU; with `nodes`."""
    host: str = ""
    device: str = ""
    torch: str = ""
    error: str | None = None
    rank: int | None = None
    """The rank that failed, if known."""
    node_fault: bool = False
    """Whether the node is the cause of the failure, e.g. its full disk."""
    note: str | None = None
    """Message for the user, e.g. that a damaged checkpoint was discarded."""

    @property
    def is_last(self) -> bool:
        """Whether no result of this attempt follows."""
        return self.state is not RunState.RUNNING


@dataclass(frozen=True)
class RunRow:
    """One run in the store. Each config key is a column of the same name."""

    run_id: str
    sweeps: tuple[str, ...]  # names of all sweeps that include the run
    config: Mapping[str, Scalar]  # dotted key → value
    phase: str  # search | final
    scale: str  # full | laptop
    state: RunState = RunState.PLANNED
    error: str | None = None  # one sentence, for failed and diverged runs
    stopped_because: str | None = None  # scheduler, epoch and cut-off, for stopped runs
    audit: bool = False  # continued although the scheduler stopped it, to measure false stops
    epochs: int = 0  # finished epochs; column `epochs_done`, because `epochs` is a config key
    knn_last_top1: float | None = None
    knn_best_top1: float | None = None
    probe_top1: float | None = None
    probe_best_top1: float | None = None
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    images_per_second: float | None = None
    peak_memory_gb: float | None = None  # of one device
    device_hours: float = 0.0
    workers: int = 1
    host: str | None = None
    device: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    python: str | None = None
    torch: str | None = None
    ray: str | None = None
    ascl_sweep: str | None = None
    created: float | None = None  # Unix time, stored with microseconds
    started: float | None = None
    ended: float | None = None
    log: str | None = None
    idle: tuple[str, ...] = ()  # config keys without effect on the results, e.g. τ' for MoCo
    backprops: int | None = None  # backward passes through the encoder per image
    ema: bool | None = None  # whether the method has a momentum encoder


@dataclass(frozen=True)
class SweepRow:
    """One sweep in the store, as of its last start."""

    name: str
    text: str  # the YAML
    file: str
    overrides: tuple[str, ...]
    scale: str
    started: float
    planned: int  # number of planned runs
    digest: str = "{}"  # a `SweepSummary` as JSON, for reports
