"""A node that is cut off from the network, while its disk is shared with the other nodes."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ascl_sweep.executors.ray.address import find_free_port
from ascl_sweep.store.store import Store
from tests.faults import gate
from tests.faults.machines import RayNode, undisturbed
from tests.sweeps import GRID, epochs_recorded, finish, numbers, start, states, wait_until, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SWEEP = GRID.replace("seeds: [0, 1]", "seeds: [0]")
# Ray notices a silent node after 5 × 13 seconds by default.
HEALTH = {"PERIOD_MS": 1000, "TIMEOUT_MS": 3000, "FAILURE_THRESHOLD": 3, "INITIAL_DELAY_MS": 1000}
HEAD_ENVIRONMENT = {f"RAY_health_check_{key.lower()}": str(ms) for key, ms in HEALTH.items()}
# By default a cut-off node ends after a minute, so that a slow test would see no zombie.
ZOMBIE_ENVIRONMENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}


@dataclass(frozen=True)
class Network:
    """A network namespace that is linked to a bridge of this machine."""

    namespace: str
    bridge: str
    link: str
    subnet: str

    @property
    def here(self) -> str:
        return f"{self.subnet}.1"

    @property
    def there(self) -> str:
        return f"{self.subnet}.2"

    @property
    def within(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace]

    def set_up(self) -> None:
        inner = f"{self.link}i"
        ip("netns", "add", self.namespace)
        ip("link", "add", self.bridge, "type", "bridge")
        ip("link", "add", self.link, "type", "veth", "peer", "name", inner)
        ip("link", "set", inner, "netns", self.namespace)
        ip("link", "set", self.link, "master", self.bridge)
        # The bridge keeps its address when the link is down.
        ip("addr", "add", f"{self.here}/24", "dev", self.bridge)
        for device in (self.bridge, self.link):
            ip("link", "set", device, "up")
        inside = ("-n", self.namespace)
        ip(*inside, "addr", "add", f"{self.there}/24", "dev", inner)
        for device in ("lo", inner):
            ip(*inside, "link", "set", device, "up")

    def cut(self) -> None:
        ip("link", "set", self.link, "down")

    def restore(self) -> None:
        ip("link", "set", self.link, "up")

    def pids(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def tear_down(self) -> None:
        for words in (("netns", "del", self.namespace), ("link", "del", self.bridge)):
            subprocess.run(["ip", *words], capture_output=True)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def network() -> Iterator[Network]:
    if os.getuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    pid = os.getpid()
    made = Network(f"ascl-{pid}", f"asclb{pid}", f"asclv{pid}", f"10.213.{pid % 250}")
    try:
        try:
            made.set_up()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine has no network namespaces: {error.stderr.strip()}")
        yield made
    finally:
        made.tear_down()


@dataclass(frozen=True)
class Machines:
    """A head and a cut-off node, each with the gate of its runs."""

    address: str
    head: RayNode
    node: RayNode
    head_gate: Path
    node_gate: Path


@pytest.fixture
def machines(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machines]:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    folders = [Path(tempfile.mkdtemp(prefix="ascl-net-", dir="/tmp")) for _ in range(2)]
    gates = tmp_path / "head", tmp_path / "node"
    envs = [
        gate.node_environment(gates[0]) | HEAD_ENVIRONMENT,
        gate.node_environment(gates[1], every=2) | ZOMBIE_ENVIRONMENT,
    ]
    port, started = find_free_port(), []
    address = f"{network.here}:{port}"
    try:
        words = ["--num-cpus=1", f"--node-ip-address={network.here}"]
        words += ["--head", f"--port={port}", f"--ray-client-server-port={find_free_port()}"]
        words += ["--include-dashboard=false", f"--temp-dir={folders[0]}"]
        started.append(RayNode(*words, log=tmp_path / "head.log", env=envs[0]))
        words = ["--num-cpus=1", f"--node-ip-address={network.there}"]
        words += [f"--address={address}", f"--temp-dir={folders[1]}"]
        log, within = tmp_path / "node.log", network.within
        started.append(RayNode(*words, log=log, within=within, env=envs[1]))
        yield Machines(address, *started, *gates)
    finally:
        for node in reversed(started):
            node.end()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def test_a_run_of_a_cut_off_node_continues_elsewhere_and_the_zombie_writes_nothing(
    tmp_path: Path, network: Network, machines: Machines
) -> None:
    expected = undisturbed(SWEEP, tmp_path / "undisturbed", "local")
    store, log = tmp_path / "store", tmp_path / "log"
    address = machines.address
    driver = start("run", write(tmp_path, SWEEP), "--store", store, "--address", address, log=log)
    # The run on the node waits after two epochs. The other run ends.
    wait_until(lambda: store.exists() and epochs_recorded(store) == 7, log)
    (run_id,) = (run_id for run_id, epochs in Store(store).epochs().items() if len(epochs) == 2)
    work = store / "work" / run_id

    def files() -> dict[str, bytes]:
        """Everything but the lock and the log, to which the zombie adds its last words."""
        return {path.name: path.read_bytes() for path in work.glob("[!.l]*")}

    gate.allow(machines.head_gate, run_id, 3)
    (zombie,) = machines.node.trainers()
    network.cut()
    wait_until(lambda: len(Store(store).epochs()[run_id]) == 3, log)
    assert "worker process or node died" in log.read_text()
    assert zombie in network.pids(), "the node only seems dead"
    before = files()
    gate.allow(machines.node_gate, "every", 99)  # the zombie trains and wants to save its epoch
    wait_until(lambda: "another worker has taken over the run" in (work / "log.txt").read_text())
    network.restore()
    wait_until(lambda: network.pids() == [], machines.node.log)
    assert files() == before
    gate.allow(machines.head_gate, run_id, 99)
    assert finish(driver, log) == 0, log.read_text()
    assert states(store) == ["done"] * 2
    assert numbers(store) == expected
