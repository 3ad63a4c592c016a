"""Flushed rows survive crashes, and the last write of a key wins."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, SweepRow
from ascl_sweep.store.store import Store, Writer, compact
from tests.ascl_sweep.store.rows import a_run, a_sweep, few_files, put
from tests.paths import ROOT
from tests.power import Disk, write_files

IDS = st.sampled_from("abcd")
RUNS = st.builds(
    a_run,
    IDS,
    state=st.sampled_from(["running", "done"]),
    epochs=st.integers(0, 9),
    config=st.fixed_dictionaries({}, optional={"seed": st.integers(0, 9), "a.b": st.text()}),
)
METRICS = st.builds(
    EpochMetrics,
    epoch=st.integers(0, 3),
    loss=st.floats(allow_nan=False),
    lr=st.just(0.1),
    knn_top1=st.none() | st.floats(0, 1),
)


@dataclass
class Model:
    """A store as plain dicts."""

    runs: dict[str, RunRow] = field(default_factory=dict)
    sweeps: dict[str, SweepRow] = field(default_factory=dict)
    epochs: dict[tuple[str, int], EpochMetrics] = field(default_factory=dict)

    def put(self, writer: Writer, item: Any) -> None:
        if isinstance(item, RunRow):
            writer.put_run(item)
            self.runs[item.run_id] = item
        elif isinstance(item, SweepRow):
            writer.put_sweep(item)
            self.sweeps[item.name] = item
        else:
            run_id, metrics = item
            writer.put_epoch(run_id, metrics)
            self.epochs[run_id, metrics.epoch] = metrics

    def copy(self) -> "Model":
        return Model({**self.runs}, {**self.sweeps}, {**self.epochs})


def as_read(store: Store) -> Model:
    model = Model(store.runs(), store.sweeps())
    for run_id, epochs in store.epochs().items():
        assert [e.epoch for e in epochs] == sorted({e.epoch for e in epochs})
        model.epochs |= {(run_id, e.epoch): e for e in epochs}
    assert store.problems == []
    return model


class LastWriteWins(RuleBasedStateMachine):
    """Any sequence of puts, flushes, compactions and reopenings gives the same rows as a dict."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.many = few_files()
        self.many.__enter__()
        self.store = Store(self.folder.name)
        self.model = Model()
        self.pending = False
        self.open()

    def open(self) -> None:
        self.context = self.store.writer()
        self.writer = self.context.__enter__()

    @rule(item=RUNS | st.builds(a_sweep, IDS, planned=st.integers(0, 9)) | st.tuples(IDS, METRICS))
    def put(self, item: Any) -> None:
        self.model.put(self.writer, item)
        self.pending = True

    @rule()
    def flush(self) -> None:
        self.writer.flush()
        self.pending = False

    @rule()
    def compact(self) -> None:
        after = self.writer.compact()
        assert all(files <= 1 for _, files in after.values())
        self.pending = False

    @rule()
    def reopen(self) -> None:
        self.context.__exit__(None, None, None)
        self.store = Store(self.folder.name)
        self.open()
        self.pending = False

    @invariant()
    def reads_as_the_model(self) -> None:
        if not self.pending:
            assert as_read(self.store) == self.model

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)
        self.many.__exit__(None, None, None)
        self.folder.cleanup()


TestLastWriteWins = LastWriteWins.TestCase
TestLastWriteWins.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


class Killed(BaseException):
    """Simulates the death of the process."""


@settings(max_examples=100)
@given(
    batches=st.lists(st.lists(RUNS | st.tuples(IDS, METRICS), min_size=1), min_size=4, max_size=9),
    lives=st.integers(0, 90),
)
def test_a_kill_at_any_moment_loses_nothing_that_was_flushed(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], lives: int
) -> None:
    outlive(tmp_path_factory.mktemp("store"), batches, lives)


@pytest.mark.slow
def test_a_kill_at_every_moment_loses_nothing_that_was_flushed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lives = 0
    while outlive(tmp_path_factory.mktemp("store"), BATCHES, lives):
        lives += 1
    assert lives > 40, "without a kill, the writer merges several times"


BATCHES = [
    [a_run("a", epochs=i), a_run(f"r{i}"), ("a", EpochMetrics(i % 4, i, 0.1))] for i in range(7)
]


def check(found: Model, flushed: Model, wanted: Model) -> None:
    """Check that every row is as it was flushed, or newer."""
    for run_id, row in flushed.runs.items():
        assert found.runs[run_id] in (row, wanted.runs[run_id])
    for key, metrics in flushed.epochs.items():
        assert found.epochs[key] in (metrics, wanted.epochs[key])


def test_a_power_failure_at_any_moment_loses_nothing_that_was_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, flushed, copies = Model(), Model(), count()

    def fail() -> None:
        for files in disk.after_failure():
            copy = write_files(tmp_path / f"copy {next(copies)}", files)
            check(as_read(Store(copy)), flushed, wanted)

    disk = Disk(monkeypatch, tmp_path / "store", fail)
    with few_files(), Store(tmp_path / "store").writer() as writer:
        for batch in BATCHES:
            for item in batch:
                wanted.put(writer, item)
            writer.flush()
            flushed = wanted.copy()
            fail()
        writer.compact()
        fail()
    assert next(copies) > 100


def outlive(store: Path, batches: list[list[Any]], lives: int) -> bool:
    """Write batches and compact, but die after `lives` disk operations; return whether it died."""
    wanted, flushed, died = Model(), Model(), False
    with pytest.MonkeyPatch.context() as patch, few_files():

        def dying(function: Callable[..., None]) -> Callable[..., None]:
            def call(*args: Any) -> None:
                nonlocal lives
                lives -= 1
                if lives < 0:
                    raise Killed
                function(*args)

            return call

        for name in ("link", "unlink", "fsync"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            with Store(store).writer() as writer:
                for batch in batches:
                    for item in batch:
                        wanted.put(writer, item)
                    writer.flush()
                    flushed = wanted.copy()
                writer.compact()
        except Killed:
            died = True
    for again in (False, True):
        check(as_read(Store(store)), flushed, wanted)
        if not again:
            compact(Store(store))  # the next driver
    assert not list(store.glob("*/.*")), "the next writer cleans up"
    return died


WRITE_UNTIL_KILLED = """
import sys
from ascl_sweep.store import tables
from ascl_sweep.contracts import RunRow
from ascl_sweep.store.store import Store
tables.MANY_FILES = 5
with Store(sys.argv[1]).writer() as writer:
    for i in range(int(sys.argv[2]), 10**9):
        writer.put_run(RunRow(str(i % 50), (), {"seed": i}, "final", "full", epochs=i))
        writer.put_epoch("a", {"epoch": i, "loss": 1.0})
        writer.flush()
        print(i, flush=True)
"""


def start(code: str, *args: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_writer_killed_for_real_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    done = -1
    for i in range(4):
        with start(WRITE_UNTIL_KILLED, tmp_path, done + 1) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(0.05 + 0.07 * i)
            process.kill()
            done = int([first, *process.stdout.read().split()][-1])
        store = Store(tmp_path)
        assert store.driver() is None
        epochs = [e.epoch for e in store.epochs()["a"]]
        assert epochs in (list(range(done + 1)), list(range(done + 2)))
        assert store.runs()[str(done % 50)].epochs == done
        assert store.problems == []


def test_a_reader_misses_nothing_while_files_are_merged(tmp_path: Path) -> None:
    store, finished, wrong = Store(tmp_path), threading.Event(), []
    put(tmp_path, a_run("first"))

    def read() -> None:
        seen = 0
        while not finished.is_set():
            runs = store.runs()
            if len(runs) < seen or "first" not in runs or store.problems:
                wrong.append((seen, len(runs), store.problems))
            seen = len(runs)

    reader = threading.Thread(target=read)
    reader.start()
    with few_files(), store.writer() as writer:
        for i in range(100):
            writer.put_run(a_run(f"r{i}"))
            writer.flush()
    finished.set()
    reader.join()
    assert wrong == [] and len(store.runs()) == 101
