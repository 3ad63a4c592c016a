"""The controller between a cluster and the store; a script takes the role of the executor."""

import errno
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from rich.console import Console

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.errors import ResourceError
from ascl_sweep.runtime import controller as controlling
from ascl_sweep.runtime import outbox
from ascl_sweep.runtime import placement as placing
from ascl_sweep.runtime.callbacks.console import ConsoleCallback
from ascl_sweep.runtime.cluster import Cluster, Node
from ascl_sweep.runtime.controller import (
    DEATHS,
    LOSSES,
    Controller,
    End,
    SweepFailed,
)
from ascl_sweep.runtime.sweeps import prepare_sweeps
from ascl_sweep.spec.sweep import parse_sweep
from ascl_sweep.store import lease as lock
from ascl_sweep.store import retry as patience
from ascl_sweep.store.filesystem import StoreFiles
from ascl_sweep.store.store import Store
from tests.ascl_sweep.search.test_study import GRID

EPOCHS = 9


class World:
    """A cluster of equal nodes, and a sweep of four runs."""

    def __init__(self, folder: Path, *machines: str, text: str = GRID, gpus: int = 0) -> None:
        self.machines, self.gpus = list(machines), gpus
        self.folder, self.spec = folder, parse_sweep(text, file="it.yaml")
        self.said = io.StringIO()
        self.store = Store(folder / "store")

    def cluster(self) -> Cluster:
        nodes = tuple(Node(name, cpus=1 + self.gpus, gpus=self.gpus) for name in self.machines)
        return Cluster(nodes)

    @contextmanager
    def controller(self) -> Iterator[Controller]:
        with self.store.writer() as writer:
            prepared = prepare_sweeps([self.spec], self.store)
            prepared.history.epochs.update(self.store.epochs())
            console = ConsoleCallback(Console(file=self.said, width=200))
            yield Controller(
                *(prepared.studies[0], prepared.history, self.store, writer),
                *(self.cluster, console),
            )

    def run(self, script: Callable[[Controller], None]) -> End:
        with self.controller() as controller:
            return controller.run(script)

    def states(self) -> list[str]:
        return sorted(row.state for row in self.store.runs().values())


class Worker:
    """Worker of one run on one node."""

    def __init__(self, controller: Controller, machine: str, task: RunTask | None = None) -> None:
        task = task or controller.next_task()
        assert task is not None
        self.controller, self.task, self.machine = controller, task, machine
        self.key = task.run_id, task.attempt

    def begin(self) -> "Worker":
        started = RunResult(RunState.RUNNING, host=self.machine, nodes=(self.machine,))
        assert self.controller.on_result(*self.key, started) is False
        return self

    def epoch(self, epoch: int, seconds: float = 1.0) -> bool:
        state = RunState.DONE if epoch == EPOCHS else RunState.RUNNING
        times = {"train_seconds": seconds, "eval_seconds": 0.0, "images_per_second": 10.0}
        metrics = EpochMetrics(epoch, loss=1.0, lr=0.1, knn_top1=0.5, **times)
        result = RunResult(state, metrics, host=self.machine, device="cpu", torch="2")
        return self.controller.on_result(*self.key, result)

    def progress(self) -> None:
        saved = RunResult(RunState.RUNNING, progress=True, host=self.machine)
        assert self.controller.on_result(*self.key, saved) is False

    def finish(self) -> None:
        for epoch in range(1, EPOCHS + 1):
            self.epoch(epoch)

    def fail(self, error: str = "a dead GPU", rank: int | None = None) -> None:
        failed = RunResult(RunState.FAILED, error=error, rank=rank)
        assert self.controller.on_result(*self.key, failed)

    def die(self) -> None:
        self.controller.on_lost(*self.key, "killed")


def finish_all(controller: Controller, machine: str) -> None:
    while not controller.is_over:
        Worker(controller, machine).begin().finish()


def look(controller: Controller) -> None:
    """Make the controller read the cluster now."""
    controller._read = -1e9
    controller.tick()


def take_back(controller: Controller) -> None:
    """Requeue all live attempts."""
    for run_id in list(controller.attempts):
        controller._requeue(run_id, None)


def test_a_run_is_running_once_its_worker_is_there(tmp_path: Path) -> None:
    world = World(tmp_path, "a")

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a")
        controller.flush()
        assert world.states() == ["planned"]
        worker.begin()
        controller.flush()
        assert world.states() == ["running"]
        worker.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4


def test_a_sweep_that_is_to_end_does_not_wait_for_runs_that_wait_for_a_place(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, "a", "b")

    def script(controller: Controller) -> None:
        trains, waits = Worker(controller, "a").begin(), Worker(controller, "b")
        controller.drain(End.INTERRUPTED, "enough")
        assert controller.is_withdrawn(*waits.key) and not controller.is_withdrawn(*trains.key)
        assert trains.epoch(1), "the run ends after its epoch"
        assert not controller.attempts

    assert world.run(script) is End.INTERRUPTED
    assert set(world.states()) == {"planned"}


def test_machines_that_go_away_are_no_fault_of_their_run(tmp_path: Path) -> None:
    world = World(tmp_path, "m0")

    def script(controller: Controller) -> None:
        first = None
        for turn in range(1, 2 * DEATHS + 1):
            worker = Worker(controller, world.machines[0]).begin()
            first = first or worker.task.run_id
            assert worker.task.run_id == first
            world.machines = [f"m{turn}"]
            worker.die()
            look(controller)
        finish_all(controller, world.machines[0])

    assert world.run(script) is End.DONE


def test_a_run_that_ends_every_machine_is_given_up(tmp_path: Path) -> None:
    world = World(tmp_path, "m0")

    def script(controller: Controller) -> None:
        for turn in range(1, LOSSES + 2):
            worker = Worker(controller, world.machines[0]).begin()
            world.machines = [f"m{turn}"]
            worker.die()
            look(controller)
        finish_all(controller, world.machines[0])

    assert world.run(script) is End.FAILED
    assert world.states() == ["done"] * 3 + ["failed"]


def test_as_many_runs_are_handed_out_as_there_are_machines_while_they_come_and_go(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, "a")

    def script(controller: Controller) -> None:
        first = Worker(controller, "a").begin()
        assert controller.next_task() is None
        world.machines += ["b", "c"]
        look(controller)
        second, third = Worker(controller, "b").begin(), Worker(controller, "c")
        assert controller.next_task() is None
        world.machines.remove("c")
        look(controller)
        assert controller.is_withdrawn(*third.key), "the run had not started, and its node is lost"
        assert not controller.is_withdrawn(*second.key)
        assert controller.next_task() is None
        first.finish()
        again = Worker(controller, "a")
        assert again.key == (third.key[0], 2)
        assert controller.on_result(*third.key, RunResult(RunState.RUNNING)), (
            "a withdrawn attempt is stopped"
        )
        again.begin().finish()
        second.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE


def test_a_run_may_lose_its_machine_as_often_as_it_gets_on_in_between(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b")

    def script(controller: Controller) -> None:
        for epoch in range(1, EPOCHS):
            worker = Worker(controller, "a").begin()
            worker.epoch(epoch)
            worker.die()
        finish_all(controller, "b")

    assert EPOCHS - 1 > DEATHS
    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4


def test_a_run_that_dies_again_and_again_without_getting_on_has_failed(tmp_path: Path) -> None:
    world = World(tmp_path, "a")

    def script(controller: Controller) -> None:
        for _ in range(DEATHS + 1):
            Worker(controller, "a").begin().die()
        finish_all(controller, "a")

    assert world.run(script) is End.FAILED
    assert world.states() == ["done"] * 3 + ["failed"]
    assert "worker process or node died 4 times without making progress (killed)" in (
        world.said.getvalue()
    )


def test_a_failed_run_gets_a_second_try_on_another_machine_and_no_third(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b", "c")

    def script(controller: Controller) -> None:
        first = Worker(controller, "a").begin()
        assert first.task.avoid == ()
        first.fail()
        second = Worker(controller, "b").begin()
        assert second.task.run_id == first.task.run_id
        assert second.task.avoid == ("a",)
        second.fail()
        finish_all(controller, "c")

    assert world.run(script) is End.FAILED
    assert world.states() == ["done"] * 3 + ["failed"]


def test_on_one_machine_a_failure_is_final_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, "a")

    def script(controller: Controller) -> None:
        Worker(controller, "a").begin().fail()
        finish_all(controller, "a")

    assert world.run(script) is End.FAILED
    assert world.states() == ["done"] * 3 + ["failed"]


def test_a_broken_machine_is_named_and_gets_no_more_runs(tmp_path: Path) -> None:
    world = World(tmp_path, "good", "broken0123", text=GRID + "seeds: [0, 1]\n")

    def script(controller: Controller) -> None:
        Worker(controller, "good").begin().finish()
        for i in range(3):
            worker = Worker(controller, "broken0123").begin()
            worker.fail(f"a dead GPU, {i}")
            again = Worker(controller, "good")
            assert again.task.avoid == ("broken0123",)
            again.begin().finish()
        look(controller)
        assert controller.placement.slots == 1
        assert controller.next_task() is not None
        take_back(controller)

    with pytest.raises(ResourceError, match="the executor ended before the sweep did"):
        world.run(script)
    said = world.said.getvalue()
    assert said.count("excluding node broken01…: runs keep failing there") == 1


FULL = "the disk of /tmp on box is full; free disk space there"


def fill_disk(worker: Worker) -> None:
    """Let a run fail because the disk of its node is full."""
    gpu = RunResult(RunState.RUNNING, devices=(f"GPU of {worker.machine}",))
    worker.controller.on_result(*worker.key, gpu)
    full = RunResult(RunState.FAILED, error=FULL, node_fault=True)
    assert worker.controller.on_result(*worker.key, full)


def test_a_full_disk_of_the_only_node_ends_the_sweep_with_one_sentence(tmp_path: Path) -> None:
    world = World(tmp_path, "a", gpus=1)

    def script(controller: Controller) -> None:
        trains = Worker(controller, "a").begin()
        controller.on_result(*trains.key, RunResult(RunState.RUNNING, devices=("GPU 0",)))
        fill_disk(Worker(controller, "a").begin())
        assert controller.is_over and trains.epoch(1), "the other run finishes its epoch"

    with pytest.raises(ResourceError, match=f"^{FULL}; then repeat the command to resume$"):
        world.run(script)
    assert world.states() == ["planned"] * 4
    assert world.run(lambda controller: finish_all(controller, "a")) is End.DONE


def test_a_full_disk_of_a_node_costs_no_run_and_excludes_the_node_not_its_gpu(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, "good", "full0123", gpus=1)

    def script(controller: Controller) -> None:
        Worker(controller, "good").begin().finish()
        for _ in range(3):
            worker = Worker(controller, "full0123").begin()
            fill_disk(worker)
            again = Worker(controller, "good")
            assert again.task.avoid == ("full0123",) and again.task.avoid_devices == ()
            again.begin().finish()

    assert world.run(script) is End.DONE
    said = world.said.getvalue()
    assert said.count("excluding node full0123…") == 1 and "device" not in said
    assert said.count(f"{FULL}; retrying on another node") == 3


def test_a_full_disk_of_every_node_ends_the_sweep(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b")

    def script(controller: Controller) -> None:
        fill_disk(Worker(controller, "a").begin())
        fill_disk(Worker(controller, "b").begin())
        assert controller.is_over and controller.is_idle

    with pytest.raises(ResourceError, match=FULL):
        world.run(script)
    assert world.states() == ["planned"] * 4


def test_a_run_that_fails_everywhere_alike_still_ends_the_sweep(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b", "c")

    def script(controller: Controller) -> None:
        machines = iter("abcabc")
        while not controller.is_over:
            Worker(controller, next(machines)).begin().fail("no data")

    with pytest.raises(SweepFailed, match="no data"):
        world.run(script)


def test_a_run_never_waits_for_machines_other_than_those_that_are_there(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b")

    def script(controller: Controller) -> None:
        Worker(controller, "a").begin().fail()
        again = Worker(controller, "b")
        assert again.task.avoid == ("a",)
        world.machines.remove("b")
        look(controller)
        assert controller.is_withdrawn(*again.key)
        last = Worker(controller, "a").begin()
        assert last.task.avoid == ()
        last.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE


def test_a_cluster_without_machines_is_waited_for_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, "a")
    now = [0.0]
    for module in (controlling, placing):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        worker.epoch(1)
        world.machines.clear()
        worker.die()
        look(controller)
        assert controller.next_task() is None and not controller.is_over
        now[0] = 599.0
        look(controller)
        assert not controller.is_over
        now[0] = 601.0
        look(controller)
        assert controller.is_over and controller.next_task() is None

    with pytest.raises(ResourceError, match="no node has had capacity for a run for 10 minutes"):
        world.run(script)
    assert "failed" not in world.states()
    world.machines.append("a")
    assert world.run(lambda controller: finish_all(controller, "a")) is End.DONE


MIXED = """
resources:
  gpus_per_worker: 0.25
  cpus_per_worker: 0.25
  cases:
    - {when: {encoder.bn_splits: 8}, workers: 8, gpus_per_worker: 1, cpus_per_worker: 1}
"""


def mixed(*splits: int) -> str:
    """Runs of eight workers with a GPU each for bn_splits 8, a quarter of a GPU for the others."""
    base = GRID[: GRID.index("space:")].replace("batch_size: 16", "batch_size: 40")
    return f"{base}space: {{grid: {{encoder.bn_splits: {list(splits)}}}}}\n{MIXED}"


def test_large_and_small_runs_of_one_sweep_share_the_machines(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b", "c", text=mixed(8, 1, 2, 4, 5), gpus=4)

    def script(controller: Controller) -> None:
        large = Worker(controller, "a").begin()
        small = [Worker(controller, "c") for _ in range(4)]
        assert large.task.workers == 8 and large.task.gpus_per_worker == 1
        assert {worker.task.gpus_per_worker for worker in small} == {0.25}
        large.finish()
        for worker in small:
            worker.begin().finish()

    assert world.run(script) is End.DONE
    rows = world.store.runs().values()
    assert sorted(row.workers for row in rows) == [1, 1, 1, 1, 8]


def test_small_runs_do_not_overtake_a_large_one_that_waits_for_its_place(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b", text=mixed(1, 8, 2, 4), gpus=4)

    def script(controller: Controller) -> None:
        first = Worker(controller, "a").begin()
        assert controller.next_task() is None, "fewer than eight whole GPUs are free"
        first.finish()
        large = Worker(controller, "a")
        assert large.task.workers == 8
        world.machines.append("c")
        look(controller)
        assert controller.next_task() is None, "small runs fit, but the large run has not started"
        large.begin()
        Worker(controller, "c").begin().finish()
        large.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE


# --- unreachable remote store -------------------------------------------------------------------


class RemoteWorld(World):
    """World with a remote store that may be unreachable; time advances only in `sleep`."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, text: str = GRID) -> None:
        super().__init__(folder, "a", "b", text=text)
        (folder / "remote").mkdir()
        self.store = Store(SubTreeFileSystem(str(folder / "remote"), LocalFileSystem()))
        self.unreachable, self.requests, self.now = False, 0, 1000.0
        self.error = OSError("no connection")
        patch.setattr(lock, "SETTLE_SECONDS", 0.0)
        clock = Mock(wraps=time, monotonic=lambda: self.now, sleep=self.sleep)
        for module in (controlling, outbox, patience):
            patch.setattr(module, "time", clock)
        for name in ("open", "write", "create", "delete", "delete_folder", "_infos"):
            patch.setattr(StoreFiles, name, self._answering(getattr(StoreFiles, name)))
        self.back_at = float("inf")

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.unreachable &= self.now < self.back_at

    def _answering(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*words: Any, **named: Any) -> Any:
            self.requests += 1
            if self.unreachable:
                raise self.error
            return method(*words, **named)

        return asked

    def tick(self, controller: Controller, seconds: float) -> None:
        """Advance the time, with a tick each second."""
        for _ in range(int(seconds)):
            self.sleep(1)
            controller.tick()


def test_runs_go_on_while_the_store_is_away_and_all_is_saved_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RemoteWorld(tmp_path, monkeypatch)

    def script(controller: Controller) -> None:
        first, second = Worker(controller, "a").begin(), Worker(controller, "b").begin()
        world.tick(controller, 2)
        world.unreachable = True
        first.epoch(1)
        world.tick(controller, 2)
        requests = world.requests
        first.finish()
        second.epoch(1)
        assert controller.next_task() is None, "a worker could not download its checkpoint"
        world.tick(controller, 300)
        assert not controller.is_over
        assert world.requests - requests <= 300 / patience.LONGEST_PAUSE, (
            "a request blocks for seconds"
        )
        world.unreachable = False
        world.tick(controller, patience.LONGEST_PAUSE + 1)
        assert sorted(map(len, world.store.epochs().values())) == [1, EPOCHS]
        second.finish()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4
    said = world.said.getvalue()
    assert (
        said.count("no connection); training continues, results are buffered until the store") == 1
    )
    assert said.count("is back; all results are saved") == 1


def test_a_run_that_fails_while_the_store_is_away_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RemoteWorld(tmp_path, monkeypatch)

    def script(controller: Controller) -> None:
        workers = [Worker(controller, "a").begin(), Worker(controller, "b").begin()]
        world.unreachable = True
        world.tick(controller, 2)
        for worker in workers:
            worker.fail("no connection")
        assert controller.next_task() is None and not controller.is_over
        world.unreachable = False
        world.tick(controller, patience.LONGEST_PAUSE + 1)
        again = Worker(controller, "a")
        assert again.key == (workers[0].key[0], 2) and again.task.avoid == ()
        again.begin().finish()
        finish_all(controller, "b")

    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4


def test_a_run_that_is_silent_while_the_store_is_away_is_not_taken_to_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker may wait for the store as well."""
    text = GRID + "budget: {silence_minutes: 3}\n"
    world = RemoteWorld(tmp_path, monkeypatch, text=text)

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        world.unreachable = True
        worker.epoch(1)
        world.tick(controller, patience.PATIENCE - 60)
        assert not controller.is_withdrawn(*worker.key)
        world.unreachable = False
        world.tick(controller, 170)
        assert not controller.is_withdrawn(*worker.key)
        world.tick(controller, 60)
        assert controller.is_withdrawn(*worker.key), "three minutes after the store is back"
        finish_all(controller, "a")

    assert world.run(script) is End.DONE


def test_a_store_that_stays_away_ends_the_sweep_and_no_run_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RemoteWorld(tmp_path, monkeypatch)

    def script(controller: Controller) -> None:
        worker, other = Worker(controller, "a").begin(), Worker(controller, "b").begin()
        world.unreachable = True
        world.tick(controller, patience.PATIENCE - 1)
        assert not controller.is_over
        other.fail("no connection")
        world.tick(controller, 2 * patience.LONGEST_PAUSE)
        assert controller.is_over and worker.epoch(1), "the run is stopped"

    with pytest.raises(OSError, match="no connection"):
        world.run(script)
    assert world.now < 1000 + 2 * patience.PATIENCE, "it is not waited for twice"
    world.unreachable = False
    world.store._files.delete(lock._lease_name(world.store._files))  # of a process that ended
    assert RunState.FAILED not in world.states()
    assert world.run(lambda controller: finish_all(controller, "a")) is End.DONE


def test_a_store_that_is_unreachable_when_a_sweep_ends_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RemoteWorld(tmp_path, monkeypatch)

    def script(controller: Controller) -> None:
        finish_all(controller, "a")
        world.unreachable, world.back_at = True, world.now + 100

    assert world.run(script) is End.DONE
    assert world.now > 1100 and world.states() == ["done"] * 4
    assert world.said.getvalue().count("no connection); waiting for the store") == 1


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_network_mount_that_fails_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("ascl_sweep.store.network.is_network_folder", lambda folder: True)
    world = RemoteWorld(tmp_path, monkeypatch)
    world.store, world.error = Store(tmp_path / "mounted"), OSError(number, "Stale file handle")

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        world.unreachable, world.back_at = True, world.now + 100
        worker.epoch(1)
        world.tick(controller, 200)
        assert not controller.is_over
        worker.finish()
        finish_all(controller, "a")
        world.unreachable, world.back_at = True, world.now + 100

    assert world.run(script) is End.DONE
    assert world.now > 1300 and world.states() == ["done"] * 4


def test_who_is_asked_to_stop_stops_though_the_store_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RemoteWorld(tmp_path, monkeypatch)
    monkeypatch.setattr(Store, "clear_stop", Mock(side_effect=OSError("no connection")))

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        world.store.request_stop()
        world.tick(controller, 2)
        assert worker.epoch(1), "the run is stopped"

    assert world.run(script) is End.STOPPED


def test_a_saved_part_of_an_evaluation_is_progress(tmp_path: Path) -> None:
    """A run that dies often, each time after it has saved more of its evaluation, still ends."""
    world = World(tmp_path, "a")

    def script(controller: Controller) -> None:
        for _ in range(3 * DEATHS):
            worker = Worker(controller, "a").begin()
            worker.progress()
            worker.die()
        finish_all(controller, "a")

    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4


def test_a_run_that_another_worker_has_taken_over_is_retried(tmp_path: Path) -> None:
    world = World(tmp_path, "a")

    def script(controller: Controller) -> None:
        worker = Worker(controller, "a").begin()
        lost = RunResult(RunState.LOST, error="another worker has taken over the run")
        assert controller.on_result(*worker.key, lost), "the attempt is over"
        finish_all(controller, "a")

    assert world.run(script) is End.DONE
    assert "another worker has taken over the run" in world.said.getvalue()
