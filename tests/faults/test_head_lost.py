"""The head of a cluster is lost, with the driver or without: a new driver resumes the sweep."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from ascl_sweep.store.store import Store
from tests.faults import gate
from tests.faults.machines import Numbers, start_cluster, trainers, undisturbed
from tests.s3 import S3, serving
from tests.sweeps import (
    GRID,
    environment,
    epochs_recorded,
    finish,
    numbers,
    start,
    states,
    wait_until,
    write,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BEFORE = 3  # epochs of each of the first two runs before the head is lost
# The same command, but it observes for 5 seconds instead of 90 that the lease is not renewed.
IMPATIENT = """
from ascl_sweep.cli import main
from ascl_sweep.store import lease

lease.STALE_SECONDS = 5.0
main()
"""


@pytest.fixture
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    yield from serving(tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    return undisturbed(GRID, tmp_path_factory.mktemp("undisturbed") / "sweep", "local")


def head_processes(cluster: Cluster) -> dict[str, int]:
    """Return the processes of the head by name."""
    daemons = cluster.head_node.all_processes
    return {name: process.process.pid for name, (process,) in daemons.items()}


def signal_head(
    cluster: Cluster, driver: "subprocess.Popen[bytes]", number: signal.Signals
) -> None:
    for pid in [driver.pid, *head_processes(cluster).values()]:
        os.kill(pid, number)


def start_impatient(*words: object, log: Path) -> "subprocess.Popen[bytes]":
    """Start the command with a driver that soon takes over the lease."""
    with log.open("ab") as out:
        command = [sys.executable, "-c", IMPATIENT, *map(str, words)]
        # Ray ends a driver whose head does not answer, by default after a minute.
        env = environment() | {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
        return subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)


def test_a_new_driver_resumes_the_sweep_of_a_silent_head_which_later_changes_nothing(
    s3: S3, tmp_path: Path, cluster: Cluster, expected: Numbers
) -> None:
    """SIGSTOP plays the loss of the head: its workers do not know, and train the same runs."""
    store, log, path = s3.address("head"), tmp_path / "log", write(tmp_path, GRID)
    worker_gate = tmp_path / "worker gate"
    node_environment = gate.node_environment(worker_gate, every=BEFORE)
    node = cluster.add_node(num_cpus=2, env_vars=node_environment)
    head_environment = gate.node_environment(tmp_path / "head gate", host="head")
    words = ("run", path, "--store", store)
    driver = start(*words, "--address", cluster.address, log=log, env=head_environment)
    try:
        wait_until(lambda: epochs_recorded(store) == 2 * BEFORE, log)
        before = Store(store).epochs()
        signal_head(cluster, driver, signal.SIGSTOP)
        assert len(trainers(node)) == 2
        second = tmp_path / "second"
        resumed = start_impatient(*words, "--wait", "--executor", "local", log=second)
        wait_until(lambda: epochs_recorded(store) > 2 * BEFORE or resumed.poll() is not None)
        gate.allow(worker_gate, "every", 99)
        assert finish(resumed, second) == 0, second.read_text()
        assert "on head since" in second.read_text(), "it waited for the lease"
    finally:
        signal_head(cluster, driver, signal.SIGCONT)
    assert finish(driver, log) != 0
    assert "Traceback" not in log.read_text()
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected
    after = Store(store).epochs()
    assert all(after[run_id][: len(own)] == own for run_id, own in before.items()), (
        "also the durations: no epoch was trained again"
    )


def test_a_sweep_whose_head_was_killed_twice_resumes_with_equal_numbers(
    s3: S3, tmp_path: Path, cluster: Cluster, expected: Numbers
) -> None:
    """First the whole head with its driver, then only its GCS: the driver ends without it."""
    store, log, path = s3.address("killed"), tmp_path / "log", write(tmp_path, GRID)
    words = ("run", path, "--store", store, "--wait")

    def train(on: Cluster, epochs: int) -> "subprocess.Popen[bytes]":
        """Start a driver and wait until each of two runs has trained some epochs."""
        env = gate.node_environment(tmp_path / f"gate {epochs}", every=epochs)
        on.add_node(num_cpus=2, env_vars=env)
        driver = start_impatient(*words, "--address", on.address, log=log)
        wait_until(lambda: epochs_recorded(store) == 2 * epochs, log)
        return driver

    driver = train(cluster, 2)
    before = Store(store).epochs()
    signal_head(cluster, driver, signal.SIGKILL)
    driver.wait()
    other = start_cluster()
    try:
        driver = train(other, 4)
        os.kill(head_processes(other)["gcs_server"], signal.SIGKILL)
        assert finish(driver, log, 60) == 1, "Ray ends the process"
    finally:
        other.shutdown()
    done = start_impatient(*words, "--executor", "local", log=log)
    assert finish(done, log) == 0, log.read_text()
    assert "Traceback" not in log.read_text() and "Aborted" not in log.read_text()
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected
    after = Store(store).epochs()
    assert all(after[run_id][: len(own)] == own for run_id, own in before.items())
