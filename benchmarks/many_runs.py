"""How many runs one driver can handle: `python -m benchmarks.many_runs [RUNS ...] [--search]`.

The benchmark runs sweeps with the real driver, Ray Tune and store. The GPUs are only a number in
Ray's configuration, and the workers replay synthetic curves (`replayed.py`). Linux only.
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
PRELOADED = (
    "ray._private.workers.default_worker",
    "ascl_sweep.executors.ray.tune",
    "benchmarks.replayed",
)
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
    """Size and speed of a simulated sweep."""

    runs: int
    slots: int = 200
    """Logical GPUs, each of which runs one run at a time."""
    epochs: int = 20
    seconds: float = 2.5
    """Mean duration of an epoch."""
    search: bool = False
    """Search with TPE, ASHA and finalists instead of completing every run."""

    def text(self) -> str:
        seeds = ", ".join(map(str, range(self.runs)))
        # Divide the machine's CPUs among the slots: Ray starts one process per CPU in advance.
        cpus = f"{len(os.sched_getaffinity(0)) / self.slots:.6g}"
        return (SEARCH if self.search else GRID).format(
            epochs=self.epochs, cpus=cpus, seeds=seeds, runs=self.runs
        )


@dataclass(frozen=True)
class Usage:
    """Resources used by the driver and Ray, from the start of the first run to the end."""

    seconds: float
    cpu: dict[str, float]
    """CPU-seconds of the driver's process and of Ray's daemons, by process name."""
    ours: dict[str, float]
    """The driver's CPU-seconds in our own code, by method; Tune and Ray use the rest."""
    peak_mb: float
    before_mb: float
    """Memory before the first run, mostly loaded modules."""
    rows: int
    """Rows written to the store, including rewritten ones."""


# ---------------------------------------------------------------- the simulation


def simulate(setting: Setting, folder: Path) -> None:
    """Run a sweep and write the driver's resource use, the event logs and the store to `folder`.

    Call it in a new process: Ray must not be loaded yet, and peak memory is counted per process.
    """
    from rich.console import Console

    from ascl_sweep.executors.ray.executor import RayExecutor
    from ascl_sweep.runtime import sweeps
    from ascl_sweep.runtime.callbacks.console import ConsoleCallback
    from ascl_sweep.spec.sweep import parse_sweep
    from ascl_sweep.store.store import Store
    from benchmarks.nursery import launcher

    logs = folder / "workers"
    logs.mkdir(parents=True)
    os.environ |= {
        "ASCL_REPLAY_SECONDS": str(setting.seconds),
        "ASCL_REPLAY_LOGS": str(logs),
        "ASCL_REPLAY_SLOTS": str(min(setting.runs, setting.slots)),
        "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": setting.slots}),
        "RAY_worker_niceness": "5",  # workers stand for other machines: the driver has priority
    }
    spec = parse_sweep(setting.text(), file="many.yaml")
    with (
        (folder / "console.txt").open("w") as output,
        launcher(PRELOADED) as command,
        mock.patch.object(sys, "executable", str(command)),  # Ray's command for new processes
        mock.patch.object(sweeps, "Controller", measured_controller(folder)),
    ):
        callback = ConsoleCallback(Console(file=output, width=200))
        prepared = sweeps.prepare_sweeps([spec], Store(folder / "store"))
        sweeps.run_sweeps(prepared, RayExecutor(make_trainable=_replayed), callback)


def _replayed() -> type:
    from benchmarks.replayed import Replayed

    return Replayed


def measured_controller(folder: Path) -> type:
    """Return a Controller class that measures its CPU time and memory and logs events."""
    from ascl_sweep.contracts import RunTask
    from ascl_sweep.runtime.controller import Controller, End

    class Measured(Controller):
        def __init__(
            self, study: Any, history: Any, store: Any, writer: Any, *rest: Any, **named: Any
        ) -> None:
            self.ours: dict[str, float] = defaultdict(float)
            self._log = (folder / "driver.txt").open("w")
            self._recorder = LoggingWriter(writer, self._log)
            super().__init__(study, history, store, self._recorder, *rest, **named)  # type: ignore[arg-type]

        def run(self, execute: Callable[[Controller], None]) -> End:
            with self._log:
                end = super().run(lambda controller: self._execute(execute))
            usage = asdict(self._usage(self._recorder))
            (folder / "usage.json").write_text(json.dumps(usage, indent=1))
            return end

        def _execute(self, execute: Callable[[Controller], None]) -> None:
            self.first = time.time(), cpu_seconds(), megabytes("VmRSS")
            execute(self)

        def _usage(self, writer: LoggingWriter) -> Usage:
            start, cpu, resident = self.first
            now = cpu_seconds()
            return Usage(
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

        def on_result(self, *args: Any) -> bool:
            with self._timed("on_result"):
                return super().on_result(*args)

        def next_task(self) -> RunTask | None:
            with self._timed("next_task"):
                return super().next_task()

        def tick(self) -> None:
            with self._timed("tick"):
                super().tick()

    return Measured


class LoggingWriter:
    """Store writer that logs when the driver received an epoch and when rows were on disk."""

    def __init__(self, writer: Any, log: io.TextIOBase) -> None:
        self._writer, self._log = writer, log
        self.cpu, self.rows = 0.0, 0
        self.put_run = writer.put_run

    def put_epoch(self, run_id: str, metrics: Any) -> None:
        self._writer.put_epoch(run_id, metrics)
        self._log.write(f"{run_id} {metrics.epoch} {time.time():.6f}\n")

    def flush(self) -> None:
        pending = sum(map(len, self._writer._pending.values()))
        start = time.thread_time()
        self._writer.flush()
        self.cpu += time.thread_time() - start
        self.rows += pending
        self._log.write(f"flushed 0 {time.time():.6f}\n")


def cpu_seconds() -> dict[str, float]:
    """Return the CPU time so far of this process and of the daemons that it started, by name."""
    found = {"driver": time.process_time(), "gcs_server": 0.0, "raylet": 0.0, "agents": 0.0}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # the process has ended
        words = rest.split()
        if int(words[1]) == os.getpid():
            ticks = int(words[11]) + int(words[12])
            kind = name if name in found else "agents"
            found[kind] += ticks / os.sysconf("SC_CLK_TCK")
    return found


def megabytes(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


# ---------------------------------------------------------------- evaluation of the logs


@dataclass(frozen=True)
class Step:
    """One call of a worker's `step`; epoch 0 is the first message of a run."""

    run_id: str
    epoch: int
    start: float
    end: float


@dataclass(frozen=True)
class Waits:
    """Waits and delays in seconds, and counts of messages and worker processes."""

    next_run: list[float]
    """From the last message of a run to the start of the next run in the same slot."""
    next_epoch: list[float]
    """From the message of an epoch to the start of the run's next epoch; the slot is idle."""
    received: list[float]
    """From the message of an epoch until the driver receives it."""
    recorded: list[float]
    """From the message of an epoch until the epoch is in the store."""
    messages: int
    """Number of messages of all workers."""
    processes: int


def waits(folder: Path) -> Waits:
    """Compute waits and delays from the logs of the workers and the driver."""
    workers = [_steps(path) for path in (folder / "workers").iterdir()]
    pairs = [pair for steps in workers for pair in pairwise(steps)]
    sent = {(step.run_id, step.epoch): step.end for steps in workers for step in steps}
    received, recorded = [], []
    unsaved: list[float] = []
    for line in (folder / "driver.txt").read_text().splitlines():
        run_id, epoch, when = line.split()
        if run_id == "flushed":
            recorded += [float(when) - message for message in unsaved]
            unsaved = []
        else:
            unsaved.append(sent[run_id, int(epoch)])
            received.append(float(when) - unsaved[-1])
    return Waits(
        next_run=[b.start - a.end for a, b in pairs if b.epoch == 0],
        next_epoch=[b.start - a.end for a, b in pairs if b.run_id == a.run_id],
        received=received,
        recorded=recorded,
        messages=sum(map(len, workers)),
        processes=len(workers),
    )


def _steps(path: Path) -> list[Step]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [Step(run, int(epoch), float(start), float(end)) for run, epoch, start, end in lines]


# ---------------------------------------------------------------- the table


def measure_sweep(setting: Setting, folder: Path) -> dict[str, str]:
    """Simulate a sweep in a new process and return its column of the table."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        process.submit(simulate, setting, folder).result()
    usage = Usage(**json.loads((folder / "usage.json").read_text()))
    return column(setting, usage, waits(folder), folder / "store")


def column(setting: Setting, usage: Usage, waits: Waits, store: Path) -> dict[str, str]:
    messages, driver = waits.messages, usage.cpu["driver"]
    ours = sum(usage.ours[name] for name in ("on_result", "next_task", "tick"))
    files = {name: list((store / name).glob("*.parquet")) for name in ("runs", "epochs")}
    size = sum(path.stat().st_size for paths in files.values() for path in paths)
    return {
        "runs": f"{setting.runs:,}{' by TPE, ASHA' if setting.search else ''}",
        "messages, per second": f"{messages:,}, {messages / usage.seconds:.0f}",
        "minutes": f"{usage.seconds / 60:.1f}",
        "driver, CPU-seconds": f"{driver:.0f}, {driver / usage.seconds:.0%} of a core",
        "CPU-ms per message, of which ascl-sweep": (
            f"{1000 * driver / messages:.1f}, {1000 * ours / messages:.2f}"
        ),
        "GCS, raylet, CPU-seconds": f"{usage.cpu['gcs_server']:.0f}, {usage.cpu['raylet']:.0f}",
        "driver, MB at start, at peak": f"{usage.before_mb:.0f}, {usage.peak_mb:.0f}",
        "wait of a GPU for its next run, s": percentiles(waits.next_run),
        "wait for its next epoch, s": percentiles(waits.next_epoch),
        "delay until the driver receives an epoch, s": percentiles(waits.received),
        "delay until an epoch is in the store, s": percentiles(waits.recorded),
        "store: rows, rows per CPU-second": (
            f"{usage.rows:,}, {usage.rows / usage.ours['flush']:,.0f}"
        ),
        "store: files of runs, files of epochs, MB": (
            f"{len(files['runs'])}, {len(files['epochs'])}, {size / 1e6:.1f}"
        ),
        "worker processes": f"{waits.processes}",
    }


def percentiles(seconds: Sequence[float]) -> str:
    """Format the median and the 95th percentile."""
    if len(seconds) < 2:
        return "–"
    return f"{median(seconds):.2f}, {quantiles(seconds, n=20)[-1]:.2f} (n = {len(seconds):,})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_runs")
    parser.add_argument("runs", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--search", action="store_true", help="TPE and ASHA with finalists")
    parser.add_argument("--slots", type=int, default=200, help="number of concurrent runs")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.5, help="mean duration of an epoch")
    parser.add_argument("--keep", type=Path, help="folder in which to keep stores and logs")
    args = parser.parse_args()
    columns = []
    with tempfile.TemporaryDirectory() as temporary:
        for runs in args.runs:
            setting = Setting(runs, args.slots, args.epochs, args.seconds, args.search)
            columns.append(measure_sweep(setting, (args.keep or Path(temporary)) / str(runs)))
            print(f"{runs} runs: {columns[-1]['minutes']} minutes", file=sys.stderr, flush=True)
    titles = list(columns[0])
    for title in titles:
        print(f"| {title} | {' | '.join(column[title] for column in columns)} |")
        if title == titles[0]:
            print("|---" * (1 + len(columns)) + "|")


if __name__ == "__main__":
    main()
