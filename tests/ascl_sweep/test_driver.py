"""The driver between what a cluster does and what the ledger keeps: no Ray, a script plays it."""

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

from ascl import patience
from ascl_sweep import driver as driving
from ascl_sweep import lock
from ascl_sweep import places as placing
from ascl_sweep.driver import MACHINES, RETRIES, Driver, End, Interrupts, SweepFailed
from ascl_sweep.ledger import Ledger
from ascl_sweep.live import Display
from ascl_sweep.places import Places
from ascl_sweep.room import Cluster, Node, NoResources
from ascl_sweep.spec import spec_of
from ascl_sweep.store import Store
from tests.ascl_sweep.test_agenda import GRID

EPOCHS = 9


class World:
    """A cluster of like machines, and a sweep of four runs on it."""

    def __init__(self, folder: Path, *machines: str, text: str = GRID, gpus: int = 0) -> None:
        self.machines, self.gpus = list(machines), gpus
        self.folder, self.spec = folder, spec_of(text, file="it.yaml")
        self.said = io.StringIO()
        self.ledger = Ledger(folder / "store")

    def cluster(self) -> Cluster:
        nodes = tuple(Node(name, cpus=1 + self.gpus, gpus=self.gpus) for name in self.machines)
        return Cluster(nodes, self.folder, private=False)

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        with self.ledger.writer() as writer:
            yield Driver(
                *(self.spec, self.ledger, writer),
                Display(Console(file=self.said, width=200)),
                Interrupts(),
                share=lambda data: None,
                scratch=self.folder,
                places=Places(self.cluster, self.spec.resources),
            )

    def run(self, script: Callable[[Driver], None]) -> End:
        with self.driver() as driver:
            return driver.run(script)

    def states(self) -> list[str]:
        return sorted(row.state for row in self.ledger.runs().values())


class Worker:
    """Trains what it is handed, on one machine."""

    def __init__(self, driver: Driver, machine: str) -> None:
        task = driver.next()
        assert task is not None
        self.driver, self.task, self.machine = driver, task, machine
        self.key = task["run_id"], task["attempt"]

    def begin(self) -> "Worker":
        begun = {"state": "begun", "host": self.machine, "nodes": [self.machine], "done": False}
        assert self.driver.told(*self.key, begun) is False
        return self

    def epoch(self, epoch: int) -> bool:
        times = {"train_seconds": 1.0, "eval_seconds": 1.0, "images_per_second": 10.0}
        numbers = {"knn_top1": 0.5, "probe_top1": None, "probe_best_top1": None, "loss": 1.0}
        facts = {"host": self.machine, "device": "cpu", "torch": "2", "scored": "test"}
        state = "done" if epoch == EPOCHS else "running"
        told: dict[str, Any] = {"metrics": {"epoch": epoch} | numbers | times, "state": state}
        return self.driver.told(*self.key, told | facts)

    def finish(self) -> None:
        for epoch in range(1, EPOCHS + 1):
            self.epoch(epoch)

    def fail(self, error: str = "a dead GPU") -> None:
        assert self.driver.told(*self.key, {"state": "failed", "error": error, "done": True})

    def die(self) -> None:
        self.driver.lost(*self.key, "killed")


def finish_all(driver: Driver, machine: str) -> None:
    while not driver.over:
        Worker(driver, machine).begin().finish()


def look(driver: Driver) -> None:
    """As if the time had come to look at the cluster again."""
    driver._looked = -1e9
    driver.tick()


def take_back(driver: Driver) -> None:
    """As if nobody had been handed anything."""
    for run_id in list(driver.agenda.running):
        driver._put_back(run_id)


def test_a_run_is_running_once_its_worker_is_there(tmp_path: Path) -> None:
    world = World(tmp_path, "a")

    def script(driver: Driver) -> None:
        worker = Worker(driver, "a")
        driver.flush()
        assert world.states() == ["planned"]
        worker.begin()
        driver.flush()
        assert world.states() == ["running"]
        worker.finish()
        finish_all(driver, "a")

    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4


def test_a_sweep_that_is_to_end_does_not_wait_for_runs_that_wait_for_a_place(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, "a", "b")

    def script(driver: Driver) -> None:
        trains, waits = Worker(driver, "a").begin(), Worker(driver, "b")
        driver.drain(End.INTERRUPTED, "enough")
        assert driver.withdrawn(*waits.key) and not driver.withdrawn(*trains.key)
        assert trains.epoch(1), "it ends with its epoch"
        assert not driver.agenda.running

    assert world.run(script) is End.INTERRUPTED
    assert set(world.states()) == {"planned"}


def test_machines_that_go_away_are_no_fault_of_their_run(tmp_path: Path) -> None:
    world = World(tmp_path, "m0")

    def script(driver: Driver) -> None:
        first = None
        for turn in range(1, 2 * RETRIES + 1):
            worker = Worker(driver, world.machines[0]).begin()
            first = first or worker.task["run_id"]
            assert worker.task["run_id"] == first
            world.machines = [f"m{turn}"]
            worker.die()
            look(driver)
        finish_all(driver, world.machines[0])

    assert world.run(script) is End.DONE


def test_a_run_that_ends_every_machine_is_given_up(tmp_path: Path) -> None:
    world = World(tmp_path, "m0")

    def script(driver: Driver) -> None:
        for turn in range(1, MACHINES + 2):
            worker = Worker(driver, world.machines[0]).begin()
            world.machines = [f"m{turn}"]
            worker.die()
            look(driver)
        finish_all(driver, world.machines[0])

    assert world.run(script) is End.FAILED
    assert world.states() == ["done"] * 3 + ["failed"]


def test_as_many_runs_are_handed_out_as_there_are_machines_while_they_come_and_go(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, "a")

    def script(driver: Driver) -> None:
        first = Worker(driver, "a").begin()
        assert driver.next() is None
        world.machines += ["b", "c"]
        look(driver)
        second, third = Worker(driver, "b").begin(), Worker(driver, "c")
        assert driver.next() is None
        world.machines.remove("c")
        look(driver)
        assert driver.withdrawn(*third.key), "it had not begun, and its machine is gone"
        assert not driver.withdrawn(*second.key)
        assert driver.next() is None
        first.finish()
        again = Worker(driver, "a")
        assert again.key == (third.key[0], 2)
        assert third.driver.told(*third.key, {"state": "begun"}), "what is withdrawn is stopped"
        again.begin().finish()
        second.finish()
        finish_all(driver, "a")

    assert world.run(script) is End.DONE


def test_a_run_may_lose_its_machine_as_often_as_it_gets_on_in_between(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b")

    def script(driver: Driver) -> None:
        for epoch in range(1, EPOCHS):
            worker = Worker(driver, "a").begin()
            worker.epoch(epoch)
            worker.die()
        finish_all(driver, "b")

    assert EPOCHS - 1 > RETRIES
    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4


def test_a_run_that_dies_again_and_again_without_getting_on_has_failed(tmp_path: Path) -> None:
    world = World(tmp_path, "a")

    def script(driver: Driver) -> None:
        for _ in range(RETRIES + 1):
            Worker(driver, "a").begin().die()
        finish_all(driver, "a")

    assert world.run(script) is End.FAILED
    assert world.states() == ["done"] * 3 + ["failed"]
    assert "its process or machine went away 4 times (killed)" in world.said.getvalue()


def test_a_failed_run_gets_a_second_try_on_another_machine_and_no_third(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b", "c")

    def script(driver: Driver) -> None:
        first = Worker(driver, "a").begin()
        assert first.task["avoid"] == []
        first.fail()
        second = Worker(driver, "b").begin()
        assert second.task["run_id"] == first.task["run_id"]
        assert second.task["avoid"] == ["a"]
        second.fail()
        finish_all(driver, "c")

    assert world.run(script) is End.FAILED
    assert world.states() == ["done"] * 3 + ["failed"]


def test_on_one_machine_a_failure_is_final_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, "a")

    def script(driver: Driver) -> None:
        Worker(driver, "a").begin().fail()
        finish_all(driver, "a")

    assert world.run(script) is End.FAILED
    assert world.states() == ["done"] * 3 + ["failed"]


def test_a_broken_machine_is_named_and_gets_no_more_runs(tmp_path: Path) -> None:
    world = World(tmp_path, "good", "broken0123", text=GRID + "seeds: [0, 1]\n")

    def script(driver: Driver) -> None:
        Worker(driver, "good").begin().finish()
        for i in range(3):
            worker = Worker(driver, "broken0123").begin()
            worker.fail(f"a dead GPU, {i}")
            again = Worker(driver, "good")
            assert again.task["avoid"] == ["broken0123"]
            again.begin().finish()
        look(driver)
        assert driver.places.room == 1
        assert driver.next() is not None
        take_back(driver)

    with pytest.raises(NoResources, match="Ray ended before the sweep did"):
        world.run(script)
    said = world.said.getvalue()
    assert said.count("runs keep failing on node broken01…: it is left out") == 1


def test_a_run_that_fails_everywhere_alike_still_ends_the_sweep(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b", "c")

    def script(driver: Driver) -> None:
        machines = iter("abcabc")
        while not driver.over:
            Worker(driver, next(machines)).begin().fail("no data")

    with pytest.raises(SweepFailed, match="no data"):
        world.run(script)


def test_a_run_never_waits_for_machines_other_than_those_that_are_there(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b")

    def script(driver: Driver) -> None:
        Worker(driver, "a").begin().fail()
        again = Worker(driver, "b")
        assert again.task["avoid"] == ["a"]
        world.machines.remove("b")
        look(driver)
        assert driver.withdrawn(*again.key)
        last = Worker(driver, "a").begin()
        assert last.task["avoid"] == []
        last.finish()
        finish_all(driver, "a")

    assert world.run(script) is End.DONE


def test_a_cluster_without_machines_is_waited_for_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, "a")
    now = [0.0]
    for module in (driving, placing):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def script(driver: Driver) -> None:
        worker = Worker(driver, "a").begin()
        worker.epoch(1)
        world.machines.clear()
        worker.die()
        look(driver)
        assert driver.next() is None and not driver.over
        now[0] = 599.0
        look(driver)
        assert not driver.over
        now[0] = 601.0
        look(driver)
        assert driver.over and driver.next() is None

    with pytest.raises(NoResources, match="no room for a run for 10 minutes"):
        world.run(script)
    assert "failed" not in world.states()
    world.machines.append("a")
    assert world.run(lambda driver: finish_all(driver, "a")) is End.DONE


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

    def script(driver: Driver) -> None:
        large = Worker(driver, "a").begin()
        small = [Worker(driver, "c") for _ in range(4)]
        assert large.task["workers"] == 8 and large.task["gpus_per_worker"] == 1
        assert {worker.task["gpus_per_worker"] for worker in small} == {0.25}
        large.finish()
        for worker in small:
            worker.begin().finish()

    assert world.run(script) is End.DONE
    rows = world.ledger.runs().values()
    assert sorted(row.workers for row in rows) == [1, 1, 1, 1, 8]


def test_small_runs_do_not_overtake_a_large_one_that_waits_for_its_place(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b", text=mixed(1, 8, 2, 4), gpus=4)

    def script(driver: Driver) -> None:
        first = Worker(driver, "a").begin()
        assert driver.next() is None, "beside it there are not eight whole GPUs"
        first.finish()
        large = Worker(driver, "a")
        assert large.task["workers"] == 8
        world.machines.append("c")
        look(driver)
        assert driver.next() is None, "there would be room for them, but it has not begun"
        large.begin()
        Worker(driver, "c").begin().finish()
        large.finish()
        finish_all(driver, "a")

    assert world.run(script) is End.DONE


# --- a far store that is away -------------------------------------------------------------------


class FarAway(World):
    """A world whose store is far, and may be away; time passes only as told."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, text: str = GRID) -> None:
        super().__init__(folder, "a", "b", text=text)
        (folder / "far").mkdir()
        self.ledger = Ledger(SubTreeFileSystem(str(folder / "far"), LocalFileSystem()))
        self.away, self.asked, self.now = False, 0, 1000.0
        patch.setattr(lock, "SETTLE_SECONDS", 0.0)
        clock = Mock(wraps=time, monotonic=lambda: self.now, sleep=self.sleep)
        for module in (driving, patience):
            patch.setattr(module, "time", clock)
        for name in ("open", "write", "delete", "delete_folder", "_infos"):
            patch.setattr(Store, name, self._answering(getattr(Store, name)))
        self.back_at = float("inf")

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.away &= self.now < self.back_at

    def _answering(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*words: Any, **named: Any) -> Any:
            self.asked += 1
            if self.away:
                raise OSError("it is away")
            return method(*words, **named)

        return asked

    def tick(self, driver: Driver, seconds: float) -> None:
        """Let time pass, with a tick each second."""
        for _ in range(int(seconds)):
            self.sleep(1)
            driver.tick()


def test_runs_go_on_while_the_store_is_away_and_all_is_saved_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FarAway(tmp_path, monkeypatch)

    def script(driver: Driver) -> None:
        first, second = Worker(driver, "a").begin(), Worker(driver, "b").begin()
        world.tick(driver, 2)
        world.away = True
        first.epoch(1)
        world.tick(driver, 2)
        asked = world.asked
        first.finish()
        second.epoch(1)
        assert driver.next() is None, "a worker could not fetch what is there of its run"
        world.tick(driver, 300)
        assert not driver.over
        assert world.asked - asked <= 300 / patience.LONGEST_PAUSE, "it takes seconds each time"
        world.away = False
        world.tick(driver, patience.LONGEST_PAUSE + 1)
        assert sorted(map(len, world.ledger.epochs().values())) == [1, EPOCHS]
        second.finish()
        finish_all(driver, "a")

    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4
    said = world.said.getvalue()
    assert said.count("it is away; runs go on, and what they come to is kept until") == 1
    assert said.count("answers again: all is saved") == 1


def test_a_run_that_fails_while_the_store_is_away_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FarAway(tmp_path, monkeypatch)

    def script(driver: Driver) -> None:
        workers = [Worker(driver, "a").begin(), Worker(driver, "b").begin()]
        world.away = True
        world.tick(driver, 2)
        for worker in workers:
            worker.fail("it is away")
        assert driver.next() is None and not driver.over
        world.away = False
        world.tick(driver, patience.LONGEST_PAUSE + 1)
        again = Worker(driver, "a")
        assert again.key == (workers[0].key[0], 2) and again.task["avoid"] == []
        again.begin().finish()
        finish_all(driver, "b")

    assert world.run(script) is End.DONE
    assert world.states() == ["done"] * 4


def test_a_store_that_stays_away_ends_the_sweep_and_no_run_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FarAway(tmp_path, monkeypatch)

    def script(driver: Driver) -> None:
        worker, other = Worker(driver, "a").begin(), Worker(driver, "b").begin()
        world.away = True
        world.tick(driver, patience.PATIENCE - 1)
        assert not driver.over
        other.fail("it is away")
        world.tick(driver, 2 * patience.LONGEST_PAUSE)
        assert driver.over and worker.epoch(1), "it is stopped"
        world.back_at = world.now + 60

    assert world.run(script) is End.NO_DISK
    assert world.states() == ["lost", "planned", "planned", "planned"]
    assert world.run(lambda driver: finish_all(driver, "a")) is End.DONE


def test_a_store_that_is_away_when_a_sweep_begins_or_ends_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FarAway(tmp_path, monkeypatch)

    def go_away() -> None:
        world.away, world.back_at = True, world.now + 100

    def script(driver: Driver) -> None:
        finish_all(driver, "a")
        go_away()

    with world.driver() as driver:  # whose lock is held while sweeps come and go
        go_away()
        assert driver.run(script) is End.DONE
    assert world.now > 1200 and world.states() == ["done"] * 4
    assert world.said.getvalue().count("it is away; waiting for it") == 2


def test_who_is_asked_to_stop_stops_though_the_store_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FarAway(tmp_path, monkeypatch)
    monkeypatch.setattr(Ledger, "clear_stop", Mock(side_effect=OSError("it is away")))

    def script(driver: Driver) -> None:
        worker = Worker(driver, "a").begin()
        world.ledger.request_stop()
        world.tick(driver, 2)
        assert worker.epoch(1), "it is stopped"

    assert world.run(script) is End.STOPPED
