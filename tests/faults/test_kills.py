"""Twenty kills of a sweep's driver, workers and raylets, in a random order at random moments."""

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from ascl_sweep.store.store import Store
from tests.faults import gate
from tests.faults.machines import begin, raylet, trainers, undisturbed
from tests.sweeps import (
    GRID,
    epochs_recorded,
    finish,
    kill,
    numbers,
    states,
    wait_until,
    write,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

# A run trains at most two epochs between the starts of two rounds, so ten rounds end before it.
SWEEP = GRID.replace("epochs: 5", "epochs: 13")
AHEAD = 2


class Sweep:
    """A sweep on a cluster with two nodes, and what there is of it to kill."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.random = cluster, random.Random(0)
        self.path, self.store, self.log = write(folder, SWEEP), folder / "store", folder / "log"
        self.gate = folder / "gate"
        self.environment = gate.node_environment(self.gate, every=AHEAD)
        self.nodes = [self.add_node(), self.add_node()]
        self.kills: Counter[str] = Counter()
        self.begin()

    def add_node(self) -> object:
        return self.cluster.add_node(num_cpus=1, env_vars=self.environment)

    def begin(self) -> None:
        self.driver = begin(self.cluster, self.path, self.store, self.log)

    def let_train(self) -> None:
        """Let each run train some epochs beyond those that are recorded."""
        for run_id, epochs in Store(self.store).epochs().items():
            gate.allow(self.gate, run_id, len(epochs) + AHEAD)

    def trainers(self) -> list[int]:
        return [pid for node in self.nodes for pid in trainers(node)]

    def kill(self, victim: str) -> None:
        getattr(self, f"kill_{victim}")()
        self.kills[victim] += 1

    def kill_driver(self) -> None:
        kill(self.driver.pid)
        self.driver.wait()
        self.begin()

    def kill_worker(self) -> None:
        while True:
            wait_until(lambda: bool(self.trainers()), self.log)
            with suppress(ProcessLookupError, IndexError):  # it has just ended with its driver
                kill(self.random.choice(self.trainers()))
                return

    def kill_raylet(self) -> None:
        node = self.random.choice(self.nodes)
        kill(raylet(node))
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.append(self.add_node())


def test_twenty_kills_of_driver_workers_and_raylets_lose_nothing(
    tmp_path: Path, cluster: Cluster
) -> None:
    """In each round, the driver and another process are killed: a run whose worker dies often
    while a driver lives is given up."""
    expected = undisturbed(SWEEP, tmp_path / "undisturbed", "local")
    sweep = Sweep(cluster, tmp_path)
    order, store, log = sweep.random, sweep.store, sweep.log
    rounds = [["driver", other] for other in ("worker", "raylet") * 5]
    order.shuffle(rounds)
    wait_until(lambda: store.exists() and epochs_recorded(store) >= 2, log)
    for first, second in (order.sample(pair, 2) for pair in rounds):
        before = Store(store).epochs()
        sweep.let_train()
        time.sleep(order.uniform(0, 1))  # an epoch takes 0.2 s
        sweep.kill(first)
        time.sleep(order.uniform(0, 8))  # the restart of a driver and its workers takes longer
        sweep.kill(second)
        recorded = sum(map(len, before.values()))
        wait_until(lambda n=recorded: epochs_recorded(store) > n, log)  # type: ignore[misc]
        after = Store(store).epochs()
        assert all(after[run_id][: len(own)] == own for run_id, own in before.items()), (
            "an epoch that was recorded stays recorded and is not trained again"
        )
    assert sweep.kills == {"driver": 10, "worker": 5, "raylet": 5}
    for limit in sweep.gate.glob("[!s]*"):
        limit.unlink()
    assert finish(sweep.driver, log) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected
    wait_until(lambda: not sweep.trainers())
