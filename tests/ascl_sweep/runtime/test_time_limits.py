"""No run holds up a sweep: hung runs are killed, draining ends, draining nodes are left."""

import math
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from ascl_sweep.contracts import RunResult, RunState
from ascl_sweep.runtime import controller as controlling
from ascl_sweep.runtime import placement as placing
from ascl_sweep.runtime.cluster import Cluster, Node
from ascl_sweep.runtime.controller import Controller, End
from tests.ascl_sweep.runtime.test_controller import (
    Worker,
    World,
    finish_all,
    look,
    take_back,
)
from tests.ascl_sweep.search.test_study import GRID

MINUTE = 60.0


class Timed(World):
    """World whose time advances only in `wait`; its nodes may drain, its clock may be set."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, *machines: str, text: str = GRID
    ) -> None:
        super().__init__(folder, *machines, text=text)
        self.now = 1000.0
        self.clock_error = 0.0
        self.draining: dict[str, float] = {}
        wall = lambda: self.now + self.clock_error  # noqa: E731
        clock = Mock(wraps=time, monotonic=lambda: self.now, time=wall)
        for module in (controlling, placing):
            patch.setattr(module, "time", clock)

    def cluster(self) -> Cluster:
        return Cluster(tuple(Node(m, 1, 0, self.draining.get(m)) for m in self.machines))

    def wait(self, controller: Controller, seconds: float) -> None:
        """Advance the time, with a tick about every second."""
        end = self.now + seconds
        while self.now < end:
            self.now += min(1.01, end - self.now)
            controller.tick()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Timed:
    return Timed(tmp_path, monkeypatch, "a", "b")


def test_a_run_that_hangs_is_killed_and_retried(world: Timed) -> None:
    def script(controller: Controller) -> None:
        hangs, works = Worker(controller, "a").begin(), Worker(controller, "b").begin()
        for _ in range(14):
            world.wait(controller, MINUTE)
            controller.on_heartbeat(*works.key)
        assert not controller.is_withdrawn(*hangs.key)
        assert controller.silent_attempts() == [hangs.key]
        world.wait(controller, 2 * MINUTE)
        assert controller.is_withdrawn(*hangs.key), "the executor kills its process"
        assert not controller.is_withdrawn(*works.key)
        again = Worker(controller, "a").begin()
        assert again.key == (hangs.key[0], 2)
        again.finish()
        works.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE
    assert "killed: no progress for 15 minutes" in world.said.getvalue()


def test_a_run_that_always_hangs_has_failed_and_the_row_says_why(world: Timed) -> None:
    def script(controller: Controller) -> None:
        for _ in range(controlling.DEATHS + 1):
            Worker(controller, "a").begin()
            world.wait(controller, 16 * MINUTE)
        finish_all(controller, "a")

    assert world.run(script) is End.FAILED
    (failed,) = [r for r in world.store.runs().values() if r.state is RunState.FAILED]
    assert failed.error and "(killed: no progress for 15 minutes)" in failed.error


def test_a_run_that_waits_for_capacity_may_wait_for_hours(world: Timed) -> None:
    def script(controller: Controller) -> None:
        waits, works = Worker(controller, "a"), Worker(controller, "b").begin()
        seen = 0
        for _ in range(60):
            world.wait(controller, MINUTE)
            controller.on_heartbeat(*works.key)
            if waits.key in controller.silent_attempts():
                seen += 1
                controller.on_heartbeat(*waits.key)  # the executor knows that it waits
                assert waits.key not in controller.silent_attempts()
        assert seen == 7, "the executor is not asked all the time"
        assert not controller.is_withdrawn(*waits.key)
        waits.begin().finish()
        works.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE


def test_a_process_that_was_started_and_reports_nothing_is_killed_and_its_node_avoided(
    world: Timed,
) -> None:
    def script(controller: Controller) -> None:
        hangs, works = Worker(controller, "a"), Worker(controller, "b").begin()
        world.wait(controller, 8 * MINUTE)
        controller.on_heartbeat(*works.key)
        assert controller.silent_attempts() == [hangs.key]
        # The executor knows the node of its process.
        started = RunResult(RunState.RUNNING, nodes=("a",))
        assert not controller.on_result(*hangs.key, started)
        for _ in range(14):
            world.wait(controller, MINUTE)
            controller.on_heartbeat(*works.key)
        assert not controller.is_withdrawn(*hangs.key)
        world.wait(controller, 2 * MINUTE)
        assert controller.is_withdrawn(*hangs.key), "the executor kills its process"
        again = Worker(controller, "b")
        assert again.key == (hangs.key[0], 2) and again.task.avoid == ("a",)
        works.finish()
        again.begin().finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE
    assert "killed: no progress for 15 minutes" in world.said.getvalue()


def test_the_first_result_of_a_worker_replaces_the_nodes_that_the_executor_reported(
    world: Timed,
) -> None:
    def script(controller: Controller) -> None:
        worker = Worker(controller, "a")
        controller.on_result(*worker.key, RunResult(RunState.RUNNING, nodes=("b",)))
        worker.begin()
        assert controller.attempts[worker.key[0]].nodes == ("a",)
        worker.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE
    assert world.said.getvalue().count(f"start {next(iter(world.store.runs()))}") == 1


def test_runs_with_long_epochs_may_be_silent_for_ten_of_them(world: Timed) -> None:
    def script(controller: Controller) -> None:
        slow = Worker(controller, "a").begin()
        for epoch in (1, 2, 3):
            slow.epoch(epoch, seconds=3 * MINUTE)
        new = Worker(controller, "b").begin()
        world.wait(controller, 29 * MINUTE)
        assert not controller.is_withdrawn(*slow.key)
        assert not controller.is_withdrawn(*new.key), "before its first epoch: as the other runs"
        world.wait(controller, 2 * MINUTE)
        assert controller.is_withdrawn(*slow.key) and controller.is_withdrawn(*new.key)
        finish_all(controller, "a")

    assert world.run(script) is End.DONE


def test_a_driver_that_was_stopped_does_not_kill_its_runs(world: Timed) -> None:
    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        controller.tick()
        world.now += 3600  # e.g. SIGSTOP
        world.wait(controller, MINUTE)
        assert not controller.is_withdrawn(*worker.key)
        worker.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE


def test_the_limit_of_silence_is_a_key_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Timed(tmp_path, monkeypatch, "a", text=GRID + "budget: {silence_minutes: 2}\n")

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        world.wait(controller, 2.1 * MINUTE)
        assert controller.is_withdrawn(*worker.key)
        finish_all(controller, "a")

    assert world.run(script) is End.DONE


def test_a_sweep_that_drains_does_not_wait_for_a_run_that_hangs(world: Timed) -> None:
    def script(controller: Controller) -> None:
        slow, hangs = Worker(controller, "a").begin(), Worker(controller, "b").begin()
        slow.epoch(1, seconds=2 * MINUTE)
        hangs.epoch(1, seconds=0.5)
        controller.drain(End.INTERRUPTED, "enough")
        world.wait(controller, MINUTE - 1)
        assert not controller.is_withdrawn(*hangs.key)
        world.wait(controller, 3)
        assert controller.is_withdrawn(*hangs.key), "two of its epochs, at least a minute"
        assert not controller.is_withdrawn(*slow.key)
        world.wait(controller, 2 * MINUTE)
        assert not controller.is_withdrawn(*slow.key)
        assert slow.epoch(2, seconds=2 * MINUTE) and controller.is_idle

    assert world.run(script) is End.INTERRUPTED
    assert set(world.states()) == {"planned"}


def test_hours_are_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Timed(tmp_path, monkeypatch, "a", text=GRID + "budget: {hours: 2}\n")

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        for epoch in range(1, 6):
            world.wait(controller, 5 * MINUTE)
            worker.epoch(epoch, seconds=5 * MINUTE)
        for _ in range(84):
            world.wait(controller, MINUTE)
            controller.on_heartbeat(*worker.key)
        assert not controller.draining
        world.wait(controller, 2 * MINUTE)
        assert controller.draining is End.BUDGET, "two epochs before the end"
        for _ in range(8):
            world.wait(controller, MINUTE)
            controller.on_heartbeat(*worker.key)
        assert not controller.is_idle
        world.wait(controller, 1.1 * MINUTE)
        assert controller.is_idle and world.now - 1000 < 7200 + 10

    assert world.run(script) is End.BUDGET


def test_a_draining_node_is_no_capacity_and_its_run_moves_after_its_epoch(world: Timed) -> None:
    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        worker.epoch(1)
        world.draining["a"] = math.inf  # `ray drain-node` without a deadline
        look(controller)
        assert controller.placement.slots == 1
        other = Worker(controller, "b")
        assert other.task.avoid == ("a",), "Tune would reuse the process on the draining node"
        assert controller.next_task() is None
        world.wait(controller, MINUTE)
        assert not controller.is_withdrawn(*worker.key), "it finishes its epoch"
        assert worker.epoch(2) and controller.is_withdrawn(*worker.key)
        other.begin().finish()
        again = Worker(controller, "b").begin()
        assert again.key == (worker.key[0], 2) and again.task.recorded == 2
        again.finish()
        finish_all(controller, "b")

    assert world.run(script) is End.DONE
    assert "moved off a draining node" in world.said.getvalue()


def test_a_run_leaves_a_node_within_20_seconds_of_a_short_notice(world: Timed) -> None:
    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        world.wait(controller, 1)
        world.draining["a"] = world.now + 30
        world.wait(controller, 20)
        assert controller.is_withdrawn(*worker.key)
        for _ in range(20):  # as often as nodes are preempted
            assert Worker(controller, "b").begin().task.run_id == worker.key[0]
            world.draining = {"b": world.now + 1}
            look(controller)
            world.wait(controller, 2)
            world.draining = {"a": world.now + 1}
            look(controller)
        take_back(controller)
        finish_all(controller, "b")

    assert world.run(script) is End.DONE


@pytest.mark.parametrize("notice", [120.0, math.inf])
@pytest.mark.parametrize(
    ("seconds", "done", "at_once"),
    [
        (1, 0.2, False),
        (10 * MINUTE, 2 * MINUTE, True),
        (10 * MINUTE, 9 * MINUTE, False),
        (None, 1, True),
    ],
)
def test_a_run_moves_at_once_if_its_epoch_does_not_fit_in_the_notice(
    world: Timed, notice: float, seconds: float | None, done: float, at_once: bool
) -> None:
    """Training for the rest of the notice would be in vain. AWS gives a notice of two minutes."""

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        if seconds is not None:
            world.wait(controller, seconds)
            worker.epoch(1, seconds)
        world.wait(controller, done)
        world.draining["a"] = world.now + notice
        world.wait(controller, 8)
        assert controller.is_withdrawn(*worker.key) == at_once
        if seconds is not None and not at_once:
            world.wait(controller, max(0, seconds - done - 8))
            assert worker.epoch(2, seconds) and controller.is_withdrawn(*worker.key)
        again = Worker(controller, "b")
        assert again.task.recorded == (0 if seconds is None else 1 if at_once else 2)
        again.begin().finish()
        finish_all(controller, "b")

    assert world.run(script) is End.DONE
    assert world.said.getvalue().count("moved off a draining node") == 1


def test_a_run_moves_once_it_has_saved_a_part_of_its_last_evaluation(world: Timed) -> None:
    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        worker.epoch(1)
        world.draining["a"] = math.inf
        look(controller)
        saved = RunResult(RunState.RUNNING, progress=True)
        assert controller.on_result(*worker.key, saved) and controller.is_withdrawn(*worker.key)
        finish_all(controller, "b")

    assert world.run(script) is End.DONE


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_run_leaves_a_draining_node_in_time_though_the_clock_is_set(
    world: Timed, hours: int
) -> None:
    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        worker.epoch(1)
        world.draining["a"] = world.now + 60
        look(controller)
        world.clock_error = hours * 3600.0
        world.wait(controller, 40)
        assert not controller.is_withdrawn(*worker.key), "the node lasts for 20 more seconds"
        world.wait(controller, 10)
        assert controller.is_withdrawn(*worker.key)
        world.draining.clear()
        look(controller)
        finish_all(controller, "b")

    assert world.run(script) is End.DONE


@pytest.mark.parametrize("hours", [-1, 1])
def test_limits_of_time_do_not_depend_on_the_clock_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    text = GRID + "budget: {hours: 0.5, silence_minutes: 5}\n"
    world = Timed(tmp_path, monkeypatch, "a", "b", text=text)

    def script(controller: Controller) -> None:
        hangs, works = Worker(controller, "a").begin(), Worker(controller, "b").begin()
        for minute in range(1, 27):
            world.clock_error = hours * 3600.0 * (minute % 2)
            world.wait(controller, MINUTE)
            controller.on_heartbeat(*works.key)
            assert controller.is_withdrawn(*hangs.key) == (minute > 5), "after 5 minutes"
        assert not controller.draining
        for _ in range(4):
            world.wait(controller, MINUTE)
            controller.on_heartbeat(*works.key)
        assert controller.draining is End.BUDGET
        world.wait(controller, 2 * MINUTE)

    assert world.run(script) is End.BUDGET


def test_a_process_that_dies_on_a_draining_node_is_no_fault_of_its_run(world: Timed) -> None:
    def script(controller: Controller) -> None:
        for _ in range(controlling.DEATHS + 2):
            world.draining.clear()
            look(controller)
            worker = Worker(controller, "a").begin()
            world.draining["a"] = math.inf
            worker.die()
            assert not controller.placement.health.avoided_by(worker.key[0])
        world.draining.clear()
        look(controller)
        finish_all(controller, "a")

    assert world.run(script) is End.DONE
