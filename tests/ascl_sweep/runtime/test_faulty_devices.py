"""One GPU of many is faulty: the sweep loses neither runs nor the other GPUs."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.runtime import controller as controlling
from ascl_sweep.runtime import outbox
from ascl_sweep.runtime import placement as placing
from ascl_sweep.runtime.controller import Controller, End, SweepFailed
from tests.ascl_sweep.runtime.test_controller import Worker, World, look
from tests.ascl_sweep.search.test_study import GRID

GPUS = 8
STEPS = 40  # per epoch of a healthy GPU; a faulty GPU fails in the first step
RUNS = GRID + "seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]\n"  # 48 runs
Fails = Callable[["Trial"], bool]
"""Whether a run fails in its next step."""


class Trial:
    """A run on some GPUs of the node, one for each of its workers."""

    def __init__(self, box: "Box", controller: Controller, task: RunTask) -> None:
        self.box, self.controller, self.task = box, controller, task
        self.gpus = [box.free.pop(0) for _ in range(task.workers)]  # as Ray: the first free ones
        box.starts.update(self.gpus)
        self.worker = Worker(controller, "node", task)
        self.is_held = not set(self.gpus).isdisjoint(task.avoid_devices)
        self.steps = 0
        nodes = ("node",) * task.workers
        first = RunResult(RunState.RUNNING, nodes=nodes, devices=tuple(self.gpus))
        stop = controller.on_result(*self.worker.key, first)
        assert not (stop and self.is_held), "a worker that holds its GPU stays"

    def step(self) -> None:
        """Train one step, or fail."""
        if self.is_held or self.controller.is_withdrawn(*self.worker.key):
            return
        if self.box.fails(self):
            self._fail()
        else:
            self.controller.on_heartbeat(*self.worker.key)
            self.steps += 1
            if self.steps % STEPS == 0:
                self.worker.epoch(self.steps // STEPS)

    def _fail(self) -> None:
        if self.box.failure == "hang":
            return
        if self.box.failure == "death":
            self.worker.die()
        else:
            bad = [rank for rank, gpu in enumerate(self.gpus) if gpu in ("GPU-3", "GPU-4")]
            rank = next(iter(bad), 0) if len(self.gpus) > 1 else None
            self.worker.fail("RuntimeError: cuDNN error", rank)


class Box(World):
    """A sweep of 48 runs on one node with eight GPUs."""

    def __init__(
        self, folder: Path, fails: Fails, failure: str = "error", *, workers: int = 1
    ) -> None:
        super().__init__(folder, "node", text=RUNS, gpus=GPUS)
        wanted = {"gpus_per_worker": 1, "workers": workers}
        resources = self.spec.resources.model_copy(update=wanted)
        self.spec = self.spec.model_copy(update={"resources": resources})
        self.fails, self.failure = fails, failure
        self.free = [f"GPU-{i}" for i in range(GPUS)]
        self.trials: list[Trial] = []
        self.starts: Counter[str] = Counter()
        self.most_held = 0

    def train(self) -> End:
        def script(controller: Controller) -> None:
            for step in range(100_000):
                if controller.is_over and controller.is_idle:
                    return
                for trial in [t for t in self.trials if controller.is_withdrawn(*t.worker.key)]:
                    self.trials.remove(trial)
                    self.free = sorted(self.free + trial.gpus)
                self._start_all(controller)
                for trial in self.trials:
                    trial.step()
                self.held_at_end = sum(trial.is_held for trial in self.trials)
                self.most_held = max(self.most_held, self.held_at_end)
                self.pass_time(controller, step)
            raise AssertionError("the sweep does not end")

        return self.run(script)

    def pass_time(self, controller: Controller, step: int) -> None:
        if step % 10 == 0:
            look(controller)

    def _start_all(self, controller: Controller) -> None:
        while controller.placement.has_free_slot:
            task = controller.next_task()
            if task is None:
                return
            self.trials.append(Trial(self, controller, task))


class TimedBox(Box):
    """A box in which each step takes five seconds."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *args: Any, **options: Any) -> None:
        super().__init__(folder, *args, **options)
        self.now = 0.0
        clock = Mock(wraps=time, monotonic=lambda: self.now)
        for module in (controlling, placing, outbox):
            patch.setattr(module, "time", clock)
        patch.setattr(outbox, "FLUSH_SECONDS", 1000.0)

    def pass_time(self, controller: Controller, step: int) -> None:
        self.now += 5
        controller.tick()


def on_gpu(*names: str) -> Fails:
    return lambda trial: not {*names}.isdisjoint(trial.gpus)


@pytest.mark.parametrize("failure", ["error", "death"])
def test_one_faulty_gpu_of_eight_costs_no_run(tmp_path: Path, failure: str) -> None:
    box = Box(tmp_path, on_gpu("GPU-3"), failure)
    assert box.train() is End.DONE
    assert box.states() == ["done"] * 48
    assert box.starts["GPU-3"] <= 5, "the GPU is excluded after a few failures, and then held"
    assert box.said.getvalue().count("excluding device GPU-3: runs keep failing there") == 1
    assert box.most_held == 1


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("failure", ["error", "death"])
def test_one_faulty_gpu_costs_no_run_of_several_workers(
    tmp_path: Path, workers: int, failure: str
) -> None:
    """The rank that failed is known from its error, but not if its process died."""
    box = Box(tmp_path, on_gpu("GPU-3"), failure, workers=workers)
    assert box.train() is End.DONE
    assert box.states() == ["done"] * 48
    assert box.starts["GPU-3"] <= 5
    assert box.said.getvalue().count("excluding device GPU-3: runs keep failing there") == 1
    assert box.most_held == 1, "the other runs keep the node's other GPUs"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gpu_that_hangs_when_it_is_initialized_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Its runs report where they have started, and nothing more."""
    box = TimedBox(tmp_path, monkeypatch, on_gpu("GPU-3"), "hang", workers=workers)
    assert box.train() is End.DONE
    assert box.states() == ["done"] * 48
    assert box.starts["GPU-3"] <= 5
    assert box.said.getvalue().count("excluding device GPU-3: runs keep failing there") == 1
    assert "excluding node" not in box.said.getvalue()


def test_a_gpu_that_fails_later_is_excluded_as_well(tmp_path: Path) -> None:
    box = Box(tmp_path, lambda trial: on_gpu("GPU-0")(trial) and box.starts["GPU-0"] > 3, "death")
    assert box.train() is End.DONE
    assert box.states() == ["done"] * 48


@pytest.mark.parametrize("workers", [1, 2])
def test_two_faulty_gpus_convict_no_run(tmp_path: Path, workers: int) -> None:
    box = Box(tmp_path, on_gpu("GPU-3", "GPU-4"), workers=workers)
    assert box.train() is End.DONE
    assert box.states() == ["done"] * 48


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("failure", ["error", "death"])
def test_a_faulty_run_fails_and_excludes_no_gpu(tmp_path: Path, failure: str, workers: int) -> None:
    bad: list[str] = []

    def fails(trial: Trial) -> bool:
        bad.extend([] if bad else [trial.task.run_id])
        return trial.task.run_id == bad[0]

    box = Box(tmp_path, fails, failure, workers=workers)
    assert box.train() is End.FAILED
    assert box.states() == ["done"] * 47 + ["failed"]
    assert box.held_at_end == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_runs_that_fail_on_every_gpu_still_end_the_sweep(tmp_path: Path, workers: int) -> None:
    box = Box(tmp_path, lambda trial: True, workers=workers)
    with pytest.raises(SweepFailed, match="cuDNN"):
        box.train()
    assert box.starts.total() <= 3 * GPUS * workers


def test_the_only_gpu_is_not_excluded(tmp_path: Path) -> None:
    world = World(tmp_path, "node")

    def script(controller: Controller) -> None:
        for failures in (3, 3, 0, 0):
            for turn in range(failures + 1):
                worker = Worker(controller, "node").begin()
                here = RunResult(RunState.RUNNING, devices=("GPU-0",))
                assert not controller.on_result(*worker.key, here)
                worker.finish() if turn == failures else worker.die()

    assert world.run(script) is End.DONE
    assert "excluding" not in world.said.getvalue()


def test_a_held_gpu_that_is_lost_with_its_process_is_free_again(tmp_path: Path) -> None:
    world = World(tmp_path, "node", "other", text=RUNS)

    def script(controller: Controller) -> None:
        placement = controller.placement
        Worker(controller, "other").begin().epoch(1)
        for i in range(3):
            placement.devices.on_death(f"run {i}", ["bad"])
        placement.devices.on_progress(["good"])
        worker = Worker(controller, "node").begin()
        assert worker.task.avoid_devices == ("bad",)
        controller.on_result(*worker.key, RunResult(RunState.RUNNING, devices=("bad",)))
        look(controller)
        assert placement.slots == 1 and not controller.is_withdrawn(*worker.key)
        worker.die()
        look(controller)
        assert placement.slots == 2
        for run_id in list(controller.attempts):
            controller._finish(run_id, RunState.PLANNED)
        controller.draining = End.STOPPED

    assert world.run(script) is End.STOPPED
