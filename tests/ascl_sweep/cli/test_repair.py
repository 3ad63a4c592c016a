"""A store with damaged files: commands that write refuse, and `repair` recovers what it can."""

import errno
import io
import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ascl.config import RunConfig
from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, RunState, SweepRow
from ascl_sweep.runtime.records import summarize_epochs
from ascl_sweep.spec.sweep import parse_sweep
from ascl_sweep.store import tables
from ascl_sweep.store.filesystem import StoreFiles
from ascl_sweep.store.store import Store
from tests.ascl_sweep.conftest import Ask
from tests.ascl_sweep.search.test_study import GRID, OPTUNA
from tests.sweeps import GRID as REAL_GRID
from tests.sweeps import ascl_sweep, numbers, states, write

Files = dict[str, bytes]


def finished(
    text: str, temperature: float, *, epochs: int | None = None
) -> tuple[RunRow, RunConfig, list[EpochMetrics]]:
    """Return the row, the config and the epochs of a run of a sweep."""
    spec = parse_sweep(text, file="it.yaml")
    phase = "search" if spec.is_search else "final"
    config = spec.config({"method.target_temperature": temperature}, seed=0, phase=phase)
    curve = [
        EpochMetrics(e, 2.0 / e, 0.1, knn_top1=e / 1000, train_seconds=1.0)
        for e in range(1, (config.epochs if epochs is None else epochs) + 1)
    ]
    row = RunRow(
        *(config.identity(), ("it",), config.flat_values(), phase, "full"),
        created=1.0,
        log="log.txt",
        idle=config.idle_keys(),
    )
    state = RunState.DONE if len(curve) == config.epochs else RunState.LOST
    return replace(summarize_epochs(row, curve), state=state), config, curve


def fill(store: Path, text: str = GRID, *, work: bool = True) -> dict[str, RunRow]:
    """Fill a store with two finished runs, one unfinished run and their work folders."""
    rows = {}
    with Store(store).writer() as writer:
        writer.put_sweep(SweepRow("it", text, "it.yaml", (), "full", 1.0, 4))
        for temperature, epochs in ((0.01, None), (0.02, None), (0.05, 3)):
            row, config, curve = finished(text, temperature, epochs=epochs)
            rows[row.run_id] = row
            writer.put_run(row)
            for metrics in curve:
                writer.put_epoch(row.run_id, metrics)
            if work:
                folder = store / "work" / row.run_id
                folder.mkdir(parents=True)
                (folder / "checkpoint.pt").write_bytes(b"weights")
                (folder / "config.yaml").write_text(config.to_yaml())
                lines = [json.dumps(asdict(metrics)) + "\n" for metrics in curve]
                (folder / "metrics.jsonl").write_text("".join(lines))
    return rows


def flip(store: Path, table: str, column: str | None = None) -> Path:
    """Flip a byte in the only file of a table: of a column, or of the first one."""
    (file,) = (store / table).glob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    chunks = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    chunk = chunks[column] if column else group.column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(file.read_bytes())
    content[start + chunk.total_compressed_size - 2] ^= 0xFF
    file.write_bytes(content)
    return file


def content(store: Path) -> Files:
    return {str(p): p.read_bytes() for p in store.rglob("*") if p.is_file() and p.name != ".lock"}


REFUSED = [
    ["gc"],
    ["gc", "--done", "--unknown"],
    ["compact"],
    ["run", "it.yaml", "--executor", "local"],
    ["run", "--resume", "--executor", "local"],
    ["run", "it.yaml", "--retry", "failed", "--executor", "local"],
]


@pytest.mark.parametrize("table", ["runs", "epochs", "sweeps"])
@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_a_damaged_table_stops_every_command_that_writes_or_deletes(
    ask: Ask, tmp_path: Path, words: list[str], table: str
) -> None:
    (tmp_path / "it.yaml").write_text(GRID)
    fill(tmp_path / "results")
    file = flip(tmp_path / "results", table)
    before = content(tmp_path / "results")
    said = ask(*words)
    assert said.exit_code == 2, said.output
    assert f"error: nothing was changed, because results would be lost: {file}" in said.stderr
    assert "`ascl-sweep repair`" in said.stderr and "Traceback" not in said.stderr
    assert content(tmp_path / "results") == before


@pytest.mark.parametrize("words", [*REFUSED, ["repair"]], ids=" ".join)
def test_a_newer_table_stops_every_command_that_writes_or_deletes(
    ask: Ask, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "it.yaml").write_text(GRID)
    fill(tmp_path / "results")
    newer = pa.table({"of": [1]}).replace_schema_metadata({tables.FORMAT_KEY: "2"})
    pq.write_table(newer, tmp_path / "results" / "runs" / "named-by-a-newer-version.parquet")
    before = content(tmp_path / "results")
    said = ask(*words)
    assert said.exit_code == 2 and "upgrade ascl-sweep" in said.stderr, said.output
    assert content(tmp_path / "results") == before


@pytest.mark.parametrize("text", [GRID, OPTUNA], ids=["grid", "optuna"])
def test_repair_rebuilds_lost_rows_from_epochs_and_work(
    ask: Ask, tmp_path: Path, text: str
) -> None:
    rows = fill(tmp_path / "results", text)
    flip(tmp_path / "results", "runs")
    said = ask("repair")
    assert said.exit_code == 0, said.output
    assert "0 rows, 3 rows lost; moved to damaged/runs-" in said.stderr
    assert "rebuilt the rows of 3 runs: 2 done, 1 lost" in said.stderr
    store = Store(tmp_path / "results")
    found = store.runs()
    assert {i: row.state for i, row in found.items()} == {i: row.state for i, row in rows.items()}
    own = {"created": None, "log": None, "backprops": None, "ema": None}
    assert {i: replace(row, **own) for i, row in found.items()} == {
        i: replace(row, **own) for i, row in rows.items()
    }
    assert store.problems == [] and len(list((tmp_path / "results" / "damaged").iterdir())) == 1
    again = ask("repair")
    assert again.exit_code == 0 and "rebuilt" not in again.stderr
    assert ask("gc").exit_code == 0 and len(store.work_ids()) == 3


class BadSector(io.BytesIO):
    """A file on a disk of which a part cannot be read."""

    def __init__(self, content: bytes, bad: range) -> None:
        super().__init__(content)
        self._bad = bad

    def read(self, size: int | None = -1) -> bytes:
        start = self.tell()
        content = super().read(size)
        if start < self._bad.stop and self._bad.start < self.tell():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return content


def damage_disk(patch: pytest.MonkeyPatch, file: Path, bad: range) -> None:
    """Let reading a part of a file fail with EIO."""
    open_ = StoreFiles.open

    def read(files: StoreFiles, name: str) -> pa.NativeFile:
        if not str(file).endswith(f"/{name}"):
            return open_(files, name)
        return pa.PythonFile(BadSector(file.read_bytes(), bad), mode="r")

    patch.setattr(StoreFiles, "open", read)


@pytest.mark.parametrize(("start", "kept"), [(200, 2), (-100, 0)], ids=["rows", "footer"])
def test_repair_recovers_the_rows_beside_a_bad_sector(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, kept: int
) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP", 1)
    rows = fill(tmp_path / "results")
    (file,) = (tmp_path / "results" / "runs").iterdir()
    start %= file.stat().st_size
    damage_disk(monkeypatch, file, range(start, start + 50))
    refused = ask("compact")
    assert refused.exit_code == 2 and f"{file} was skipped: it has a bad sector;" in refused.stderr
    said = ask("repair")
    assert said.exit_code == 0, said.output
    assert (f"recovered {kept} rows" if kept else "not a readable table") in said.stderr
    found = Store(tmp_path / "results").runs()
    assert {i: row.state for i, row in found.items()} == {i: row.state for i, row in rows.items()}


def test_repair_ignores_working_files_with_a_bad_sector(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(tmp_path / "results")
    flip(tmp_path / "results", "runs")
    (bad, *_) = rows
    damage_disk(monkeypatch, tmp_path / "results" / "work" / bad / "metrics.jsonl", range(50))
    assert ask("repair").exit_code == 0
    found = Store(tmp_path / "results").runs()
    assert {i: row.state for i, row in found.items()} == {i: row.state for i, row in rows.items()}


def test_a_network_mount_that_fails_is_not_taken_for_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "results")
    (file,) = (tmp_path / "results" / "runs").iterdir()
    damage_disk(monkeypatch, file, range(file.stat().st_size))
    monkeypatch.setattr("ascl_sweep.store.network.is_network_folder", lambda folder: True)
    with pytest.raises(OSError, match="Input/output error"):
        Store(tmp_path / "results").read_all()


def test_repair_rebuilds_the_rows_of_runs_without_work_from_their_sweep(
    ask: Ask, tmp_path: Path
) -> None:
    rows = fill(tmp_path / "results", work=False)
    flip(tmp_path / "results", "runs")
    assert ask("repair").exit_code == 0
    found = Store(tmp_path / "results").runs()
    assert {i: (r.state, r.config, r.sweeps, r.knn_last_top1) for i, r in found.items()} == {
        i: (r.state, r.config, r.sweeps, r.knn_last_top1) for i, r in rows.items()
    }


def test_repair_names_the_runs_that_nothing_describes(ask: Ask, tmp_path: Path) -> None:
    rows = fill(tmp_path / "results", work=False)
    flip(tmp_path / "results", "runs")
    flip(tmp_path / "results", "sweeps")
    said = ask("repair")
    assert said.exit_code == 0 and "the rows of 3 runs are lost" in said.stderr
    assert all(run_id in said.stderr for run_id in rows)


def test_repair_restores_epochs_and_keeps_the_columns_that_are_readable(
    ask: Ask, tmp_path: Path
) -> None:
    rows = fill(tmp_path / "results")
    store = Store(tmp_path / "results")
    epochs = store.epochs()
    flip(tmp_path / "results", "epochs", "loss")
    said = ask("repair")
    assert said.exit_code == 0 and "values lost in loss" in said.stderr
    curves = {i: {e.epoch: e.knn_top1 for e in curve} for i, curve in epochs.items()}
    assert store.knn_curves() == curves
    flip(tmp_path / "results", "epochs", "epoch")
    said = ask("repair")
    assert said.exit_code == 0 and "epochs of 3 runs from work/" in said.stderr
    assert store.epochs() == epochs and store.runs() == rows


def test_salvaged_rows_stay_older_than_the_rows_of_later_files(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP", 1)
    rows = list(fill(tmp_path / "results").values())
    (file,) = (tmp_path / "results" / "runs").iterdir()
    flip(tmp_path / "results", "runs")  # the first of three row groups
    with Store(tmp_path / "results").writer() as writer:
        writer.put_run(replace(rows[1], host="later"))
    said = ask("repair")
    assert said.exit_code == 0 and "recovered 2 rows, 1 row lost" in said.stderr
    found = Store(tmp_path / "results").runs()
    assert found.keys() == {row.run_id for row in rows}
    assert found[rows[1].run_id].host == "later" and found[rows[2].run_id] == rows[2]
    (moved,) = (tmp_path / "results" / "damaged").iterdir()
    assert moved.name.endswith(file.name)


def test_gc_keeps_the_folders_of_unknown_runs_unless_told_otherwise(
    ask: Ask, tmp_path: Path
) -> None:
    fill(tmp_path / "results")
    work = tmp_path / "results" / "work"
    for name in ("0123456789ab", "lost+found"):
        (work / name).mkdir()
        (work / name / "checkpoint.pt").write_bytes(b"weights")
    said = ask("gc")
    assert said.exit_code == 0, said.output
    assert "freed 0.0 MB of 0 runs" in said.stderr
    assert (
        "kept 1 work folder of runs that the store" in said.stderr and "gc --unknown" in said.stderr
    )
    assert (work / "0123456789ab").exists()
    assert ask("gc", "--unknown").exit_code == 0
    assert not (work / "0123456789ab").exists(), "only this one"
    assert (work / "lost+found").exists() and len(list(work.iterdir())) == 4


@pytest.mark.parametrize("planned", [False, True])
def test_run_never_plans_a_run_again_that_has_epochs(
    ask: Ask, tmp_path: Path, planned: bool
) -> None:
    """The rows were deleted; or an earlier version wrote `planned` over them."""
    from ascl_sweep.runtime.sweeps import prepare_sweeps

    rows = fill(tmp_path / "results", work=False)
    for file in (tmp_path / "results" / "runs").iterdir():
        file.unlink()
    if planned:
        with Store(tmp_path / "results").writer() as writer:
            for row in rows.values():
                writer.put_run(RunRow(row.run_id, ("it",), row.config, row.phase, row.scale))
    prepared = prepare_sweeps([parse_sweep(GRID, file="it.yaml")], Store(tmp_path / "results"))
    found = prepared.history.rows
    assert {i: found[i].state for i in rows} == {i: row.state for i, row in rows.items()}
    assert {i: found[i].epochs for i in rows} == {i: row.epochs for i, row in rows.items()}


@pytest.mark.slow
def test_a_real_sweep_survives_a_flipped_byte(tmp_path: Path) -> None:
    at = ("--store", tmp_path / "store")
    words = ("run", write(tmp_path, REAL_GRID), *at, "--executor", "local")

    def run(*words: object) -> "subprocess.CompletedProcess[str]":
        return ascl_sweep(*words)

    assert run(*words).returncode == 0 and run("compact", *at).returncode == 0
    before, work = numbers(tmp_path / "store"), sorted((tmp_path / "store" / "work").rglob("*"))
    flip(tmp_path / "store", "runs")
    for refused in (("gc", *at), ("compact", *at), words):
        said = run(*refused)
        assert said.returncode == 2 and "nothing was changed" in said.stderr
    assert sorted((tmp_path / "store" / "work").rglob("*")) == work
    repaired = run("repair", *at)
    assert repaired.returncode == 0 and "4 done" in repaired.stderr
    again = run(*words)
    assert again.returncode == 0 and states(tmp_path / "store") == ["done"] * 4
    assert numbers(tmp_path / "store") == before, "nothing was trained again"
