"""A GPU that fails and a process that hangs, on a real Ray: each costs one attempt."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from ascl_sweep.store.store import Store
from tests.faults import gate
from tests.faults.machines import begin, trainers
from tests.sweeps import (
    GRID,
    environment,
    finish,
    numbers,
    orphans,
    states,
    wait_until,
    write,
)

FAULTY_GPU = """
import sys

class FaultyGpu:
    def find_spec(self, name, path=None, target=None):
        if name == "ray.train.torch.config":  # NCCL fails without real GPUs
            import torch.distributed as dist
            begin = dist.init_process_group
            dist.init_process_group = lambda **options: begin(**options | {"backend": "gloo"})
        if name == "ascl.methods.moco":
            import ray, torch
            if ray.get_runtime_context().get_accelerator_ids()["GPU"] == ["0"]:
                raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")

sys.meta_path.insert(0, FaultyGpu())
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_failed_gpu_and_a_stopped_process_cost_one_attempt_each(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.faults.faulty_workers", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=800, env=environment())
    assert done.returncode == 0 and "End.DONE" in done.stdout, done.stderr
    assert states(tmp_path / "store") == ["done"] * 4
    assert {len(epochs) for epochs in numbers(tmp_path / "store").values()} == {5}
    assert "DeviceError: AcceleratorError: CUDA error: an illegal memory access" in done.stderr
    assert "killed: no progress for" in done.stderr
    attempts = [line.split() for line in (tmp_path / "pids").read_text().splitlines()]
    assert sorted(Counter(run for run, _ in attempts).values()) == [1, 1, 2, 2]
    for _, broken in attempts[:2]:
        assert [pid for _, pid in attempts].count(broken) == 1, "the process is not reused"
    assert not Path("/proc", (tmp_path / "hang").read_text()).exists()
    assert orphans() == []


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_gpu_on_which_runs_keep_failing_is_held_by_an_idle_run(
    tmp_path: Path, cluster: Cluster, workers: int
) -> None:
    """The GPUs are fake: Ray counts and assigns them, and the runs train on the CPU."""
    env = gate.node_environment(tmp_path / "gate", every=1)
    with (tmp_path / "gate" / "site" / "sitecustomize.py").open("a") as site:
        site.write(FAULTY_GPU)
    node = cluster.add_node(num_cpus=2 * workers, num_gpus=2 * workers, env_vars=env)
    store, log = tmp_path / "store", tmp_path / "log"
    wanted = f"resources: {{workers: {workers}, gpus_per_worker: 1}}\n"
    driver = begin(cluster, write(tmp_path, GRID + wanted), store, log)
    wait_until(lambda: "excluding device" in log.read_text(), log)
    gate.allow(tmp_path / "gate", "every", 99)
    assert finish(driver, log) == 0, log.read_text()
    said = log.read_text()
    assert states(store) == ["done"] * 4
    assert all(row.workers == workers for row in Store(store).runs().values())
    assert said.count("uncorrectable ECC error encountered") == 3, "the fourth start trains nothing"
    assert said.count(f"excluding device GPU 0 of {os.uname().nodename}, node") == 1
    assert said.count("excluding") == 1
    assert trainers(node) == [] and orphans() == []
