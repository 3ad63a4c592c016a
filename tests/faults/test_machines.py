"""Nodes of a real Ray cluster are added, lost and faulty during a sweep: every planned run still
finishes, records each epoch once, and has the results of an undisturbed sweep."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from ascl_sweep.cli.errors import INTERRUPTED
from ascl_sweep.executors.ray import compat, preemption
from ascl_sweep.executors.ray.compat import BOOTSTRAP
from ascl_sweep.runtime.controller import CLUSTER_SECONDS
from ascl_sweep.store.store import Store
from tests.faults import gate
from tests.faults.machines import begin, raylet, trainers, undisturbed
from tests.metadata import Metadata
from tests.sweeps import (
    GRID,
    TWO_WORKERS,
    epochs_recorded,
    finish,
    kill,
    numbers,
    states,
    wait_until,
    write,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

LONG = GRID.replace("epochs: 5", "epochs: 12")
LONG_TWO = TWO_WORKERS.replace("epochs: 5", "epochs: 12")
SILENCE_MINUTES = 0.5


def test_runs_of_a_lost_machine_go_on_elsewhere_and_a_new_machine_is_used(
    tmp_path: Path, cluster: Cluster
) -> None:
    expected = undisturbed(LONG, tmp_path / "undisturbed", "local")
    store, log = tmp_path / "store", tmp_path / "log"
    first, _ = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    driver = begin(cluster, write(tmp_path, LONG), store, log)
    wait_until(lambda: epochs_recorded(store) >= 6, log)
    assert trainers(first), "both nodes train"
    cluster.remove_node(first, allow_graceful=False)
    added = cluster.add_node(num_cpus=1)
    wait_until(lambda: bool(trainers(added)), log)
    assert finish(driver, log) == 0, log.read_text()
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected


def test_a_run_of_two_workers_resumes_when_a_rank_is_killed_or_hangs_and_when_a_node_is_lost(
    tmp_path: Path, cluster: Cluster
) -> None:
    expected = undisturbed(LONG_TWO, tmp_path / "undisturbed", "ray")
    store, log = tmp_path / "store", tmp_path / "log"
    first, second = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    impatient = LONG_TWO + f"budget: {{silence_minutes: {SILENCE_MINUTES}}}\n"
    driver = begin(cluster, write(tmp_path, impatient), store, log)

    def wait_for_progress() -> None:
        before = epochs_recorded(store)
        wait_until(lambda: epochs_recorded(store) > before, log)

    wait_until(lambda: epochs_recorded(store) >= 3, log)
    (rank,) = trainers(first)  # the workers of the run are on both nodes
    kill(rank)
    wait_until(lambda: log.read_text().count("worker process or node died") == 1, log)
    wait_for_progress()
    (stopped,) = trainers(second)
    os.kill(stopped, signal.SIGSTOP)  # the other rank waits for it
    wait_until(lambda: "worker process or node died (killed: no progress" in log.read_text(), log)
    wait_until(lambda: not Path(f"/proc/{stopped}").exists(), log)
    wait_for_progress()
    cluster.remove_node(first, allow_graceful=False)
    # One node has no capacity for the run: the run waits for the next node.
    wait_until(lambda: log.read_text().count("worker process or node died") == 3, log)
    added = cluster.add_node(num_cpus=1)
    wait_until(lambda: bool(trainers(added)), log)
    assert finish(driver, log) == 0, log.read_text()
    assert states(store) == ["done"] * 2
    assert numbers(store) == expected
    assert all(row.workers == 2 for row in Store(store).runs().values())


def test_runs_of_several_machines_and_small_ones_train_side_by_side(
    tmp_path: Path, cluster: Cluster
) -> None:
    mixed = (
        GRID.replace("epochs: 5", "epochs: 8")
        + """
resources:
  cpus_per_worker: 0.25
  cases:
    - {when: {method.target_temperature: 0.02}, workers: 2, cpus_per_worker: 1}
"""
    )
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    store, log = tmp_path / "store", tmp_path / "log"
    driver = begin(cluster, write(tmp_path, mixed), store, log)
    assert finish(driver, log) == 0, log.read_text()
    rows = Store(store).runs().values()
    large = [row for row in rows if row.workers == 2]
    small = [row for row in rows if row.workers == 1]
    assert [row.state for row in (*large, *small)] == ["done"] * 4
    assert {row.config["method.target_temperature"] for row in large} == {0.02}
    together = [(a, b) for a in large for b in small if a.started < b.ended and b.started < a.ended]
    assert together, "some large and small runs trained at the same time"


def test_workers_that_cannot_be_made_a_group_give_back_what_they_held(
    tmp_path: Path, cluster: Cluster
) -> None:
    """The GPUs are fake: NCCL fails without real GPUs, but a fraction of a GPU needs no NCCL."""
    text = (
        GRID.replace("seeds: [0, 1]", "seeds: [0]")
        + """
resources:
  gpus_per_worker: 0.5
  cases:
    - {when: {method.target_temperature: 0.02}, workers: 2, gpus_per_worker: 1}
"""
    )
    cluster.add_node(num_cpus=2, num_gpus=2)
    store, log = tmp_path / "store", tmp_path / "log"
    driver = begin(cluster, write(tmp_path, text), store, log)
    assert finish(driver, log) == 1, log.read_text()
    assert states(store) == ["done", "failed"], (
        "the small run got a slot after the large run failed"
    )
    assert "CUDA" in log.read_text()


BROKEN = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "ascl.methods.moco":
            raise ImportError("libbroken.so: cannot open shared object file")

sys.meta_path.insert(0, Broken())
"""


def test_a_machine_on_which_runs_keep_failing_is_left_out(tmp_path: Path, cluster: Cluster) -> None:
    """The node has a broken installation: every run fails there, and no run fails elsewhere."""
    many = GRID.replace("seeds: [0, 1]", "seeds: [0, 1, 2, 3]")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN)
    store, log = tmp_path / "store", tmp_path / "log"
    cluster.add_node(num_cpus=1)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    bad = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": path})
    driver = begin(cluster, write(tmp_path, many), store, log)
    assert finish(driver, log) == 0, log.read_text()
    said = log.read_text()
    assert states(store) == ["done"] * 8
    assert "libbroken.so" in said and "retrying on another node" in said
    assert said.count("runs keep failing there") == 1
    assert f"node {bad.node_id[:8]}" in said
    # A fourth run may already be starting there when the third fails.
    assert 3 <= said.count("libbroken.so") <= 4, "after three failures the node gets no more runs"


def test_runs_of_two_workers_go_on_elsewhere_if_a_machine_breaks_them(
    tmp_path: Path, cluster: Cluster
) -> None:
    """The node cannot import ascl_sweep, so its ranks never report a result."""
    (tmp_path / "site").mkdir()
    broken = BROKEN.replace("ascl.methods.moco", "ascl_sweep.executors.worker")
    (tmp_path / "site" / "sitecustomize.py").write_text(broken)
    store, log = tmp_path / "store", tmp_path / "log"
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    cluster.add_node(
        num_cpus=2, env_vars={"PYTHONPATH": path}
    )  # Ray prefers to place both workers here
    cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)
    driver = begin(cluster, write(tmp_path, TWO_WORKERS), store, log)
    assert finish(driver, log) == 0, log.read_text()
    assert states(store) == ["done"] * 2
    assert (
        "libbroken.so: cannot open shared object file; retrying on another node" in log.read_text()
    )


def test_runs_ask_an_autoscaler_for_the_machines_they_lack(
    tmp_path: Path, cluster: Cluster, head: None
) -> None:
    """The test acts as the autoscaler: its file allows two nodes, and the test adds them."""
    set_autoscaler_limits(count=2)
    store, log = tmp_path / "store", tmp_path / "log"
    driver = begin(cluster, write(tmp_path, GRID), store, log)
    wait_until(lambda: waiting_for(cluster.address) == 2, log)
    assert driver.poll() is None, "there is no node yet, and the driver waits for one"
    assert set(states(store)) == {"planned"}
    cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)
    assert finish(driver, log) == 0, log.read_text()
    assert states(store) == ["done"] * 4
    assert all(row.host for row in Store(store).runs().values())


@pytest.mark.parametrize(("text", "slots"), [(GRID, 2), (TWO_WORKERS, 1)])
def test_runs_that_wait_in_vain_no_longer_ask_an_autoscaler(
    tmp_path: Path, cluster: Cluster, head: None, text: str, slots: int
) -> None:
    set_autoscaler_limits(count=2)
    store, log = tmp_path / "store", tmp_path / "log"
    driver = begin(cluster, write(tmp_path, text), store, log)
    wait_until(lambda: waiting_for(cluster.address) == slots, log)
    set_autoscaler_limits(count=1)
    wait_until(lambda: waiting_for(cluster.address) == slots - 1, log)
    set_autoscaler_limits(count=2)
    wait_until(lambda: waiting_for(cluster.address) == slots, log)
    driver.send_signal(signal.SIGINT)
    assert finish(driver, log, 60) == INTERRUPTED, log.read_text()
    assert waiting_for(cluster.address) == 0
    assert set(states(store)) == {"planned"}


def test_no_idle_process_holds_what_a_larger_run_waits_for(
    tmp_path: Path, cluster: Cluster, head: None
) -> None:
    """Also no process of a withdrawn run, which Tune would otherwise keep."""
    text = (
        GRID.replace("seeds: [0, 1]", "seeds: [0]")
        + """
resources:
  cases:
    - {when: {method.target_temperature: 0.1}, cpus_per_worker: 2}
"""
    )
    set_autoscaler_limits(count=1, cpus=2)
    store, log = tmp_path / "store", tmp_path / "log"
    driver = begin(cluster, write(tmp_path, text), store, log)
    wait_until(lambda: waiting_for(cluster.address) == 1, log)
    set_autoscaler_limits(count=0)
    wait_until(lambda: waiting_for(cluster.address) == 0, log)
    cluster.add_node(num_cpus=2)
    assert finish(driver, log) == 0, log.read_text()
    assert states(store) == ["done"] * 2


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine look like a head that `ray up` created: HOME has the autoscaler's file."""
    token = Path.home() / ".ray" / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.setenv("HOME", str(tmp_path))


def set_autoscaler_limits(count: int, cpus: int = 1) -> None:
    kinds = {"head": {"resources": {"CPU": 0}}, "worker": {"resources": {"CPU": cpus}}}
    limits = {"max_workers": count, "head_node_type": "head", "available_node_types": kinds}
    half = Path.home() / "half"
    half.write_text(json.dumps(limits))
    half.replace(Path.home() / BOOTSTRAP)  # as rsync does


ASK = """
import sys, ray

ray.init(address=sys.argv[1], log_to_driver=False)
groups = ray.util.placement_group_table().values()
print(sum(group["state"] == "PENDING" for group in groups))
"""


def waiting_for(address: str) -> int:
    """Return the number of pending placement groups, which an autoscaler reads."""
    ask = [sys.executable, "-c", ASK, address]
    return int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)


def test_runs_move_off_a_spot_node_before_it_ends(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's watcher, as the cluster files start it, reads a fake metadata server."""
    text = GRID.replace("seeds: [0, 1]", "seeds: [0]")
    expected = undisturbed(text, tmp_path / "undisturbed", "local")
    store, log = tmp_path / "store", tmp_path / "log"
    env = gate.node_environment(tmp_path / "gate", every=2)
    first, _ = (cluster.add_node(num_cpus=1, env_vars=env) for _ in range(2))
    spot = compat.read_raylet(raylet(first))
    assert spot and spot.node_id == first.node_id and spot.gcs_address == cluster.address
    driver = begin(cluster, write(tmp_path, text), store, log)
    wait_until(lambda: store.exists() and epochs_recorded(store) == 4, log)
    with Metadata() as metadata:
        monkeypatch.setattr(preemption, "AWS", f"{metadata.url}/latest")
        metadata.announce(120)
        preemption.watch([spot], preemption.aws_seconds_left)
    time.sleep(CLUSTER_SECONDS + 1)
    gate.allow(tmp_path / "gate", "every", 99)
    wait_until(lambda: "moved off a draining node" in log.read_text(), log, seconds=60)
    cluster.remove_node(first, allow_graceful=False)
    assert finish(driver, log) == 0, log.read_text()
    assert states(store) == ["done"] * 2
    assert numbers(store) == expected
    assert "worker process or node died" not in log.read_text()
