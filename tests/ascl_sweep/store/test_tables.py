"""Tables: files with different columns form one table; bad files are reported and skipped."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.errors import StoreError
from ascl_sweep.store import arrow, tables
from ascl_sweep.store.filesystem import StoreFiles
from ascl_sweep.store.store import Store, compact
from tests.ascl_sweep.store.rows import a_run, few_files, put, write_bytes

# --- different schemas --------------------------------------------------------------------------


def test_methods_have_columns_of_their_own(tmp_path: Path) -> None:
    put(tmp_path, a_run("a", config={"method.queue": 1}))
    put(tmp_path, a_run("b", config={"method.momentum": 0.9, "method.queue": None}))
    for _ in range(2):
        runs = Store(tmp_path).runs()
        assert runs["a"].config == {"method.queue": 1}
        assert runs["b"].config == {"method.momentum": 0.9, "method.queue": None}
        compact(Store(tmp_path))


DISAGREEING: list[dict[str, Any]] = [
    {"x.f": 2**60 + 1, "x.t": 16, "x.n": None, "x.b": True},
    {"x.f": 0.5, "x.t": "auto", "x.n": "s", "x.b": "true"},
]


@pytest.mark.parametrize("together", [True, False])
def test_runs_keep_their_own_values_where_they_disagree_on_the_type(
    tmp_path: Path, together: bool
) -> None:
    rows = [a_run(str(i), config=config) for i, config in enumerate(DISAGREEING)]
    for part in [rows] if together else [[row] for row in rows]:
        put(tmp_path, *part)
    for _ in range(2):
        runs = Store(tmp_path).runs()
        assert [runs[str(i)].config for i in range(2)] == DISAGREEING
        compact(Store(tmp_path))


def test_rows_of_earlier_versions_have_the_values_of_their_columns(tmp_path: Path) -> None:
    put(tmp_path, *[a_run(str(i), config=config) for i, config in enumerate(DISAGREEING)])
    (file,) = (tmp_path / "runs").glob("*.parquet")
    pq.write_table(pq.read_table(file).drop_columns(["config_json"]), file)
    put(tmp_path, a_run("2", config={"x.b": False}))
    runs = Store(tmp_path).runs()
    assert runs["0"].config == {"x.f": 2.0**60, "x.t": "16", "x.n": None, "x.b": "true"}
    assert runs["1"].config == {"x.f": 0.5, "x.t": "auto", "x.n": "s", "x.b": "true"}
    assert runs["2"].config == {"x.b": False}


def test_a_field_that_an_old_file_lacks_has_its_default(tmp_path: Path) -> None:
    later = {"backprops": 2, "ema": True, "peak_memory_gb": 1.5}
    put(tmp_path, a_run("a", audit=True, epochs=3, host="h", **later))
    (file,) = (tmp_path / "runs").glob("*.parquet")
    table = pq.read_table(file).drop_columns(["audit", "epochs_done", "host", "none_keys", *later])
    pq.write_table(table.append_column("of_a_later_version", pa.array([1])), file)
    put(tmp_path, a_run("b"))
    assert Store(tmp_path).runs() == {"a": a_run("a"), "b": a_run("b")}


@pytest.mark.parametrize("rows", [1, 2, 30_000])
def test_the_latest_rows_are_those_of_a_dict(rows: int) -> None:
    rng = np.random.default_rng(rows)
    keys = [*zip(rng.choice(list("bca"), rows), rng.integers(0, 3000, rows).tolist(), strict=True)]
    wanted = {key: row for row, key in enumerate(keys)}
    names = [name for name, _ in keys]
    table = pa.table({"run": names, "epoch": [epoch for _, epoch in keys], "row": range(rows)})
    table = pa.concat_tables([table.slice(0, rows // 3), table.slice(rows // 3)])
    found = arrow.keep_latest(table, ("run", "epoch")).to_pydict()
    order = sorted(wanted, key=lambda key: (names.index(key[0]), key[1]))
    assert [*zip(found["run"], found["epoch"], strict=True)] == order
    assert found["row"] == [wanted[key] for key in order]


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
        (lambda whole: b"", "is damaged or not Parquet; restore it from a backup, or recover"),
        (lambda whole: whole[:-1], "is damaged or not Parquet"),
        (lambda whole: whole[: len(whole) // 2], "is damaged or not Parquet"),
        (lambda whole: whole[:40] + b"\xff" * 300 + whole[340:], "is damaged or not Parquet"),
        (lambda whole: bytes(range(256)) * 40, "is damaged or not Parquet"),
        (lambda whole: foreign_table(None), "is not a file of the runs table; move it elsewhere"),
        (lambda whole: foreign_table({b"ascl_sweep.format": b"1"}), "not a file of the runs table"),
        (
            lambda whole: foreign_table({b"ascl_sweep.format": b"2"}),
            "format 2, .* format 1; upgrade",
        ),
    ],
    ids=["empty", "cut", "half", "overwritten", "bytes", "foreign", "keyless", "newer"],
)
def test_a_bad_file_is_named_and_skipped(
    tmp_path: Path, contents: Callable[[bytes], bytes], sentence: str
) -> None:
    bad = tmp_path / "runs" / "00000002.parquet"
    put(tmp_path, a_run("a"))
    write_bytes(bad, contents(whole_file(tmp_path / "other")))
    put(tmp_path, a_run("b"))
    put(tmp_path, a_run("c"))
    store, files = Store(tmp_path), sorted((tmp_path / "runs").iterdir())
    assert store.runs().keys() == {"a", "b", "c"}
    (problem,) = store.problems
    assert re.search(sentence, problem) and problem.startswith(f"{bad} was skipped: it ")
    with pytest.raises(StoreError, match="nothing was changed, because results would be lost: /"):
        compact(store)
    assert sorted((tmp_path / "runs").iterdir()) == files
    with few_files():  # a file becomes unreadable while a driver is running
        put(tmp_path, a_run("d"))
    assert store.runs().keys() == {"a", "b", "c", "d"} and bad.exists()
    assert len(list((tmp_path / "runs").iterdir())) == 3, "no merge across the bad file"


def test_a_file_with_a_name_of_its_own_is_named_and_skipped(tmp_path: Path) -> None:
    write_bytes(tmp_path / "runs" / "copy.parquet", whole_file(tmp_path / "other"))
    write_bytes(tmp_path / "runs" / "notes.txt", b"mine")
    put(tmp_path, a_run("a"))
    store = Store(tmp_path)
    assert store.runs().keys() == {"a"}
    assert [p for p in store.problems if "copy.parquet was skipped" in p] == store.problems != []


@settings(max_examples=60)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_skipped(
    tmp_path_factory: pytest.TempPathFactory, cut: float
) -> None:
    store = tmp_path_factory.mktemp("store")
    whole = whole_file(store)
    write_bytes(store / "runs" / "00000002.parquet", whole[: int(cut * len(whole))])
    store = Store(store)
    assert store.runs().keys() == {"x"} and len(store.problems) == 1


def test_a_good_file_that_cannot_be_read_now_is_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(store: StoreFiles, name: str) -> None:
        raise PermissionError(13, "Permission denied", name)

    put(tmp_path, a_run())
    monkeypatch.setattr(StoreFiles, "open", refused)
    with pytest.raises(PermissionError, match=r"runs/00000001-"):
        Store(tmp_path).runs()


# --- many files ---------------------------------------------------------------------------------


def test_a_long_sweep_keeps_few_files_and_rewrites_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MANY_FILES", 10)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    written: dict[bool, int] = {True: 0, False: 0}  # bytes of merges, of flushes
    create = StoreFiles.create

    def counting(store: StoreFiles, name: str, data: pa.Buffer) -> None:
        written[name.count("-") == 2] += data.size
        create(store, name, data)

    monkeypatch.setattr(StoreFiles, "create", counting)
    rows = 0
    with Store(tmp_path).writer() as writer:
        for i in range(400):
            for j in range(1 + 20 * (i % 50 == 7)):
                rows += 1
                writer.put_epoch(f"r{j}", {"epoch": i, "loss": 0.1 * i})
            writer.flush()
            assert len(list((tmp_path / "epochs").iterdir())) <= 11
    assert len(Store(tmp_path).epochs_table()) == rows
    assert 0 < written[True] < written[False]


def test_a_merge_that_fails_does_not_fail_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: StoreFiles, name: str) -> None:
        raise OSError(28, "No space left on device")

    with few_files(), Store(tmp_path).writer() as writer:
        monkeypatch.setattr(StoreFiles, "delete", full)
        for i in range(8):
            writer.put_run(a_run(str(i)))
            writer.flush()
        monkeypatch.undo()
        writer.put_run(a_run("8"))
        writer.flush()
    assert len(list((tmp_path / "runs").iterdir())) <= 4
    assert len(Store(tmp_path).runs()) == 9
