"""A worker that replays a synthetic learning curve instead of training; otherwise `OneWorker`."""

import math
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import ray

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.executors.ray.trainable import OneWorker, Report
from ascl_sweep.executors.worker import Results, started

# Environment variables.
SECONDS = "ASCL_REPLAY_SECONDS"  # mean duration of an epoch
LOGS = "ASCL_REPLAY_LOGS"  # folder of the workers' logs
SLOTS = "ASCL_REPLAY_SLOTS"  # number of workers that must exist before the first run starts

START_TIMEOUT = 900.0  # seconds to wait for those workers
SPREAD = 0.1  # epochs of a run take 0.9 to 1.1 times as long, so that runs do not synchronize


class Replayed(OneWorker):
    """Send the messages of a training run at its pace, and log the time of each."""

    def setup(self, config: dict[str, Any]) -> None:
        path = Path(os.environ[LOGS], f"{os.getpid()}.txt")
        self._log = path.open("a", buffering=1)
        self._all_started = False
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._take(new_config)
        return True

    def _take(self, config: dict[str, Any]) -> None:
        self._task: RunTask = config["assignment"].task
        self._results = replay(self._task)

    def step(self) -> Report:
        self._wait_for_all_workers()
        start = time.time()
        report = super().step()
        metrics = report["result"].metrics
        epoch = metrics.epoch if metrics else 0
        self._log.write(f"{self._task.run_id} {epoch} {start:.6f} {time.time():.6f}\n")
        return report

    def _wait_for_all_workers(self) -> None:
        """Wait until every slot has a worker process.

        The machines of a cluster start their processes in parallel, but here one machine starts all
        of them. Without this wait, the first runs would end during the startup. Tune would reuse
        their processes for runs whose own process is still starting, and would then end that
        process as soon as it is ready.
        """
        end = time.time() + START_TIMEOUT
        while not self._all_started and time.time() < end:
            self._all_started = len(os.listdir(os.environ[LOGS])) >= int(os.environ[SLOTS])
            if not self._all_started:
                time.sleep(0.5)


def replay(task: RunTask) -> Results:
    """Yield one result per epoch, at the pace set in the environment."""
    yield started((str(ray.get_runtime_context().get_node_id()),))
    epochs, host = task.config["epochs"], socket.gethostname()
    pace = random.Random(task.run_id).uniform(1 - SPREAD, 1 + SPREAD)
    seconds = float(os.environ[SECONDS]) * pace
    for epoch in range(task.recorded + 1, epochs + 1):
        time.sleep(seconds)
        yield RunResult(
            RunState.DONE if epoch == epochs else RunState.RUNNING,
            synthetic_metrics(task.run_id, epoch, epochs, seconds),
            host=host,
            device="replayed",
            torch="none",
        )


def synthetic_metrics(run_id: str, epoch: int, epochs: int, seconds: float) -> EpochMetrics:
    """Return an epoch of a synthetic learning curve, determined by the run's id."""
    best = random.Random(run_id).uniform(0.5, 0.9)
    noise = random.Random(f"{run_id} {epoch}").gauss(0, 0.005)
    knn = best * (1 - 0.8 * math.exp(-4 * epoch / epochs)) + noise
    return EpochMetrics(
        epoch=epoch,
        loss=7 - 3 * knn,
        lr=0.03 * (1 + math.cos(math.pi * epoch / epochs)),
        knn_top1=knn,
        confidence=knn / 2,
        effective_neighbours=1 + 3 * knn,
        purity=knn,
        neighbour_top1=knn - noise,
        spread=0.9,
        train_seconds=0.9 * seconds,
        eval_seconds=0.1 * seconds,
        images_per_second=50_000 / seconds,
    )
