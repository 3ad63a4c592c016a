"""The ledger: what was flushed is there, whatever happens; of two writes the last one wins."""

import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ascl_sweep import parquet
from ascl_sweep.ledger import Ledger, RunRow, SweepRow, Writer, compact
from ascl_sweep.store import Store

ROOT = Path(__file__).parent.parent.parent
CONFIG = {"preset": "paper", "seed": 1, "epochs": 200, "method.name": "moco", "optim.lr": 0.03}


def a_run(run_id: str = "a1", **changes: Any) -> RunRow:
    return replace(RunRow(run_id, ("tau", "joint"), CONFIG, "final", "full"), **changes)


def a_sweep(name: str = "tau", **changes: Any) -> SweepRow:
    row = SweepRow(name, "name: tau\n", "tau.yaml", ("optim.lr=0.1",), "laptop", 1.5e9, 3)
    return replace(row, **changes)


def put(store: Path, *rows: RunRow) -> None:
    with Ledger(store).writer() as writer:
        for row in rows:
            writer.put_run(row)


def damage(path: Path, contents: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)


# --- rows come back -----------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
SCALARS |= st.text()


@settings(max_examples=50)
@given(
    config=st.dictionaries(st.sampled_from(["seed", "epochs", "a.b", "a.c", "d.é"]), SCALARS),
    error=st.none() | st.text(),
    score=st.none() | st.floats(allow_nan=False),
    when=st.none() | st.integers(0, 4_000_000_000_000_000).map(lambda us: us / 1e6),
    sweeps=st.lists(st.text()).map(tuple),
)
def test_a_run_reads_back_as_it_was_put(
    tmp_path_factory: pytest.TempPathFactory,
    config: dict[str, Any],
    error: str | None,
    score: float | None,
    when: float | None,
    sweeps: tuple[str, ...],
) -> None:
    store = tmp_path_factory.mktemp("store")
    row = RunRow("a", sweeps, config, "search", "full", error=error, audit=True, epochs=7)
    row = replace(row, knn_last_top1=score, dirty=False, created=when, ended=when)
    put(store, row, RunRow("b", (), {"other.key": None}, "final", "laptop", created=5e9))
    found = Ledger(store).runs()
    assert found["a"] == row
    assert {k: type(v) for k, v in found["a"].config.items()} == {
        k: type(v) for k, v in config.items()
    }
    assert found["b"].config == {"other.key": None}, "keys of other runs are not this one's"


def test_sweeps_and_epochs_read_back_as_they_were_put(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.writer() as writer:
        writer.put_sweep(a_sweep())
        writer.put_epoch("b", {"epoch": 2, "loss": float("inf"), "knn_top1": 0.5})
        writer.put_epoch("b", {"epoch": 1, "loss": float("nan"), "knn_top1": None})
        writer.put_epoch("a", {"epoch": 1, "loss": 2})
    assert ledger.sweeps() == {"tau": a_sweep()}
    epochs = ledger.epochs()
    assert epochs["a"] == [{"epoch": 1, "loss": 2.0, "knn_top1": None}]
    assert [e["epoch"] for e in epochs["b"]] == [1, 2]
    assert epochs["b"][0]["loss"] != epochs["b"][0]["loss"], "NaN is not null"
    assert epochs["b"][1] == {"epoch": 2, "loss": float("inf"), "knn_top1": 0.5}
    assert ledger.epochs(["a", "unknown"]) == {"a": epochs["a"]}
    assert ledger.epochs([]) == {}


def test_curves_have_the_metrics_that_were_asked_for(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.writer() as writer:
        for run_id in ("a", "b"):
            for epoch in (2, 1):
                writer.put_epoch(run_id, {"epoch": epoch, "loss": 2.0, "knn_top1": epoch / 4})
    curves = dict(ledger.curves(["knn_top1", "new"]))
    assert list(curves) == ["a", "b"]
    for found in curves.values():
        assert found["epoch"].tolist() == [1, 2]
        assert found["knn_top1"].tolist() == [0.25, 0.5]
        assert np.isnan(found["new"]).all()
    assert dict(Ledger(tmp_path / "empty").curves(["loss"])) == {}


def test_runs_are_in_order_of_creation_then_id(tmp_path: Path) -> None:
    put(tmp_path, a_run("b", created=2.0), a_run("z", created=1.0), a_run("a", created=2.0))
    assert list(Ledger(tmp_path).runs()) == ["z", "a", "b"]


def test_nothing_is_created_by_reading(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "none")
    assert (ledger.runs(), ledger.epochs(), ledger.sweeps()) == ({}, {}, {})
    assert len(ledger.epochs_table(["knn_top1"])) == len(ledger.runs_table()) == 0
    assert ledger.driver() is None and not ledger.stop_requested() and not ledger.work_ids()
    assert ledger.problems == [] and not list(tmp_path.iterdir())


def test_a_table_has_the_columns_that_were_asked_for(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.writer() as writer:
        writer.put_epoch("a", {"epoch": 1, "loss": 2.0, "lr": 1.0})
        writer.flush()
        writer.put_epoch("a", {"epoch": 1, "loss": 3.0, "lr": 1.0})
    assert ledger.epochs_table(["loss", "run_id", "new"]).to_pydict() == {
        "loss": [3.0],
        "run_id": ["a"],
        "new": [None],
    }


# --- anyone can read it -------------------------------------------------------------------------


def test_columns_are_named_for_people(tmp_path: Path) -> None:
    put(tmp_path, a_run(epochs=3, created=1.5e9))
    (file,) = (tmp_path / "runs").glob("*.parquet")
    row = pq.read_table(file).to_pylist()[0]
    assert (row["epochs"], row["epochs_done"]) == (200, 3)
    assert row["optim.lr"] == 0.03 and row["sweeps"] == ["tau", "joint"]
    assert row["created"].isoformat() == "2017-07-14T02:40:00+00:00"
    frame = pandas.read_parquet(tmp_path / "runs")
    assert frame.loc[0, "method.name"] == "moco" and frame.loc[0, "seed"] == 1


def test_duckdb_reads_it(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    put(tmp_path, a_run("a"), a_run("b"))
    assert duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/runs/*.parquet'").fetchone() == (2,)


# --- schemas drift ------------------------------------------------------------------------------


def test_methods_have_columns_of_their_own(tmp_path: Path) -> None:
    put(tmp_path, a_run("a", config={"method.queue": 1}))
    put(tmp_path, a_run("b", config={"method.momentum": 0.9, "method.queue": None}))
    for _ in range(2):
        runs = Ledger(tmp_path).runs()
        assert runs["a"].config == {"method.queue": 1}
        assert runs["b"].config == {"method.momentum": 0.9, "method.queue": None}
        compact(Ledger(tmp_path))


@pytest.mark.parametrize("together", [True, False])
def test_what_two_runs_disagree_on_becomes_float_or_text(tmp_path: Path, together: bool) -> None:
    configs: list[dict[str, Any]] = [
        {"x.f": 1, "x.t": 16, "x.n": None, "x.b": True},
        {"x.f": 0.5, "x.t": "auto", "x.n": "s", "x.b": 3},
    ]
    rows = [a_run(str(i), config=config) for i, config in enumerate(configs)]
    for part in [rows] if together else [[row] for row in rows]:
        put(tmp_path, *part)
    runs = Ledger(tmp_path).runs()
    assert runs["0"].config == {"x.f": 1.0, "x.t": "16", "x.n": None, "x.b": "true"}
    assert runs["1"].config == {"x.f": 0.5, "x.t": "auto", "x.n": "s", "x.b": "3"}


def test_a_field_that_an_old_file_lacks_has_its_default(tmp_path: Path) -> None:
    later = {"backprops": 2, "ema": True, "peak_memory_gb": 1.5}
    put(tmp_path, a_run("a", audit=True, epochs=3, host="h", **later))
    (file,) = (tmp_path / "runs").glob("*.parquet")
    table = pq.read_table(file).drop_columns(["audit", "epochs_done", "host", "none_keys", *later])
    pq.write_table(table.append_column("of_a_later_version", pa.array([1])), file)
    put(tmp_path, a_run("b"))
    assert Ledger(tmp_path).runs() == {"a": a_run("a"), "b": a_run("b")}


# --- what a caller may get wrong ----------------------------------------------------------------


def test_no_text_or_number_can_spoil_a_flush(tmp_path: Path) -> None:
    huge = 2**70
    put(
        tmp_path,
        a_run(error="in \udcff.pt", sweeps=("\ud800",), config={"seed": huge, "a.b": "\ud800"}),
    )
    found = Ledger(tmp_path).runs()["a1"]
    assert found.error == "in \\udcff.pt" and found.sweeps == ("\\ud800",)
    assert found.config == {"seed": str(huge), "a.b": "\\ud800"}


def test_what_cannot_be_stored_is_refused_when_it_is_put(tmp_path: Path) -> None:
    with Ledger(tmp_path).writer() as writer:
        with pytest.raises(ValueError, match=r"one of planned, .*, got 'dnoe'"):
            writer.put_run(a_run(state="dnoe"))
        with pytest.raises(ValueError, match="named as a column of the ledger, got 'state'"):
            writer.put_run(a_run(config={"state": 1}))
        with pytest.raises(TypeError, match=r"must be a bool, .*, got a\.b=\[1\] \(list\)"):
            writer.put_run(a_run(config={"a.b": [1]}))
        with pytest.raises(ValueError, match="must have their epoch, 0 or above, got epoch=None"):
            writer.put_epoch("a", {"loss": 1.0})
        with pytest.raises(ValueError, match="got 'run_id'"):
            writer.put_epoch("a", {"epoch": 1, "run_id": "b"})
    assert Ledger(tmp_path).runs() == Ledger(tmp_path).epochs() == {}


# --- damaged and foreign files ------------------------------------------------------------------


def whole_file(folder: Path) -> bytes:
    put(folder, a_run("x"))
    return next((folder / "runs").glob("*.parquet")).read_bytes()


def foreign_table(metadata: dict[bytes, bytes] | None) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"y": [1]}).replace_schema_metadata(metadata), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (lambda whole: b"", "is damaged or not Parquet; delete it"),
        (lambda whole: whole[:-1], "is damaged or not Parquet"),
        (lambda whole: whole[: len(whole) // 2], "is damaged or not Parquet"),
        (lambda whole: whole[:40] + b"\xff" * 300 + whole[340:], "is damaged or not Parquet"),
        (lambda whole: bytes(range(256)) * 40, "is damaged or not Parquet"),
        (lambda whole: foreign_table(None), "no file of the ledger's runs; move it elsewhere"),
        (lambda whole: foreign_table({b"ascl_sweep.format": b"1"}), "no file of the ledger's runs"),
        (lambda whole: foreign_table({b"ascl_sweep.format": b"2"}), "format 2, .* 1; upgrade"),
    ],
    ids=["empty", "cut", "half", "overwritten", "bytes", "foreign", "keyless", "newer"],
)
def test_a_bad_file_is_named_and_skipped(
    tmp_path: Path, contents: Callable[[bytes], bytes], sentence: str
) -> None:
    bad = tmp_path / "runs" / "00000002.parquet"
    put(tmp_path, a_run("a"))
    damage(bad, contents(whole_file(tmp_path / "other")))
    put(tmp_path, a_run("b"))
    put(tmp_path, a_run("c"))
    for _ in range(2):
        ledger = Ledger(tmp_path)
        assert ledger.runs().keys() == {"a", "b", "c"}
        (problem,) = ledger.problems
        assert re.search(sentence, problem) and problem.startswith(f"{bad} was skipped: it ")
        compact(ledger)
    assert bad.exists(), "what may be of use to someone is not deleted"
    assert len(list((tmp_path / "runs").iterdir())) == 3, "one on each side of it"


def test_a_file_with_a_name_of_its_own_is_named_and_skipped(tmp_path: Path) -> None:
    damage(tmp_path / "runs" / "copy.parquet", whole_file(tmp_path / "other"))
    damage(tmp_path / "runs" / "notes.txt", b"mine")
    put(tmp_path, a_run("a"))
    ledger = Ledger(tmp_path)
    assert ledger.runs().keys() == {"a"}
    assert [p for p in ledger.problems if "copy.parquet was skipped" in p] == ledger.problems != []


@settings(max_examples=60)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_skipped(
    tmp_path_factory: pytest.TempPathFactory, cut: float
) -> None:
    store = tmp_path_factory.mktemp("store")
    whole = whole_file(store)
    damage(store / "runs" / "00000002.parquet", whole[: int(cut * len(whole))])
    ledger = Ledger(store)
    assert ledger.runs().keys() == {"x"} and len(ledger.problems) == 1


def test_a_good_file_that_cannot_be_read_now_is_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(store: Store, name: str) -> None:
        raise PermissionError(13, "Permission denied", name)

    put(tmp_path, a_run())
    monkeypatch.setattr(Store, "open", refused)
    with pytest.raises(PermissionError, match=r"runs/00000001\.parquet"):
        Ledger(tmp_path).runs()


# --- last write wins ----------------------------------------------------------------------------


@contextmanager
def few_files() -> Iterator[None]:
    """Let the writer merge from four files on."""
    before, parquet.MANY_FILES = parquet.MANY_FILES, 4
    try:
        yield
    finally:
        parquet.MANY_FILES = before


IDS = st.sampled_from("abcd")
RUNS = st.builds(
    a_run,
    IDS,
    state=st.sampled_from(["running", "done"]),
    epochs=st.integers(0, 9),
    config=st.fixed_dictionaries({}, optional={"seed": st.integers(0, 9), "a.b": st.text()}),
)
METRICS = st.fixed_dictionaries(
    {"epoch": st.integers(0, 3), "loss": st.floats(allow_nan=False)},
    optional={"knn_top1": st.none() | st.floats(0, 1)},
)


class Model:
    """The ledger as plain dicts, put and read alike."""

    def __init__(self) -> None:
        self.runs: dict[str, RunRow] = {}
        self.sweeps: dict[str, SweepRow] = {}
        self.epochs: dict[tuple[str, int], dict[str, Any]] = {}

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
            self.epochs[run_id, metrics["epoch"]] = metrics

    def copy(self) -> "Model":
        copy = Model()
        copy.runs, copy.sweeps, copy.epochs = {**self.runs}, {**self.sweeps}, {**self.epochs}
        return copy


def as_read(ledger: Ledger) -> Model:
    model = Model()
    model.runs, model.sweeps = ledger.runs(), ledger.sweeps()
    for run_id, epochs in ledger.epochs().items():
        assert [e["epoch"] for e in epochs] == sorted({e["epoch"] for e in epochs})
        model.epochs |= {(run_id, e["epoch"]): e for e in epochs}
    assert ledger.problems == []
    return model


def same_epoch(a: dict[str, Any] | None, b: dict[str, Any] | None) -> bool:
    return a == b or (
        a is not None and b is not None and all(a.get(k) == b.get(k) for k in {*a, *b})
    )


def assert_same(found: Model, wanted: Model) -> None:
    assert found.runs == wanted.runs and found.sweeps == wanted.sweeps
    assert found.epochs.keys() == wanted.epochs.keys()
    assert all(same_epoch(found.epochs[k], wanted.epochs[k]) for k in wanted.epochs)


class LastWriteWins(RuleBasedStateMachine):
    """Any interleaving of puts, flushes, compactions and reopenings is the plain dict."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.many = few_files()
        self.many.__enter__()
        self.ledger = Ledger(self.folder.name)
        self.model = Model()
        self.pending = False
        self.open()

    def open(self) -> None:
        self.context = self.ledger.writer()
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
        self.ledger = Ledger(self.folder.name)
        self.open()
        self.pending = False

    @invariant()
    def reads_as_the_model(self) -> None:
        if not self.pending:
            assert_same(as_read(self.ledger), self.model)

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)
        self.many.__exit__(None, None, None)
        self.folder.cleanup()


TestLastWriteWins = LastWriteWins.TestCase
TestLastWriteWins.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


class Killed(BaseException):
    """Stands for the end of the process: from then on it does nothing more."""


@settings(max_examples=100)
@given(
    batches=st.lists(st.lists(RUNS | st.tuples(IDS, METRICS), min_size=1), min_size=4, max_size=9),
    lives=st.integers(0, 90),
)
def test_a_kill_at_any_moment_loses_nothing_that_was_flushed(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], lives: int
) -> None:
    outlive(tmp_path_factory.mktemp("store"), batches, lives)


def test_a_kill_at_every_moment_loses_nothing_that_was_flushed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    batches = [[a_run("a", epochs=i), a_run(f"r{i}"), ("a", {"epoch": i % 4})] for i in range(7)]
    lives = 0
    while outlive(tmp_path_factory.mktemp("store"), batches, lives):
        lives += 1
    assert lives > 40, "what is not killed merges several times"


def outlive(store: Path, batches: list[list[Any]], lives: int) -> bool:
    """Write batches and compact, but die after so many changes of the disk; whether it died."""
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

        for name in ("replace", "unlink", "fsync"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            with Ledger(store).writer() as writer:
                for batch in batches:
                    for item in batch:
                        wanted.put(writer, item)
                    writer.flush()
                    flushed = wanted.copy()
                writer.compact()
        except Killed:
            died = True
    for again in (False, True):
        found = as_read(Ledger(store))
        for run_id, row in flushed.runs.items():
            assert found.runs[run_id] in (row, wanted.runs[run_id])
        for key, metrics in flushed.epochs.items():
            now = found.epochs[key]
            assert same_epoch(now, metrics) or same_epoch(now, wanted.epochs[key])
        if not again:
            compact(Ledger(store))  # the next driver
    assert not list(store.glob("*/.*")), "the next writer cleans up"
    return died


WRITE_UNTIL_KILLED = """
import sys
from ascl_sweep import parquet
from ascl_sweep.ledger import Ledger, RunRow
parquet.MANY_FILES = 5
with Ledger(sys.argv[1]).writer() as writer:
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
        ledger = Ledger(tmp_path)
        assert ledger.driver() is None
        epochs = [e["epoch"] for e in ledger.epochs()["a"]]
        assert epochs in (list(range(done + 1)), list(range(done + 2)))
        assert ledger.runs()[str(done % 50)].epochs == done
        assert ledger.problems == []


def test_a_reader_misses_nothing_while_files_are_merged(tmp_path: Path) -> None:
    ledger, finished, wrong = Ledger(tmp_path), threading.Event(), []
    put(tmp_path, a_run("first"))

    def read() -> None:
        seen = 0
        while not finished.is_set():
            runs = ledger.runs()
            if len(runs) < seen or "first" not in runs or ledger.problems:
                wrong.append((seen, len(runs), ledger.problems))
            seen = len(runs)

    reader = threading.Thread(target=read)
    reader.start()
    with few_files(), ledger.writer() as writer:
        for i in range(100):
            writer.put_run(a_run(f"r{i}"))
            writer.flush()
    finished.set()
    reader.join()
    assert wrong == [] and len(ledger.runs()) == 101


# --- many files ---------------------------------------------------------------------------------


def test_a_long_sweep_keeps_few_files_and_rewrites_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MANY_FILES", 10)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    written: dict[bool, int] = {True: 0, False: 0}  # bytes of merges, of flushes
    write = Store.write

    def counting(store: Store, name: str, data: pa.Buffer) -> None:
        written[(tmp_path / name).exists()] += data.size
        write(store, name, data)

    monkeypatch.setattr(Store, "write", counting)
    rows = 0
    with Ledger(tmp_path).writer() as writer:
        for i in range(400):
            for j in range(1 + 20 * (i % 50 == 7)):
                rows += 1
                writer.put_epoch(f"r{j}", {"epoch": i, "loss": 0.1 * i})
            writer.flush()
            assert len(list((tmp_path / "epochs").iterdir())) <= 11
    assert len(Ledger(tmp_path).epochs_table()) == rows
    assert 0 < written[True] < written[False]


# --- a disk that is full ------------------------------------------------------------------------


def test_a_full_disk_damages_nothing_and_the_rows_wait(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.writer() as writer:
        writer.put_run(a_run("a"))
        writer.flush()
        writer.put_run(a_run("a", state="done"))
        writer.put_epoch("a", {"epoch": 1})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))  # writes fail as on a full disk
        try:
            with pytest.raises(OSError, match=r"cannot be written: .*epochs/00000001\.parquet"):
                writer.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.runs()["a"].state == "planned" and ledger.epochs() == {}
        assert ledger.problems == [] and not list(tmp_path.glob("*/.*"))
        writer.flush()
        assert ledger.runs()["a"].state == "done" and ledger.epochs().keys() == {"a"}


def test_a_merge_that_fails_does_not_fail_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: Store, name: str) -> None:
        raise OSError(28, "No space left on device")

    with few_files(), Ledger(tmp_path).writer() as writer:
        monkeypatch.setattr(Store, "delete", full)
        for i in range(8):
            writer.put_run(a_run(str(i)))
            writer.flush()
        monkeypatch.undo()
        writer.put_run(a_run("8"))
        writer.flush()
    assert len(list((tmp_path / "runs").iterdir())) <= 4
    assert len(Ledger(tmp_path).runs()) == 9


# --- the rest of the store ----------------------------------------------------------------------


@pytest.fixture(params=["here", "far"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, no_settling: None) -> Ledger:
    if request.param == "here":
        return Ledger(tmp_path)
    return Ledger(SubTreeFileSystem(str(tmp_path), LocalFileSystem()))


@pytest.fixture
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascl_sweep.lock.SETTLE_SECONDS", 0.0)


def test_any_file_system_will_do(ledger: Ledger, tmp_path: Path) -> None:
    with few_files(), ledger.writer() as writer:
        for i in range(9):
            writer.put_run(a_run("a", epochs=i))
            writer.put_epoch("a", {"epoch": i, "loss": 1.0})
            writer.flush()
    assert ledger.runs() == {"a": a_run("a", epochs=8)}
    assert len(ledger.epochs()["a"]) == 9 and ledger.problems == []
    assert compact(ledger)["epochs"][1] == 1
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["00000009.parquet"]
    assert len(ledger.epochs()["a"]) == 9


def test_a_runs_own_files_are_found_measured_and_deleted(ledger: Ledger, tmp_path: Path) -> None:
    ledger.delete_work("a1")
    for run_id in ("a1", "b2"):
        damage(tmp_path / "work" / run_id / "deep" / "checkpoint.pt", b"12345")
    assert ledger.work_ids() == ["a1", "b2"]
    assert (ledger.work_bytes("a1"), ledger.work_bytes("none")) == (5, 0)
    assert ledger.work("a1").endswith("/work/a1")
    ledger.delete_work("a1")
    assert ledger.work_ids() == ["b2"]


@pytest.mark.parametrize("run_id", ["", ".", "..", "../runs", "a/b", "/"])
def test_no_run_id_leads_out_of_the_work_folder(ledger: Ledger, run_id: str) -> None:
    with pytest.raises(ValueError, match="a run id must be letters"):
        ledger.delete_work(run_id)


def test_work_is_absolute_and_the_address_is_as_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = Ledger("results")
    assert ledger.address == "results"
    assert ledger.work("a") == str(tmp_path / "results" / "work" / "a")
    assert Ledger(f"file://{tmp_path}/results").work("a") == ledger.work("a")


def test_the_options_of_an_address_stay_at_its_end() -> None:
    options = "?endpoint_override=127.0.0.1:9000&scheme=http"
    for root in ("s3://bucket/results", "s3://bucket/results/"):
        ledger = Ledger(root + options)
        assert ledger.work("a") == f"s3://bucket/results/work/a{options}"
        assert ledger.log("a") == f"s3://bucket/results/work/a/log.txt{options}"


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="must hold no password") as refused:
        Ledger("s3://key:hush@bucket/results")
    assert "hush" not in str(refused.value) and "AWS_SECRET_ACCESS_KEY" in str(refused.value)


def test_a_file_that_is_replaced_while_it_is_fetched_from_afar_is_fetched_again(
    tmp_path: Path, no_settling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Ledger(SubTreeFileSystem(str(tmp_path), LocalFileSystem()))
    with far.writer() as writer:
        writer.put_run(a_run("a"))
    whole, opened = Store.open, []

    def cut_at_first(store: Store, name: str) -> pa.NativeFile:
        with whole(store, name) as file:
            data = file.read()
        opened.append(name)
        return pa.BufferReader(data[:-9] if len(opened) == 1 else data)

    monkeypatch.setattr(Store, "open", cut_at_first)
    assert far.runs().keys() == {"a"} and far.problems == []
    assert len(opened) == 2


def test_an_address_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a folder, or an address .*, got x://y"):
        Ledger("x://y")


def test_a_stop_is_asked_for_seen_and_cleared(ledger: Ledger) -> None:
    ledger.clear_stop()
    ledger.request_stop()
    assert ledger.stop_requested()
    ledger.clear_stop()
    assert not ledger.stop_requested()


def test_the_ledger_loads_neither_torch_nor_ray_nor_the_trainer() -> None:
    code = (
        "import sys; import ascl_sweep.ledger\n"
        "assert not {'torch', 'ray', 'ascl', 'pandas', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
