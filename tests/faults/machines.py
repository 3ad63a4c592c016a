"""Ray clusters on this machine whose nodes and processes a test can disturb."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from tests.sweeps import ascl_sweep, descendants, numbers, start, title, wait_until, write

Numbers = dict[str, list[tuple[Any, ...]]]


def undisturbed(text: str, folder: Path, executor: str) -> Numbers:
    """Return the results of an undisturbed sweep."""
    folder.mkdir()
    path, store = write(folder, text), folder / "store"
    done = ascl_sweep("run", path, "--store", store, "--executor", executor)
    assert done.returncode == 0, done.stderr
    return numbers(store)


def start_cluster() -> Cluster:
    """Start a cluster whose head offers no CPUs, as in our cluster files."""
    # Ray's default is a fixed port, which a parallel test may use.
    own = {"num_cpus": 0, "dashboard_port": 0}
    return Cluster(initialize_head=True, head_node_args=own)


def begin(cluster: Cluster, path: Path, store: Path, log: Path) -> "subprocess.Popen[bytes]":
    return start("run", path, "--store", store, "--address", cluster.address, log=log)


def raylet(node: Any) -> int:
    """Return the raylet's process of a node of a cluster."""
    (found,) = node.all_processes["raylet"]
    return int(found.process.pid)


def trainers(node: Any) -> list[int]:
    """Return the processes that train on a node of a cluster."""
    return [pid for pid in descendants(raylet(node)) if is_trainer(pid)]


def is_trainer(pid: int) -> bool:
    return any(name in title(pid) for name in ("Trainable", "OneWorker", "RayTrainWorker"))


class RayNode:
    """A node started with `ray start`, whose processes end with it."""

    def __init__(
        self, *words: object, log: Path, within: Sequence[str] = (), env: Mapping[str, str]
    ) -> None:
        """Start the node and wait for it.

        Args:
            words: Options of `ray start`.
            log: File for the command's output.
            within: Command that executes the node elsewhere, e.g. in a network namespace.
            env: Additions to the environment.
        """
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        # Ray's default ports are fixed, and a parallel test may use them.
        ray += ["--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"]
        ray += ["--object-store-memory=100000000", *map(str, words)]
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*within, *ray], stdout=out, stderr=out, env=os.environ | env
            )
        try:
            wait_until(
                lambda: "Ray runtime started" in log.read_text() or self.process.poll() is not None,
                log,
            )
            assert self.process.poll() is None, log.read_text()
        except BaseException:
            self.end()
            raise

    def trainers(self) -> list[int]:
        """Return the processes that train on this node."""
        return [pid for pid in descendants(self.process.pid) if is_trainer(pid)]

    def end(self) -> None:
        """Kill the node's processes."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
