"""Code in the processes of Tune's trials. Ray must be imported before this module is."""

import contextlib
import gc
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray import ObjectRef, tune
from ray.exceptions import RayError

from ascl.data.subset import Data
from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.executors.ray import compat
from ascl_sweep.executors.ray.shared_data import PackedData, unpack
from ascl_sweep.executors.ray.train import gpu_name, train_on_workers
from ascl_sweep.executors.worker import (
    Results,
    describe_error,
    run_task,
    started,
)

SHARE_SECONDS = 300.0  # then a run no longer waits for shared images, and loads its own
EARLY_SECONDS, EARLY_FAILURES = 10.0, 2  # a process ends after so many early failures in a row
Report = dict[str, object]
"""Report to Tune: a RunResult as `result`, and as `done` whether it is the last result."""


@dataclass(frozen=True)
class Assignment:
    """Task with its Ray-specific settings; the only entry of a trial's config."""

    task: RunTask
    data: "ObjectRef[PackedData] | None"
    scratch: str


def assignment_of(config: Mapping[str, object]) -> Assignment:
    found = config["assignment"]
    assert isinstance(found, Assignment)
    return found


class OneWorker(tune.Trainable):
    """Trainable of runs with one worker; one process executes several runs in turn.

    A class rather than a function: Tune runs a function in a new thread, and each thread would
    start a new pool of compute threads.
    """

    def setup(self, config: dict[str, object]) -> None:
        self._early_failures = 0
        self._start(config)

    def _start(self, config: dict[str, object]) -> None:
        self._results, self._started = _run(assignment_of(config)), time.monotonic()

    def step(self) -> Report:
        result = next(self._results)
        if result.state is RunState.FAILED and not result.node_fault:
            self._check_process(result.error)
        elif result.metrics is not None:
            self._early_failures = 0
        return _report(result)

    def _check_process(self, error: str | None) -> None:
        """End this process by an exception if one run after the other fails early in it.

        Tune would reuse the process. A faulty process fails faster than others train, so it would
        receive most of the sweep's runs.
        """
        early = time.monotonic() - self._started < EARLY_SECONDS
        self._early_failures = self._early_failures + 1 if early else 0
        if self._early_failures >= EARLY_FAILURES:
            raise RuntimeError(f"{EARLY_FAILURES} runs in a row failed at their start: {error}")

    def reset_config(self, new_config: dict[str, object]) -> bool:
        self.cleanup()
        self._start(new_config)
        return True

    def get_auto_filled_metrics(self, *args: Any, **options: Any) -> Report:
        """Return the fields that Tune adds to each report, without the config to keep it small."""
        added: Report = super().get_auto_filled_metrics(*args, **options)
        return {key: value for key, value in added.items() if key != "config"}

    def cleanup(self) -> None:
        self._results.close()
        gc.collect()
        if torch.cuda.is_available():
            with contextlib.suppress(RuntimeError):  # a failed GPU; the next run reports it
                torch.cuda.empty_cache()


def run_any_workers(config: dict[str, object]) -> None:
    """Trainable of sweeps in which some runs have several workers; one process per trial."""
    assignment = assignment_of(config)
    if assignment.task.workers > 1:
        train_on_workers(assignment.task, assignment.data, assignment.scratch)
        return
    for result in _run(assignment):
        tune.report(_report(result))


def _run(assignment: Assignment) -> Results:
    task, data = assignment.task, assignment.data
    node = str(ray.get_runtime_context().get_node_id())
    device = find_device(node)
    yield started((node,), (device,))
    if device in task.avoid_devices and not task.gpus_per_worker:
        raise RuntimeError("runs keep failing in this process")
    while device in task.avoid_devices:
        time.sleep(1)  # hold the GPU until this process is killed
    yield from run_task(
        task,
        lambda: load_shared(data) if data else None,
        on_progress=compat.make_heartbeat(task.run_id, task.attempt),
        raises=(RayError,),
    )


def find_device(node: str) -> str:
    """Return the name of this process's GPU; without a GPU, the name of the process.

    Does not touch the GPU, which may be faulty and hang.
    """
    gpus, host = ray.get_runtime_context().get_accelerator_ids()["GPU"], socket.gethostname()
    return gpu_name(host, node, gpus[0]) if gpus else f"process {os.getpid()} of {host}"


def _report(result: RunResult) -> Report:
    return {"result": result, "done": result.is_last}


def load_shared(reference: "ObjectRef[PackedData]") -> Data | None:
    """Return the images that are shared between runs; None if the run must load its own."""
    try:
        return unpack(ray.get(reference, timeout=SHARE_SECONDS))
    except RayError as error:
        # The node that loads the images may be faulty, or hang: loading them here may work.
        reason = describe_error(compat.unwrap_error(error))
        os.write(2, f"images could not be shared ({reason}); this run loads its own\n".encode())
        return None
