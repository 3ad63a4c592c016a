"""A worker that replays a learning curve instead of training one; in all else it is `OneWorker`."""

import math
import os
import random
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ascl import worker
from ascl.train import EpochMetrics
from ascl.worker import Message, OneWorker

PACE = "ASCL_REPLAY_SECONDS"  # the environment's variable for how long an epoch takes
NOTES = "ASCL_REPLAY_NOTES"  # for the folder in which workers note what they did when
PLACES = "ASCL_REPLAY_PLACES"  # and for how many there are to be before the first run begins
PATIENCE = 900.0  # seconds, for those
SPREAD = 0.1  # runs take 0.9 to 1.1 times as long: they do not march in step


class Replayed(OneWorker):
    """Takes the time that training would, notes when, and sends what training would send."""

    def setup(self, config: dict[str, Any]) -> None:
        path = Path(os.environ[NOTES], f"{os.getpid()}.txt")
        self._notes = path.open("a", buffering=1)
        self._others_are_there = False
        super().setup(config)

    @staticmethod
    def _told(task: Mapping[str, Any]) -> Generator[Message, None, None]:
        yield worker.begun([worker.node_id()])
        yield from messages(task)

    def step(self) -> Message:
        self._wait_for_the_others()
        start = time.time()
        message = super().step()
        epoch = message.get("metrics", {}).get("epoch", 0)
        self._notes.write(f"{self.config['run_id']} {epoch} {start:.6f} {time.time():.6f}\n")
        return message

    def _wait_for_the_others(self) -> None:
        """On a cluster machines start their processes side by side, here one machine starts all.

        Meanwhile the first runs would end, and Tune would take their processes for runs that wait
        for one of their own, which then ends as soon as it is there.
        """
        end = time.time() + PATIENCE
        while not self._others_are_there and time.time() < end:
            self._others_are_there = len(os.listdir(os.environ[NOTES])) >= int(os.environ[PLACES])
            if not self._others_are_there:
                time.sleep(0.5)


def messages(task: Mapping[str, Any]) -> Generator[Message, None, None]:
    """A message per epoch, at the pace that the environment says."""
    run_id, epochs = task["run_id"], task["config"]["epochs"]
    host = worker.begun([])["host"]
    facts = {"host": host, "device": "replayed", "torch": "none", "scored": "test", "note": None}
    seconds = float(os.environ[PACE]) * random.Random(run_id).uniform(1 - SPREAD, 1 + SPREAD)
    for epoch in range(task["recorded"] + 1, epochs + 1):
        metrics = asdict(measured(run_id, epoch, epochs, seconds))
        time.sleep(seconds)
        yield worker._told(epoch, metrics, epochs) | facts


def measured(run_id: str, epoch: int, epochs: int, seconds: float) -> EpochMetrics:
    """An epoch of a made-up curve, which rises as learned ones do; the same for the same run."""
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
