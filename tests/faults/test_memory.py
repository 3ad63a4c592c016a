"""Ray's memory monitor kills a worker: its run is retried, and the user reads why."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from tests.faults.machines import RayNode, begin, undisturbed
from tests.sweeps import GRID, epochs_recorded, finish, numbers, states, wait_until, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SWEEP = (
    GRID.replace("seeds: [0, 1]", "seeds: [0]").replace("epochs: 5", "epochs: 8")
    + """
resources:
  cases:
    - {when: {method.target_temperature: 0.1}, workers: 2}
"""
)
TOTAL = 4 << 20  # kB; less than the machine has, so that Ray reads /proc/meminfo and no cgroup


class Memory:
    """The memory of a node, as Ray reads it in the node's own mount namespace."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()
        self.set_available(TOTAL // 2)

    def set_available(self, available: int) -> None:
        values = {"MemTotal": TOTAL, "MemFree": available, "MemAvailable": available}
        zero = ("Buffers", "Cached", "SReclaimable", "Shmem", "SwapTotal", "SwapFree")
        lines = [
            f"{key + ':':<16}{kb:8} kB\n" for key, kb in (values | dict.fromkeys(zero, 0)).items()
        ]
        with self.file.open("r+") as file:  # in place: the file is mounted
            file.write("".join(lines))

    @property
    def within(self) -> list[str]:
        mount = f'mount --bind "{self.file}" /proc/meminfo && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, "sh"]


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    made = Memory(tmp_path / "meminfo")
    can = shutil.which("unshare") and os.getuid() == 0
    if not can or subprocess.run([*made.within, "true"], capture_output=True).returncode:
        pytest.skip("a node with its own /proc/meminfo needs root and mount namespaces")
    return made


@pytest.fixture
def node(cluster: Cluster, memory: Memory, tmp_path: Path) -> Iterator[RayNode]:
    words = [f"--address={cluster.address}", "--num-cpus=2"]
    env = {"RAY_memory_usage_threshold": "0.9", "RAY_memory_monitor_refresh_ms": "250"}
    made = RayNode(*words, log=tmp_path / "node.log", within=memory.within, env=env)
    try:
        yield made
    finally:
        made.end()


def test_a_worker_killed_for_memory_is_retried_and_the_message_names_the_reason(
    tmp_path: Path, cluster: Cluster, memory: Memory, node: RayNode
) -> None:
    """First a run of one worker, then a run of two."""
    store, log = tmp_path / "store", tmp_path / "log"
    driver = begin(cluster, write(tmp_path, SWEEP), store, log)
    for i, recorded in enumerate((2, 10), 1):
        wait_until(lambda n=recorded: store.exists() and epochs_recorded(store) >= n, log)  # type: ignore[misc]
        memory.set_available(TOTAL // 50)
        wait_until(lambda n=i: log.read_text().count("its node ran out of memory") >= n, log)  # type: ignore[misc]
        memory.set_available(TOTAL // 2)
    assert finish(driver, log) == 0, log.read_text()
    assert "lower batch_size" in log.read_text()
    assert states(store) == ["done"] * 2
    assert numbers(store) == undisturbed(SWEEP, tmp_path / "undisturbed", "ray")
