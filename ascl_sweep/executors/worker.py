"""Training of a run in a worker process, the same for all executors. Must not import Ray.

A worker iterates over `run_task`: one result per epoch, the last one with the final state, and
results without metrics when a part of the last evaluation is saved. A failure of the run itself is
also a result; executors handle only dead processes and nodes. The run's files are in its work
folder in the store, from which a new worker resumes.
"""

import contextlib
import os
import re
import shutil
import socket
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import torch

from ascl import distributed
from ascl.checkpoint import CHECKPOINT, PREVIOUS, advance_in, discard, resume
from ascl.config import RunConfig
from ascl.data.subset import Data
from ascl.errors import AsclError, CheckpointError, DivergedError
from ascl.files import write_atomically
from ascl.memory import keep_freed
from ascl.metrics import EpochMetrics
from ascl.progress import OnProgress, no_progress
from ascl.train import Run, Stage, build
from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.errors import AsclSweepError
from ascl_sweep.store.address import is_remote
from ascl_sweep.store.network import is_unreachable
from ascl_sweep.store.work_folder import (
    SupersededError,
    WorkerDiskError,
    WorkFolder,
    open_work_folder,
)

LOG, BEST = "log.txt", "best.pt"
DEVICE_ERROR = re.compile(r"CUDA error|device-side assert|\bNVML\b|\bECC\b")
OUT_OF_MEMORY = re.compile(r"CUDA error: out of memory|cudaErrorMemoryAllocation")
Results = Generator[RunResult, None, None]


class DeviceError(Exception):
    """The GPU failed. Every later CUDA call of this process may fail as well: it must end."""


def started(nodes: tuple[str, ...], devices: tuple[str, ...] = ()) -> RunResult:
    """Return the first result of a run: its workers have started; nodes and devices by rank."""
    return RunResult(RunState.RUNNING, nodes=nodes, devices=devices, host=socket.gethostname())


def is_device_error(error: BaseException | None) -> bool:
    """Whether an error or its cause means that the GPU failed, rather than the run."""
    if error is None or isinstance(error, torch.OutOfMemoryError | torch.distributed.DistError):
        return False  # DistError: the peer may have failed
    text = str(error)
    failed = isinstance(error, torch.AcceleratorError) or DEVICE_ERROR.search(text)
    if isinstance(error, RuntimeError) and failed and not OUT_OF_MEMORY.search(text):
        return True
    return is_device_error(error.__cause__)


def describe_failure(error: BaseException, task: RunTask, rank: int | None = None) -> RunResult:
    """Return the last result of a run that ended by an error, of one rank if there are several."""
    state = RunState.LOST if is_no_fault(error, task) else RunState.FAILED
    node_fault = isinstance(error, WorkerDiskError)
    return RunResult(state, error=describe_error(error), rank=rank, node_fault=node_fault)


def is_no_fault(error: BaseException, task: RunTask) -> bool:
    """Whether an error is no fault of the run, so that a new attempt may succeed."""
    if isinstance(error, OSError) and not is_remote(task.folder):
        return is_unreachable(Path(task.folder), error)
    return isinstance(error, DeviceError | SupersededError)


def run_task(
    task: RunTask,
    load_data: Callable[[], Data | None] = lambda: None,
    *,
    capture_output: bool = True,
    on_progress: OnProgress = no_progress,
    raises: tuple[type[BaseException], ...] = (),
) -> Results:
    """Train the remaining epochs of a run; yield a result for each epoch that is not recorded.

    With several ranks, an error is raised instead of reported: the other ranks wait for the failed
    rank, and the executor must end all of them. A failed GPU always raises DeviceError: executors
    reuse a process after a reported failure, but not after an exception.

    Args:
        task: The run and the number of the attempt.
        load_data: Returns the images if they are shared between runs; None to load them from disk.
        capture_output: Whether this process's output goes to the run's log.
        on_progress: Called several times per epoch.
        raises: Errors of the executor; these are raised, not reported as a failure of the run.
    """
    keeper = distributed.rank() == 0
    try:
        only = None if keeper else log_name()
        with open_work_folder(task.folder, only=only) as folder:
            folder.path.mkdir(parents=True, exist_ok=True)
            with captured(folder.path) if capture_output else contextlib.nullcontext():
                try:
                    if keeper:
                        folder.claim()  # before reading: an older worker may still be writing
                    folder.pull()
                    with folder.copying(log_name()):
                        yield from _epochs(task, folder, load_data, on_progress)
                except Exception:
                    _log_traceback(folder.path)
                    with contextlib.suppress(OSError):
                        folder.check()  # the cause may be a newer worker, which deletes half files
                        folder.push(last=keeper)
                    raise
    except DivergedError as error:
        yield RunResult(RunState.DIVERGED, error=str(error))
    except Exception as error:
        if is_device_error(error):
            raise DeviceError(describe_error(error)) from error
        if distributed.world_size() > 1 or isinstance(error, raises):
            raise
        yield describe_failure(error, task)


def _epochs(
    task: RunTask,
    folder: WorkFolder,
    load_data: Callable[[], Data | None],
    on_progress: OnProgress,
) -> Iterator[RunResult]:
    keep_freed()
    torch.set_num_threads(max(1, int(task.cpus_per_worker)))
    config = RunConfig.of(task.config)
    run = build(config, data=load_data())
    note = _resume(run, folder.path)
    if task.keep_best:
        _keep_best(run, folder.path)  # an earlier worker may have died before it copied
    device = device_name(run.pixels.device)

    def is_done(step: EpochMetrics | Stage) -> bool:
        return isinstance(step, EpochMetrics) and step.epoch == config.epochs

    def result(step: EpochMetrics | Stage) -> RunResult:
        metrics = step if isinstance(step, EpochMetrics) else None
        return RunResult(
            RunState.DONE if is_done(step) else RunState.RUNNING,
            metrics,
            progress=metrics is None,
            host=socket.gethostname(),
            device=device,
            torch=torch.__version__,
            note=note,
        )

    for metrics in run.history[task.recorded :]:
        yield result(metrics)
    for step in advance_in(run, folder.path, on_progress, folder.check):
        if task.keep_best:
            _keep_best(run, folder.path)
        folder.push(last=is_done(step))
        yield result(step)


def _keep_best(run: Run, folder: Path) -> None:
    """Copy the last epoch's checkpoint if its kNN accuracy is the best so far."""
    if distributed.rank() != 0 or run.trained is not None:  # this checkpoint has no score yet
        return
    scores = [metrics.knn_top1 for metrics in run.history if metrics.knn_top1 is not None]
    if scores and run.history[-1].knn_top1 == max(scores):
        checkpoint = folder / CHECKPOINT
        write_atomically(folder / BEST, lambda temporary: shutil.copyfile(checkpoint, temporary))


def _resume(run: Run, folder: Path) -> str | None:
    """Resume from the run's checkpoint; return a note about damaged checkpoints.

    If no checkpoint can be loaded, delete them, so that the run starts over.
    """
    keeper = distributed.rank() == 0
    if keeper and not any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS)):
        discard(folder)  # the folder was partially deleted
    try:
        return resume(run, folder)
    except CheckpointError as error:
        if keeper:
            discard(folder)
        return f"the checkpoint cannot be loaded, the run starts over: {error}"


def describe_error(error: BaseException) -> str:
    """Describe an error in one line; an error that is none of ours has the name of its type."""
    text = str(error).strip().splitlines()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, AsclError | AsclSweepError) and text:
        return text[0]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def log_name() -> str:
    """Return the name of this rank's log."""
    rank = distributed.rank()
    return LOG if rank == 0 else f"{LOG}.{rank}"


def _log_traceback(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the disk may be full
        log = folder / log_name()
        with log.open("a", encoding="utf-8") as file:
            file.write(traceback.format_exc())


@contextlib.contextmanager
def captured(folder: Path) -> Iterator[None]:
    """Redirect this process's output to the run's log, including output of C libraries."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    log = os.open(folder / log_name(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, old in zip((1, 2), before, strict=True):
            os.dup2(old, fd)
            os.close(old)
        os.close(log)
