"""Small real sweeps for tests: run by the real command in its own process, read from the ledger."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ascl_sweep.executors.ray.cluster import PREFIX
from ascl_sweep.store.store import Store

# A run takes about a second; five epochs give time to disturb it.
GRID = """
name: grid
base: {data: {name: shapes, train_size: 200}, batch_size: 20, encoder: {width: 4, bn_splits: 2,
       stem: large, projector_hidden: 16, projector_dim: 8},
       method: {relabel: ascl, queue_size: 40},
       eval: {probe: none, knn_k: 5}}
space: {grid: {method.target_temperature: [0.02, 0.1]}}
seeds: [0, 1]
epochs: 5
"""
TWO_WORKERS = GRID.replace("name: grid", "name: two").replace("seeds: [0, 1]", "seeds: [0]") + (
    "resources: {workers: 2}\n"
)
# What a run comes to, timings aside: equal for runs that were disturbed and runs that were not.
NUMBERS = ("epoch", "loss", "lr", "knn_top1", "confidence", "purity", "spread")


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "ascl_sweep", *map(str, words)]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def ascl_sweep(*words: object, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=timeout, env=environment()
    )


def start(
    *words: object, log: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start the command as a shell would, in a process group of its own.

    `env` is added to the environment.
    """
    own = environment() | dict(env or {})
    with log.open("ab") as out:
        return subprocess.Popen(
            command(*words), stdout=out, stderr=out, env=own, start_new_session=True
        )


def wait_until(true: Callable[[], bool], log: Path | None = None, seconds: float = 400) -> None:
    """Wait for what must come; long, for a machine that other tests keep busy starts Ray slowly."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, log.read_text() if log else "waited in vain"
        time.sleep(0.05)


def finish(driver: "subprocess.Popen[bytes]", log: Path, seconds: float = 600) -> int:
    """Wait for a driver to end and return its exit code; if it does not end, show its log."""
    try:
        return driver.wait(seconds)
    except subprocess.TimeoutExpired:
        driver.kill()
        raise AssertionError(f"no end after {seconds:.0f} s:\n{log.read_text()}") from None


def epochs_recorded(store: Path | str) -> int:
    return sum(map(len, Store(store).epochs().values()))


def numbers(store: Path | str) -> dict[str, list[tuple[Any, ...]]]:
    """Each run's epochs, without what depends on the clock."""
    return {
        run_id: [tuple(getattr(epoch, name) for name in NUMBERS) for epoch in epochs]
        for run_id, epochs in sorted(Store(store).epochs().items())
    }


def states(store: Path | str) -> list[str]:
    return sorted(row.state for row in Store(store).runs().values())


def orphans() -> list[int]:
    """Processes of a private Ray whose driver is gone."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        driver = re.search(rf"{PREFIX}(\d+)-", line)
        if driver and not Path(f"/proc/{driver[1]}").exists():
            found.append(int(entry.name))
    return found


def leftovers() -> list[Path]:
    """Folders of a private Ray whose driver is gone."""
    folders = Path("/tmp").glob(f"{PREFIX}*-*")
    return [p for p in folders if not Path(f"/proc/{p.name.split('-')[2]}").exists()]


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that these started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(after_name[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def title(pid: int) -> str:
    """A process's command line; Ray's say there what they do."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
