"""Interface of executors, which start, stop and watch runs. Implementations: `executors/`.

The executor drives the controller: it requests tasks, reports results, and calls `tick` at least
every second while runs are live.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from ascl_sweep.contracts import RunResult, RunTask
from ascl_sweep.runtime.cluster import Cluster
from ascl_sweep.spec.sweep import Resources


class RunSource(Protocol):
    """Interface of the controller for executors."""

    @property
    def kinds(self) -> Sequence[Resources]:
        """The different resource requests of the sweep's runs."""
        ...

    @property
    def name(self) -> str:
        """The sweep's name."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether no more runs will be started."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is live."""
        ...

    def next_task(self) -> RunTask | None:
        """Return the next run to start; None if no run can start now."""
        ...

    def on_result(self, run_id: str, attempt: int, result: RunResult) -> bool:
        """Process a worker's result; return whether the run must stop."""
        ...

    def on_lost(self, run_id: str, attempt: int, reason: str) -> None:
        """Process the death of an attempt's process or node."""
        ...

    def is_withdrawn(self, run_id: str, attempt: int) -> bool:
        """Whether an attempt has ended or was replaced by a newer attempt.

        The executor then ends the attempt's process, which may hang, unless it can reuse it.
        """
        ...

    def silent_attempts(self) -> Sequence[tuple[str, int]]:
        """Return the attempts without a sign of progress for long, and those that wait for long.

        If the process of a waiting attempt was started, the executor reports a result with its
        nodes: the process may hang before its own first result, and is killed if it reports nothing
        more. If the attempt still waits for capacity, or if the executor knows of progress, it
        calls `on_heartbeat`.
        """
        ...

    def on_heartbeat(self, run_id: str, attempt: int) -> None:
        """Process a sign that an attempt makes progress within its epoch, or waits for capacity."""
        ...

    def tick(self) -> None:
        """Flush the store, read the cluster and report progress, each when it is due."""
        ...


class Session(Protocol):
    """Open connection to the place where runs execute."""

    def read_cluster(self) -> Cluster:
        """Return the current state of the cluster."""
        ...

    def execute(self, source: RunSource) -> None:
        """Execute the tasks of the source until it is over and idle."""
        ...


class Executor(Protocol):
    """Backend that executes runs."""

    opening: str
    """Message to show while a session opens."""

    def open(self, kinds: Sequence[Resources]) -> AbstractContextManager[Session]:
        """Open a session for runs with these resources; raises ResourceError or ClusterError."""
        ...
