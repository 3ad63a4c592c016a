"""How many runs one driver bears: `python -m benchmarks.many_runs [RUNS ...] [--search]`.

Real sweeps by the real driver on a real Ray Tune and into a real ledger; only the GPUs are no more
than a number that Ray is told, and the workers replay curves (`replayed.py`). Linux only.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest import mock

SIZES = (200, 1000, 2000)
PRELOADED = ("ray._private.workers.default_worker", "ascl_sweep.search", "benchmarks.replayed")
BASE = """
name: many
base: {{data: {{name: shapes, train_size: 100}}, batch_size: 20,
       encoder: {{width: 4, stem: large, bn_splits: 1, projector_hidden: 32, projector_dim: 16}},
       method: {{relabel: ascl, queue_size: 64}}, eval: {{probe: none, knn_k: 5}}}}
epochs: {epochs}
resources: {{gpus_per_worker: 1, cpus_per_worker: {cpus}}}
"""
GRID = BASE + "seeds: [{seeds}]\n"
SEARCH = (
    BASE
    + """
space:
  optuna:
    domains:
      method.target_temperature: {{log_uniform: [0.01, 0.2]}}
      augment.strength: {{uniform: [0.2, 1.0]}}
seeds: [0, 1, 2]
stop: {{asha: {{grace: 10%, factor: 3}}}}
ladder: {{finalists: 4}}
budget: {{trials: {runs}}}
"""
)


@dataclass(frozen=True)
class Setting:
    """A sweep to be simulated."""

    runs: int
    places: int = 200
    """Logical GPUs, each of which has room for one run."""
    epochs: int = 20
    seconds: float = 2.5
    """That an epoch takes."""
    search: bool = False
    """TPE under ASHA with finalists, rather than every run to its end."""

    def text(self) -> str:
        seeds = ", ".join(map(str, range(self.runs)))
        # As many CPUs in all as Ray has: it starts a process for each before it is asked for one.
        cpus = f"{len(os.sched_getaffinity(0)) / self.places:.6g}"
        return (SEARCH if self.search else GRID).format(
            epochs=self.epochs, cpus=cpus, seeds=seeds, runs=self.runs
        )


@dataclass(frozen=True)
class Spent:
    """What a sweep took of the driver and of Ray, between its first run's start and its end."""

    seconds: float
    cpu: dict[str, float]
    """Of the driver's process, and of Ray's daemons, by name."""
    ours: dict[str, float]
    """Of the driver's, our own code's by what Tune calls; the rest is Tune's and Ray's."""
    peak_mb: float
    before_mb: float
    """Before the first run: what is loaded takes so much."""
    rows: int
    """Written to the ledger, those that were written again included."""


# ---------------------------------------------------------------- the simulation


def simulate(setting: Setting, folder: Path) -> None:
    """Run a sweep, in a process of its own: Ray must not be loaded yet, and peaks are of processes.

    Leaves in the folder what the driver spent, what it and the workers noted, and the ledger.
    """
    from rich.console import Console

    from ascl_sweep import search
    from ascl_sweep.ledger import Ledger
    from ascl_sweep.live import Display
    from ascl_sweep.spec import spec_of
    from benchmarks.nursery import launcher

    notes = folder / "notes"
    notes.mkdir(parents=True)
    os.environ |= {
        "ASCL_REPLAY_SECONDS": str(setting.seconds),
        "ASCL_REPLAY_NOTES": str(notes),
        "ASCL_REPLAY_PLACES": str(min(setting.runs, setting.places)),
        "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": setting.places}),
        "RAY_worker_niceness": "5",  # they stand for other machines: the driver goes first
    }
    spec = spec_of(setting.text(), file="many.yaml")
    with (
        (folder / "said.txt").open("w") as said,
        launcher(PRELOADED) as command,
        mock.patch.object(sys, "executable", str(command)),  # what Ray starts its processes with
        mock.patch.object(search, "Driver", measured_driver(folder)),
    ):
        display = Display(Console(file=said, width=200))
        search.run_sweeps([spec], Ledger(folder / "store"), display, one_worker=_replayed)


def _replayed() -> type:
    from benchmarks.replayed import Replayed

    return Replayed


def measured_driver(folder: Path) -> type:
    """The driver, with a watch in its hand."""
    from ascl_sweep.driver import Driver, End

    class Measured(Driver):
        def run(self, execute: Callable[[Driver], None]) -> End:
            self.ours: dict[str, float] = defaultdict(float)
            with (folder / "heard.txt").open("w") as notes:
                writer: Any = Noted(self.writer, notes)
                self.writer = writer
                end = super().run(lambda driver: self._watched(execute))
            (folder / "spent.json").write_text(json.dumps(asdict(self._spent(writer)), indent=1))
            return end

        def _watched(self, execute: Callable[[Driver], None]) -> None:
            self.first = time.time(), cpu_seconds(), megabytes("VmRSS")
            execute(self)

        def _spent(self, writer: Noted) -> Spent:
            start, cpu, resident = self.first
            now = cpu_seconds()
            return Spent(
                seconds=time.time() - start,
                cpu={name: now[name] - cpu.get(name, 0) for name in now},
                ours=dict(self.ours) | {"flush": writer.cpu},
                peak_mb=megabytes("VmHWM"),
                before_mb=resident,
                rows=writer.rows,
            )

        @contextmanager
        def _timed(self, what: str) -> Iterator[None]:
            start = time.thread_time()
            try:
                yield
            finally:
                self.ours[what] += time.thread_time() - start

        def told(self, *args: Any) -> bool:
            with self._timed("told"):
                return super().told(*args)

        def next(self) -> dict[str, Any] | None:
            with self._timed("next"):
                return super().next()

        def tick(self) -> None:
            with self._timed("tick"):
                super().tick()

    return Measured


class Noted:
    """A ledger's writer that notes when an epoch was heard of and when rows were on disk."""

    def __init__(self, writer: Any, notes: io.TextIOBase) -> None:
        self._writer, self._notes = writer, notes
        self.cpu, self.rows = 0.0, 0
        self.put_run = writer.put_run

    def put_epoch(self, run_id: str, metrics: Any) -> None:
        self._writer.put_epoch(run_id, metrics)
        self._notes.write(f"{run_id} {metrics['epoch']} {time.time():.6f}\n")

    def flush(self) -> None:
        pending = sum(map(len, self._writer._pending.values()))
        start = time.thread_time()
        self._writer.flush()
        self.cpu += time.thread_time() - start
        self.rows += pending
        self._notes.write(f"flushed 0 {time.time():.6f}\n")


def cpu_seconds() -> dict[str, float]:
    """CPU time so far of this process and of the daemons that it started, by name."""
    found = {"driver": time.process_time(), "gcs_server": 0.0, "raylet": 0.0, "agents": 0.0}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        words = rest.split()
        if int(words[1]) == os.getpid():
            ticks = int(words[11]) + int(words[12])
            kind = name if name in found else "agents"
            found[kind] += ticks / os.sysconf("SC_CLK_TCK")
    return found


def megabytes(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


# ---------------------------------------------------------------- what the notes come to


@dataclass(frozen=True)
class Step:
    """A worker's call: epoch 0 is its run's first message."""

    run_id: str
    epoch: int
    start: float
    end: float


@dataclass(frozen=True)
class Waits:
    """Seconds."""

    next_run: list[float]
    """From a run's last message to its place's next run."""
    next_epoch: list[float]
    """From an epoch's message to the run's next epoch: the place is idle."""
    heard: list[float]
    """From an epoch's message to the driver's having it."""
    recorded: list[float]
    """From an epoch's message to its being in the ledger."""
    messages: int
    """Of all workers together."""
    processes: int


def waits(folder: Path) -> Waits:
    """What passed between what the workers and the driver noted."""
    places = [_steps(path) for path in (folder / "notes").iterdir()]
    pairs = [pair for steps in places for pair in pairwise(steps)]
    sent = {(step.run_id, step.epoch): step.end for steps in places for step in steps}
    heard, recorded = [], []
    unsaved: list[float] = []
    for line in (folder / "heard.txt").read_text().splitlines():
        run_id, epoch, when = line.split()
        if run_id == "flushed":
            recorded += [float(when) - message for message in unsaved]
            unsaved = []
        else:
            unsaved.append(sent[run_id, int(epoch)])
            heard.append(float(when) - unsaved[-1])
    return Waits(
        next_run=[b.start - a.end for a, b in pairs if b.epoch == 0],
        next_epoch=[b.start - a.end for a, b in pairs if b.run_id == a.run_id],
        heard=heard,
        recorded=recorded,
        messages=sum(map(len, places)),
        processes=len(places),
    )


def _steps(path: Path) -> list[Step]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [Step(run, int(epoch), float(start), float(end)) for run, epoch, start, end in lines]


# ---------------------------------------------------------------- the table


def measured(setting: Setting, folder: Path) -> dict[str, str]:
    """A column of the table."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        process.submit(simulate, setting, folder).result()
    spent = Spent(**json.loads((folder / "spent.json").read_text()))
    return column(setting, spent, waits(folder), folder / "store")


def column(setting: Setting, spent: Spent, waited: Waits, store: Path) -> dict[str, str]:
    messages, driver = waited.messages, spent.cpu["driver"]
    ours = sum(spent.ours[name] for name in ("told", "next", "tick"))
    files = {name: list((store / name).glob("*.parquet")) for name in ("runs", "epochs")}
    size = sum(path.stat().st_size for paths in files.values() for path in paths)
    return {
        "runs": f"{setting.runs:,}{' by TPE, ASHA' if setting.search else ''}",
        "messages, of them per second": f"{messages:,}, {messages / spent.seconds:.0f}",
        "minutes": f"{spent.seconds / 60:.1f}",
        "driver, CPU-seconds": f"{driver:.0f}, {driver / spent.seconds:.0%} of a core",
        "a message, CPU-ms": f"{1000 * driver / messages:.1f}, ours {1000 * ours / messages:.2f}",
        "GCS, raylet, CPU-seconds": f"{spent.cpu['gcs_server']:.0f}, {spent.cpu['raylet']:.0f}",
        "driver, MB before, at the peak": f"{spent.before_mb:.0f}, {spent.peak_mb:.0f}",
        "a place's wait for its next run, s": both(waited.next_run),
        "for its next epoch": both(waited.next_epoch),
        "an epoch is heard of after, s": both(waited.heard),
        "it is in the ledger after": both(waited.recorded),
        "ledger: rows, per CPU-second": f"{spent.rows:,}, {spent.rows / spent.ours['flush']:,.0f}",
        "ledger: files of runs, of epochs, MB": (
            f"{len(files['runs'])}, {len(files['epochs'])}, {size / 1e6:.1f}"
        ),
        "processes": f"{waited.processes}",
    }


def both(seconds: Sequence[float]) -> str:
    """Median and 95th percentile."""
    if len(seconds) < 2:
        return "–"
    return f"{median(seconds):.2f}, {quantiles(seconds, n=20)[-1]:.2f} (n = {len(seconds):,})"


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks.many_runs")
    words.add_argument("runs", nargs="*", type=int, default=list(SIZES))
    words.add_argument("--search", action="store_true", help="TPE under ASHA with finalists")
    words.add_argument("--places", type=int, default=200, help="runs at once")
    words.add_argument("--epochs", type=int, default=20)
    words.add_argument("--seconds", type=float, default=2.5, help="that an epoch takes")
    words.add_argument("--keep", type=Path, help="a folder for ledgers and notes")
    said = words.parse_args()
    columns = []
    with tempfile.TemporaryDirectory() as temporary:
        for runs in said.runs:
            setting = Setting(runs, said.places, said.epochs, said.seconds, said.search)
            columns.append(measured(setting, (said.keep or Path(temporary)) / str(runs)))
            print(f"{runs} runs: {columns[-1]['minutes']} minutes", file=sys.stderr, flush=True)
    titles = list(columns[0])
    for title in titles:
        print(f"| {title} | {' | '.join(column[title] for column in columns)} |")
        if title == titles[0]:
            print("|---" * (1 + len(columns)) + "|")


if __name__ == "__main__":
    main()
