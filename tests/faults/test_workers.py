"""Workers in their own processes, killed and stopped by real signals, without Ray: runs finish with
the numbers of undisturbed runs."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

import ascl_sweep
from ascl import train
from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.executors.worker import run_task, started
from ascl_sweep.runtime.cluster import Cluster, Node
from ascl_sweep.runtime.controller import End
from ascl_sweep.runtime.executor import RunSource
from ascl_sweep.spec.sweep import Resources
from ascl_sweep.store import work_folder
from ascl_sweep.store.store import Store
from tests import processes  # noqa: F401 (its server of forks has imported PyTorch)
from tests.conftest import tiny
from tests.sweeps import GRID, wait_until, write

KILLS = 10
PROBE = (
    GRID.replace("[0.02, 0.1]", "[0.1]")
    .replace("seeds: [0, 1]", "seeds: [0]")
    .replace("epochs: 5", "epochs: 2")
    .replace("probe: none", "probe: cached, probe_epochs: 30")
)


def train_run(task: RunTask, pipe: Connection) -> None:
    """Train a run in this process and send each result, and each phase before its step ends."""
    torch.set_num_threads(1)
    train.SAVE_SECONDS = 0.0  # an evaluation of hours, in small
    work_folder.LOG_SECONDS = 0.1

    def on_progress(*phase: object) -> None:
        os.write(1, f"{phase}\n".encode())  # into the log
        pipe.send(phase)

    for result in run_task(task, on_progress=on_progress):
        pipe.send(result)


class Worker:
    """A process that trains a run."""

    def __init__(self, task: RunTask) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=train_run, args=(task, theirs))
        self._process.start()
        theirs.close()

    def messages(self) -> Iterator[Any]:
        """Yield what the process sends, until its end."""
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                break
            yield message
        self._process.join()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


class KillingExecutor:
    """Trains each run in its own process, which it kills in the second epoch of its probe."""

    opening = "ready"

    def __init__(self) -> None:
        self.kills, self.trained = 0, 0

    @contextmanager
    def open(self, kinds: Sequence[Resources]) -> Iterator["KillingExecutor"]:
        yield self

    def read_cluster(self) -> Cluster:
        return Cluster((Node("here", 1, 0),))

    def execute(self, source: RunSource) -> None:
        while not source.is_over:
            task = source.next_task()
            if task is not None:
                self._attempt(task, source)
            source.tick()

    def _attempt(self, task: RunTask, source: RunSource) -> None:
        source.on_result(task.run_id, task.attempt, started(("here",)))
        for message in self._messages(task):
            if not isinstance(message, tuple):
                source.on_result(task.run_id, task.attempt, message)
        source.on_lost(task.run_id, task.attempt, "killed")  # no effect if the run is over

    def _messages(self, task: RunTask) -> Iterator[Any]:
        worker = Worker(task)
        probed, epochs = 0, -1
        for message in worker.messages():
            self.trained += message == ("train", 1, 10)
            if isinstance(message, tuple) and message[0] == "probe":
                probed += 0 <= epochs < message[1]
                epochs = message[1]
            if probed == 2 and self.kills < KILLS:
                probed += 1
                self.kills += 1
                worker.signal(signal.SIGKILL)
            yield message


def results(store: Path) -> tuple[RunState, list[EpochMetrics]]:
    """State of the only run, and its epochs without times and memory."""
    (row,) = Store(store).runs().values()
    (epochs,) = Store(store).epochs().values()
    times: dict[str, Any] = {"train_seconds": 0, "eval_seconds": 0, "images_per_second": 0}
    return row.state, [replace(epoch, **times, peak_memory_gb=None) for epoch in epochs]


@pytest.mark.slow  # eleven processes
def test_a_run_killed_ten_times_in_its_last_evaluation_finishes_with_equal_numbers(
    tmp_path: Path,
) -> None:
    sweep = ascl_sweep.load_sweep(write(tmp_path, PROBE))
    killing = KillingExecutor()
    assert ascl_sweep.run([sweep], tmp_path / "killed", executor=killing) is End.DONE
    assert killing.kills == KILLS
    assert killing.trained == 2, "each epoch is trained once"
    assert ascl_sweep.run([sweep], tmp_path / "undisturbed", executor="local") is End.DONE
    assert results(tmp_path / "killed") == results(tmp_path / "undisturbed")


@pytest.mark.slow  # a process
def test_the_log_of_a_worker_that_is_killed_in_its_first_epoch_is_in_a_remote_store(
    tmp_path: Path,
) -> None:
    config = tiny("ascl", epochs=200, data={"train_size": 2000}).model_dump(mode="json")
    worker = Worker(RunTask("x", 1, config, f"file://{tmp_path}/store", recorded=0))
    log = tmp_path / "store" / "log.txt"
    try:
        wait_until(lambda: log.exists() and "train" in log.read_text(), seconds=60)
    finally:
        worker.signal(signal.SIGKILL)
    results = [m for m in worker.messages() if isinstance(m, RunResult)]
    assert results == [] and not (tmp_path / "store" / "checkpoint.pt").exists()


@pytest.mark.slow  # a process
def test_a_stopped_worker_whose_run_was_moved_ends_and_leaves_the_files_alone(
    tmp_path: Path,
) -> None:
    """SIGSTOP plays the partition of a node."""
    config = tiny("ascl", epochs=200).model_dump(mode="json")
    task = RunTask("x", 1, config, str(tmp_path), recorded=0)
    older = Worker(task)
    messages = older.messages()
    try:
        next(m for m in messages if isinstance(m, RunResult))
        older.signal(signal.SIGSTOP)
        newer = run_task(replace(task, attempt=2))
        for _ in range(3):
            next(newer)
        newer.close()
        before = {path.name: path.read_bytes() for path in tmp_path.glob("[!.l]*")}
        older.signal(signal.SIGCONT)
        results = [m for m in messages if isinstance(m, RunResult)]
    except BaseException:
        older.signal(signal.SIGKILL)
        raise
    assert results[-1].state is RunState.LOST
    assert {path.name: path.read_bytes() for path in tmp_path.glob("[!.l]*")} == before
