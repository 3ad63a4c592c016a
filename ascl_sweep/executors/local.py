"""Local executor: trains one run after the other in this process, without Ray.

For tests and debugging (`run --executor local`): breakpoints in methods and losses work, and the
output of runs goes to the terminal.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ascl_sweep.contracts import RunTask
from ascl_sweep.errors import ResourceError, UsageError
from ascl_sweep.runtime.cluster import Cluster, Node
from ascl_sweep.runtime.executor import RunSource
from ascl_sweep.spec.sweep import Resources

NODE = "local"
IDLE_SECONDS = 0.1


def make_executor(address: str | None) -> "LocalExecutor":
    """Create the executor; raises UsageError if an address is given."""
    if address is not None:
        raise UsageError(
            f"the local executor takes no --address, got {address}; use --executor ray"
        )
    return LocalExecutor()


class LocalExecutor:
    """Executes runs in this process, one worker per run."""

    opening = "training in this process, one run at a time …"

    @contextmanager
    def open(self, kinds: Sequence[Resources]) -> Iterator["LocalSession"]:
        """Open a session; raises ResourceError for runs of several workers."""
        largest = max((kind.workers for kind in kinds), default=1)
        if largest > 1:
            raise ResourceError(
                "the local executor trains each run in one process, got "
                f"resources.workers={largest}; use --executor ray, or --set resources.workers=1"
            )
        cpus = max((kind.cpus_per_worker for kind in kinds), default=1)
        yield LocalSession(Cluster((Node(NODE, cpus, _count_gpus()),), max_runs=1))


class LocalSession:
    """Session with one slot: this process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def read_cluster(self) -> Cluster:
        return self._cluster

    def execute(self, source: RunSource) -> None:
        """Execute the tasks of the source until it is over."""
        while not source.is_over:
            task = source.next_task()
            if task is None:
                source.tick()
                time.sleep(IDLE_SECONDS)
            else:
                _execute(task, source)


class _Withdrawn(Exception):
    """The controller has ended the attempt in the middle of an epoch."""


def _execute(task: RunTask, source: RunSource) -> None:
    from ascl_sweep.executors.worker import DeviceError, run_task, started

    attempt = task.run_id, task.attempt

    def on_progress(phase: str, step: int, steps: int) -> None:
        source.on_heartbeat(*attempt)
        source.tick()  # flush, check for Ctrl-C and update the display during long epochs
        if source.is_withdrawn(*attempt):
            raise _Withdrawn

    if source.on_result(*attempt, started((NODE,))):
        return
    results = run_task(task, capture_output=False, on_progress=on_progress, raises=(_Withdrawn,))
    try:
        for result in results:
            if source.on_result(*attempt, result):
                return
            source.tick()
    except _Withdrawn:
        pass
    except DeviceError as error:
        source.on_lost(*attempt, str(error))
        raise ResourceError(
            f"the GPU failed, so this process cannot use it any more ({error}); "
            "repeat the command to resume"
        ) from error
    finally:
        results.close()


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count()
