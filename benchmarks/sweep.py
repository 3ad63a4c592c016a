"""Overhead of a sweep over its training: against a plain loop, per run, and for a thousand runs.

Linux only. Requires an otherwise idle machine, because CPU time is read from /proc/stat.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ascl_sweep.store.store import Store
from benchmarks.timing import Ratio

SLOTS = 2  # concurrent runs
SWEEP = """
name: bench
base: {{data: {{name: shapes, train_size: {size}}}, batch_size: {batch},
       encoder: {{width: {width}, stem: large, bn_splits: 1, projector_hidden: 32,
                  projector_dim: 16}},
       method: {{relabel: ascl, queue_size: 20}}, eval: {{probe: none, knn_k: 5}}}}
seeds: [{seeds}]
epochs: {epochs}
"""
# The same runs without Ray: each process trains every second seed, one after the other.
PLAIN = """
import sys
from pathlib import Path
import torch
from ascl.checkpoint import train_in
from ascl.train import build
from ascl_sweep.spec.sweep import load_sweep
torch.set_num_threads(1)
spec = load_sweep(sys.argv[1])
for seed in spec.seed_list[int(sys.argv[2]) :: int(sys.argv[3])]:
    for metrics in train_in(build(spec.config({}, seed=seed)), Path(sys.argv[4]) / str(seed)):
        pass
"""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def write(folder: Path, runs: int, *, size: int, batch: int, width: int, epochs: int) -> Path:
    path = folder / f"sweep{runs}.yaml"
    seeds = ", ".join(map(str, range(runs)))
    path.write_text(SWEEP.format(size=size, batch=batch, width=width, epochs=epochs, seeds=seeds))
    return path


def start_sweep(path: Path, store: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ascl_sweep", "run", str(path), "--store", str(store)]
    command += ["--concurrency", str(SLOTS)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, env=ENVIRONMENT)


def start_plain(path: Path, store: Path, slot: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PLAIN, str(path), str(slot), str(SLOTS), str(store)]
    return subprocess.Popen(command, env=ENVIRONMENT)


def wait_for(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        if process.wait():
            raise RuntimeError(f"{process.args!r} failed")


def cpu_seconds() -> float:
    """Return the user and system time of all processes since the machine started."""
    user, nice, system = (int(x) for x in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def training_seconds(store: Path) -> float:
    return sum(row.train_seconds + row.eval_seconds for row in Store(store).runs().values())


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield _overhead(folder)
        yield _per_run(folder)
        yield from _many(folder)


def _overhead(folder: Path) -> Ratio:
    """Compare a sweep of eight half-minute runs with a plain loop."""
    path = write(folder, 8, size=4000, batch=50, width=16, epochs=5)
    start = time.perf_counter()
    wait_for(*(start_plain(path, folder / "plain", slot) for slot in range(SLOTS)))
    plain = time.perf_counter() - start
    start = time.perf_counter()
    wait_for(start_sweep(path, folder / "sweep"))
    sweep = time.perf_counter() - start
    each = training_seconds(folder / "sweep") / 8
    note = f"{each:.0f} s of training per run"
    return Ratio(
        "sweep of 8 runs, 2 at a time, over a plain loop", sweep, plain, "≤ 1.10", False, note
    )


def _per_run(folder: Path) -> Ratio:
    """Measure the CPU time of one more run beyond its training."""
    spent = []
    for runs in (10, 50):
        path = write(folder, runs, size=200, batch=20, width=4, epochs=2)
        store = folder / f"per_run{runs}"
        before = cpu_seconds()
        wait_for(start_sweep(path, store))
        spent.append((cpu_seconds() - before, training_seconds(store)))
    (few, few_training), (many, many_training) = spent
    extra = ((many - few) - (many_training - few_training)) / 40
    training = (many_training - few_training) / 40
    note = f"{extra:.2f} CPU-seconds beyond {training:.2f} s of training; goal: under 2"
    return Ratio(
        "CPU time of one more run over its training", extra + training, training, "", False, note
    )


def _many(folder: Path) -> Iterator[Ratio]:
    """Measure the driver's memory and speed over a thousand runs that hardly train."""
    path = write(folder, 1000, size=40, batch=20, width=1, epochs=1)
    store = folder / "many"
    driver = start_sweep(path, store)
    marks: dict[int, tuple[float, float]] = {}
    while driver.poll() is None:
        time.sleep(0.5)
        runs = Store(store).runs().values() if (store / "runs").is_dir() else ()
        done = sum(row.state == "done" for row in runs)
        for mark in (100, 200, 800, 900):
            if done >= mark and mark not in marks:
                marks[mark] = time.perf_counter(), _resident(driver.pid)
    wait_for(driver)
    yield Ratio(
        "driver's memory after 900 of 1,000 runs, over memory after 100 (GB)",
        marks[900][1],
        marks[100][1],
        "≤ 1.2",
        speedup=False,
    )
    yield Ratio(
        "time of runs 800 to 900, over time of runs 100 to 200",
        marks[900][0] - marks[800][0],
        marks[200][0] - marks[100][0],
        "about 1",
        speedup=False,
    )


def _resident(pid: int) -> float:
    """Return the resident memory of a process in GB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmRSS")) / 1e6
