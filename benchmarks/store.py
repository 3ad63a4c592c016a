"""Opening a store of 10,000 runs × 200 epochs for a report, against reading it with pyarrow."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ascl_sweep.contracts import RunRow, SweepRow
from ascl_sweep.store import tables as parquet
from ascl_sweep.store.store import Store, compact
from benchmarks.timing import Ratio, alternate

RUNS, EPOCHS, FILES = 10_000, 200, 500
METHODS, SEEDS = ("moco", "byol", "simclr", "co2"), 5
TEMPERATURES = (0.01, 0.02, 0.05, 0.08, 0.1)
OPEN = """
import sys, time
start = time.perf_counter()
from ascl_sweep.store.store import Store
store = Store(sys.argv[1])
rows = len(store.runs()), len(store.epochs_table())
seconds = time.perf_counter() - start
"""
READ = """
import sys, time
start = time.perf_counter()
import pyarrow.parquet as pq
from pathlib import Path
tables = [[pq.read_table(f) for f in sorted((Path(sys.argv[1]) / n).iterdir())]
          for n in ("runs", "epochs")]
seconds = time.perf_counter() - start
rows = [sum(map(len, files)) for files in tables]
"""
# VmHWM instead of getrusage, whose peak includes the process that this one was forked from.
PRINT = """
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) // 1024, *rows)
"""


def make_store(path: Path, runs: int, epochs: int, files: int = 1) -> None:
    """Fill a new store as a sweep with all runs in parallel would: ordered by epoch, then run."""
    # Otherwise the writer would merge the files.
    before, parquet.MANY_FILES = parquet.MANY_FILES, files
    try:
        with Store(path).writer() as writer:
            writer.put_sweep(SweepRow("bench", "name: bench", "bench.yaml", (), "full", 0, runs))
            for part in range(files):
                for i in range(part * runs // files, (part + 1) * runs // files):
                    writer.put_run(_row(i, epochs))
                writer.flush()
    finally:
        parquet.MANY_FILES = before
    ids = pa.array([_id(i) for i in range(runs)])
    rng = np.random.default_rng(0)
    (path / "epochs").mkdir()
    for part in range(files):  # bypass the writer, which takes a minute for two million rows
        k = np.arange(part * runs * epochs // files, (part + 1) * runs * epochs // files)
        epoch, run = k // runs + 1, (k % runs).astype(np.int32)
        noise = {name: rng.random(len(k)) for name in ("loss", "confidence", "purity", "spread")}
        knn = 0.8 - 0.5 * np.exp(-epoch / 30) + 0.02 * noise["loss"] + 0.002 * (run % 25)
        columns = {
            "run_id": pa.DictionaryArray.from_arrays(run, ids),
            "epoch": epoch,
            "lr": 0.03 * (1 + np.cos(np.pi * epoch / epochs)),
            "knn_top1": knn,
            "probe_top1": pa.array(knn + 0.05, mask=epoch < epochs),
            "effective_neighbours": 10 * noise["purity"],
            "neighbour_top1": knn - 0.1,
            "train_seconds": 30 + noise["spread"],
            "eval_seconds": 2 + noise["spread"],
            "images_per_second": 50_000 / (30 + noise["spread"]),
            **noise,
        }
        table = pa.table(columns).replace_schema_metadata({parquet.FORMAT_KEY: b"1"})
        pq.write_table(table, path / "epochs" / f"{part + 1:08d}.parquet", compression="zstd")


def _id(i: int) -> str:
    return f"{i * 2654435761 % 2**48:012x}"


def _row(i: int, epochs: int) -> RunRow:
    method, seed = METHODS[i // SEEDS % len(METHODS)], i % SEEDS
    config = {"preset": "paper", "seed": seed, "epochs": epochs, "batch_size": 256}
    config |= {"method.name": method, f"method.{method}_only": 0.5, "method.relabel": "ascl"}
    config |= {"method.target_temperature": TEMPERATURES[i // SEEDS % len(TEMPERATURES)]}
    config |= {"data.name": "cifar10", "data.train_size": None, "encoder.name": "resnet18"}
    config |= {f"optim.setting_{n}": 0.1 * n for n in range(40)}  # real configs have about 50 keys
    return RunRow(
        _id(i), ("bench",), config, "final", "full", "done",
        epochs=epochs, knn_last_top1=0.8, knn_best_top1=0.81, probe_top1=0.85 + 0.002 * (i % 25),
        train_seconds=6000.0, images_per_second=1600.0, device_hours=1.7, host="node",
        device="cpu", commit="0" * 40, dirty=False, created=1.7e9 + i, log="log.txt",
    )  # fmt: skip


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        make_store(store, RUNS, EPOCHS, FILES)
        yield _open_store(store, f"before compaction, {FILES} files per table", "")
        compact(Store(store))
        yield _open_store(store, "compacted", "under 3 s, 1 GB")


def _open_store(store: Path, state: str, goal: str) -> Ratio:
    peaks: list[int] = []

    def ours() -> float:
        seconds, peak, *rows = _run_in_new_process(OPEN, store)
        assert rows == [RUNS, RUNS * EPOCHS]
        peaks.append(int(peak))
        return seconds

    a, b = alternate(ours, lambda: _run_in_new_process(READ, store)[0], rounds=3)
    what = f"opening a store of {RUNS:,} × {EPOCHS}, {state}, over pyarrow"
    note = f"{max(peaks)} MB peak memory; times include imports"
    return Ratio(what, a, b, goal, speedup=False, note=note)


def _run_in_new_process(code: str, store: Path) -> list[float]:
    """Run code in a new process; return its seconds, peak memory in MB and rows of each table."""
    command = [sys.executable, "-c", code + PRINT, str(store)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(number) for number in process.stdout.split()]
