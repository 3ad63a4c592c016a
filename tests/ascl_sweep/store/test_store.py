"""The store returns rows as they were written, also through any other Parquet reader."""

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow
from ascl_sweep.store.store import Store, compact
from tests.ascl_sweep.store.rows import a_run, a_sweep, few_files, put, write_bytes
from tests.paths import ROOT

# --- rows are returned as written ---------------------------------------------------------------

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
    found = Store(store).runs()
    assert found["a"] == row
    assert {k: type(v) for k, v in found["a"].config.items()} == {
        k: type(v) for k, v in config.items()
    }
    assert found["b"].config == {"other.key": None}, "a run has no keys of other runs"


def test_sweeps_and_epochs_read_back_as_they_were_put(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = EpochMetrics(1, 2, 0.1), EpochMetrics(2, float("inf"), 0.1, knn_top1=0.5)
    with store.writer() as writer:
        writer.put_sweep(a_sweep())
        writer.put_epoch("b", second)
        writer.put_epoch("b", EpochMetrics(1, float("nan"), 0.1))
        writer.put_epoch("a", first)
    assert store.sweeps() == {"tau": a_sweep()}
    epochs = store.epochs()
    assert epochs["a"] == [first]
    assert np.isnan(epochs["b"][0].loss) and epochs["b"][1:] == [second]
    assert store.epochs(["a", "unknown"]) == {"a": [first]}
    assert store.epochs([]) == {}
    assert store.knn_curves() == {"b": {1: None, 2: 0.5}, "a": {1: None}}
    assert store.last_epochs(["knn_top1"]) == {"b": {"knn_top1": 0.5}, "a": {"knn_top1": None}}


def test_metrics_of_other_versions_are_kept_and_those_they_lack_have_a_default(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    with store.writer() as writer:
        writer.put_epoch("a", {"epoch": 1, "knn_top1": 0.5, "of_a_later_version": 3.0})
    (found,) = store.epochs()["a"]
    assert np.isnan(found.loss) and (found.knn_top1, found.train_seconds) == (0.5, 0.0)
    assert store.last_epochs(["of_a_later_version"]) == {"a": {"of_a_later_version": 3.0}}


def test_curves_have_the_metrics_that_were_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writer() as writer:
        for run_id in ("a", "b"):
            for epoch in (2, 1):
                writer.put_epoch(run_id, EpochMetrics(epoch, 2.0, 0.1, knn_top1=epoch / 4))
    curves = dict(store.curves(["knn_top1", "new"]))
    assert list(curves) == ["a", "b"]
    for found in curves.values():
        assert found["epoch"].tolist() == [1, 2]
        assert found["knn_top1"].tolist() == [0.25, 0.5]
        assert np.isnan(found["new"]).all()
    assert dict(Store(tmp_path / "empty").curves(["loss"])) == {}


def test_runs_are_in_order_of_creation_then_id(tmp_path: Path) -> None:
    put(tmp_path, a_run("b", created=2.0), a_run("z", created=1.0), a_run("a", created=2.0))
    assert list(Store(tmp_path).runs()) == ["z", "a", "b"]


def test_a_snapshot_is_what_the_tables_have_and_every_write_changes_the_version(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    versions = [store.version()]
    with store.writer() as writer:
        for put_one in (
            lambda: writer.put_run(a_run()),
            lambda: writer.put_sweep(a_sweep()),
            lambda: writer.put_epoch("a1", EpochMetrics(1, 2.0, 0.1, knn_top1=0.5)),
        ):
            put_one()
            writer.flush()
            versions.append(store.version())
    assert len({*versions}) == 4
    found = store.snapshot()
    assert (found.runs, found.sweeps) == (store.runs(), store.sweeps())
    assert (found.curves, found.version) == ({"a1": {1: 0.5}}, versions[-1])


def test_nothing_is_created_by_reading(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert (store.runs(), store.epochs(), store.sweeps()) == ({}, {}, {})
    assert (store.last_epochs(["loss"]), store.version()) == ({}, ())
    assert len(store.epochs_table(["knn_top1"])) == len(store.runs_table()) == 0
    assert store.driver() is None and not store.stop_requested() and not store.work_ids()
    assert store.problems == [] and not list(tmp_path.iterdir())


def test_a_table_has_the_columns_that_were_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writer() as writer:
        writer.put_epoch("a", {"epoch": 1, "loss": 2.0, "lr": 1.0})
        writer.flush()
        writer.put_epoch("a", {"epoch": 1, "loss": 3.0, "lr": 1.0})
    assert store.epochs_table(["loss", "run_id", "new"]).to_pydict() == {
        "loss": [3.0],
        "run_id": ["a"],
        "new": [None],
    }


# --- other Parquet readers ----------------------------------------------------------------------


def test_columns_are_named_for_people(tmp_path: Path) -> None:
    put(tmp_path, a_run(epochs=3, created=1.5e9))
    (file,) = (tmp_path / "runs").glob("*.parquet")
    row = pq.read_table(file).to_pylist()[0]
    assert (row["epochs"], row["epochs_done"]) == (200, 3)
    assert row["optim.lr"] == 0.03 and row["sweeps"] == ["tau", "joint"]
    assert row["created"].isoformat() == "2017-07-14T02:40:00+00:00"
    frame = pandas.read_parquet(tmp_path / "runs")
    assert frame.loc[0, "method.name"] == "moco" and frame.loc[0, "seed"] == 1


# --- invalid input ------------------------------------------------------------------------------


def test_no_text_or_number_can_spoil_a_flush(tmp_path: Path) -> None:
    huge = 2**70
    put(
        tmp_path,
        a_run(error="in \udcff.pt", sweeps=("\ud800",), config={"seed": huge, "a.b": "\ud800"}),
        a_run("b", config={"a.c": np.float64(0.5)}),
    )
    found = Store(tmp_path).runs()
    assert found["a1"].error == "in \\udcff.pt" and found["a1"].sweeps == ("\\ud800",)
    assert found["a1"].config == {"seed": huge, "a.b": "\\ud800"}
    assert found["b"].config == {"a.c": 0.5}


def test_what_cannot_be_stored_is_refused_when_it_is_put(tmp_path: Path) -> None:
    with Store(tmp_path).writer() as writer:
        with pytest.raises(ValueError, match="'dnoe' is not a valid RunState"):
            writer.put_run(a_run(state="dnoe"))
        with pytest.raises(
            ValueError, match="a config key must not be a fixed column, got 'state'"
        ):
            writer.put_run(a_run(config={"state": 1}))
        with pytest.raises(TypeError, match=r"must be a bool, .*, got a\.b=\[1\] \(list\)"):
            writer.put_run(a_run(config={"a.b": [1]}))
        with pytest.raises(ValueError, match="must include an epoch of 0 or more, got epoch=None"):
            writer.put_epoch("a", {"loss": 1.0})
        with pytest.raises(
            ValueError, match="a metric key must not be a fixed column, got 'run_id'"
        ):
            writer.put_epoch("a", {"epoch": 1, "run_id": "b"})
    assert Store(tmp_path).runs() == Store(tmp_path).epochs() == {}


# --- full disk ----------------------------------------------------------------------------------


def test_a_full_disk_damages_nothing_and_the_rows_wait(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writer() as writer:
        writer.put_run(a_run("a"))
        writer.flush()
        writer.put_run(a_run("a", state="done"))
        writer.put_epoch("a", {"epoch": 1})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))  # writes fail as on a full disk
        try:
            with pytest.raises(OSError, match=r"cannot be written: .*epochs/00000001-"):
                writer.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.runs()["a"].state == "planned" and store.epochs() == {}
        assert store.problems == [] and not list(tmp_path.glob("*/.*"))
        writer.flush()
        assert store.runs()["a"].state == "done" and store.epochs().keys() == {"a"}


# --- work folders, stop requests ----------------------------------------------------------------


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("ascl_sweep.store.lease.SETTLE_SECONDS", 0.0)
    remote = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    store = Store(remote if request.param == "remote" else tmp_path)
    assert (store.folder is None) == (request.param == "remote")
    return store


def test_any_file_system_will_do(store: Store, tmp_path: Path) -> None:
    with few_files(), store.writer() as writer:
        for i in range(9):
            writer.put_run(a_run("a", epochs=i))
            writer.put_epoch("a", {"epoch": i, "loss": 1.0})
            writer.flush()
    assert store.runs() == {"a": a_run("a", epochs=8)}
    assert len(store.epochs()["a"]) == 9 and store.problems == []
    assert compact(store)["epochs"][1] == 1
    (file,) = (tmp_path / "runs").iterdir()
    assert file.name.startswith("00000009-"), "a merged file is named after its newest input"
    assert len(store.epochs()["a"]) == 9


def test_a_runs_own_files_are_found_measured_and_deleted(store: Store, tmp_path: Path) -> None:
    store.delete_work("a1")
    for run_id in ("a1", "b2"):
        write_bytes(tmp_path / "work" / run_id / "deep" / "checkpoint.pt", b"12345")
    write_bytes(tmp_path / "work" / "a1" / "log.txt", b"a line")
    assert store.work_ids() == ["a1", "b2"]
    assert (store.work_bytes("a1"), store.work_bytes("none")) == (11, 0)
    assert store.work("a1").endswith("/work/a1")
    assert (store.log_text("a1"), store.log_text("b2")) == ("a line", None)
    store.delete_work("a1")
    assert store.work_ids() == ["b2"]


@pytest.mark.parametrize("run_id", ["", ".", "..", "../runs", "a/b", "/"])
def test_no_run_id_leads_out_of_the_work_folder(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="a run id may contain letters"):
        Store(tmp_path).delete_work(run_id)


def test_a_stop_is_asked_for_seen_and_cleared(store: Store) -> None:
    store.clear_stop()
    store.request_stop()
    assert store.stop_requested()
    store.clear_stop()
    assert not store.stop_requested()


def test_reading_loads_neither_torch_nor_ray_nor_pandas(tmp_path: Path) -> None:
    with Store(tmp_path).writer() as writer:
        for i in range(3):  # files with different columns, which are sorted and unified
            writer.put_run(a_run(str(i % 2), config={"seed": i, f"k{i}": i}))
            writer.put_epoch("a", {"epoch": 3 - i, f"m{i}": 1.0})
            writer.flush()
    code = (
        "import sys; from ascl_sweep.store.store import Store\n"
        "found = Store(sys.argv[1]).snapshot(); assert len(found.runs) == 2, found\n"
        "assert not {'torch', 'ray', 'ascl.config', 'pandas', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=ROOT)
