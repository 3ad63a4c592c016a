"""A sweep with its store on S3, run with the real command against a local moto server."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow.fs import FileSystem, copy_files

from ascl.metrics import EpochMetrics
from ascl_sweep.store.filesystem import StoreFiles
from ascl_sweep.store.store import Store, StoreBusyError
from ascl_sweep.store.work_folder import open_work_folder
from tests.ascl_sweep.cli.test_repair import fill, flip
from tests.s3 import S3, serving
from tests.sweeps import (
    GRID,
    ascl_sweep,
    epochs_recorded,
    kill,
    numbers,
    orphans,
    start,
    states,
    wait_until,
    write,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


LONG = GRID.replace("epochs: 5", "epochs: 15")  # still training when a second driver has started


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    yield from serving(tmp_path_factory.mktemp("s3"))


@dataclass(frozen=True)
class Disturbed:
    """A sweep on S3 whose driver was killed: epochs recorded until then, and later commands."""

    store: str
    recorded: dict[str, list[EpochMetrics]]
    second: subprocess.CompletedProcess[str]
    again: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def disturbed(remote: S3, tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    folder = tmp_path_factory.mktemp("disturbed")
    store, path, log = remote.address("results"), write(folder, LONG), folder / "log"
    driver = start("run", path, "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    second = ascl_sweep("run", path, "--store", store)
    kill(driver.pid)
    driver.wait()
    recorded = Store(store).epochs()
    again = ascl_sweep("run", path, "--store", store)
    return Disturbed(store, recorded, second, again)


def test_a_second_driver_is_refused_while_the_first_writes(disturbed: Disturbed) -> None:
    assert disturbed.second.returncode == 2, disturbed.second.stderr
    assert "another driver is writing to the store" in disturbed.second.stderr


def test_a_sweep_killed_on_s3_goes_on_at_once_and_has_the_numbers_of_one_on_disk(
    disturbed: Disturbed, tmp_path: Path
) -> None:
    assert disturbed.again.returncode == 0, disturbed.again.stderr
    assert states(disturbed.store) == ["done"] * 4
    words = ("run", write(tmp_path, LONG), "--store", tmp_path / "store", "--executor", "local")
    here = ascl_sweep(*words)
    assert here.returncode == 0, here.stderr
    assert numbers(disturbed.store) == numbers(tmp_path / "store")
    assert orphans() == []


def test_runs_went_on_from_their_checkpoints(disturbed: Disturbed) -> None:
    assert 3 <= sum(map(len, disturbed.recorded.values())) < 60
    after = Store(disturbed.store).epochs()
    for run_id, epochs in disturbed.recorded.items():
        assert after[run_id][: len(epochs)] == epochs, (
            "also the durations: no epoch was trained again"
        )


def test_every_run_has_its_own_files_on_s3(disturbed: Disturbed) -> None:
    for row in Store(disturbed.store).runs().values():
        assert row.log is not None
        files, path = FileSystem.from_uri(row.log)
        assert path == f"bucket/results/work/{row.run_id}/log.txt"
        for name in ("checkpoint.pt", "config.yaml", "metrics.jsonl", "log.txt"):
            assert files.get_file_info(path.replace("log.txt", name)).is_file


def test_what_reads_a_store_reads_one_on_s3(disturbed: Disturbed, tmp_path: Path) -> None:
    at = "--store", disturbed.store
    status = json.loads(ascl_sweep("status", *at, "--json").stdout)
    assert status["driver"] is None and status["sweeps"][0]["states"] == {"done": 4}
    best = ascl_sweep("best", "grid", *at, "--json")
    assert json.loads(best.stdout)["grid"]["n"] == 2, best.stderr
    assert ascl_sweep("compact", *at).returncode == 0
    for name in ("report.md", "report.html"):
        made = ascl_sweep("report", "grid", *at, "--out", tmp_path / name)
        assert made.returncode == 0, made.stderr
        assert ascl_sweep("report", "--verify", tmp_path / name, *at).returncode == 0
    assert "| 2/2 |" in (tmp_path / "report.md").read_text()


def test_repair_recovers_a_store_on_s3(remote: S3, tmp_path: Path) -> None:
    rows = fill(tmp_path / "results")
    damaged = flip(tmp_path / "results", "runs")
    address = remote.address("repaired")
    copy_files(str(tmp_path / "results"), "bucket/repaired", None, FileSystem.from_uri(address)[0])
    refused = ascl_sweep("compact", "--store", address)
    assert refused.returncode == 2 and "`ascl-sweep repair`" in refused.stderr
    said = ascl_sweep("repair", "--store", address)
    assert said.returncode == 0, said.stderr
    assert "rebuilt the rows of 3 runs: 2 done, 1 lost" in said.stderr
    store = Store(address)
    found = store.runs()
    assert {i: row.state for i, row in found.items()} == {i: row.state for i, row in rows.items()}
    assert store.problems == []
    (moved,) = StoreFiles(address).list_files("damaged")
    assert moved.name.endswith(damaged.name) and moved.bytes == damaged.stat().st_size
    assert ascl_sweep("compact", "--store", address).returncode == 0


def test_gc_frees_what_it_is_told_to_on_s3(disturbed: Disturbed, remote: S3) -> None:
    s3, source = FileSystem.from_uri(disturbed.store)
    copy_files(source, "bucket/copy", s3, s3)
    address = remote.address("copy")
    store = Store(address)
    assert ascl_sweep("gc", "--store", address).returncode == 0
    assert len(store.work_ids()) == 4
    gone = ascl_sweep("gc", "--store", address, "--done")
    assert gone.returncode == 0 and "of 4 runs" in gone.stderr
    assert store.work_ids() == [] and len(store.runs()) == 4


def test_one_writer_at_a_time_holds_a_lease_on_s3(remote: S3) -> None:
    store = Store(remote.address("lease"))
    with store.writer():
        assert store.driver() is not None
        with pytest.raises(StoreBusyError):
            Store(remote.address("lease")).writer().__enter__()
    assert store.driver() is None


def test_a_work_folder_on_s3_has_what_was_pushed(remote: S3) -> None:
    address = Store(remote.address("folders")).work("a")
    with open_work_folder(address) as first:
        first.pull()
        for name, content in {"checkpoint.pt": bytes(11 << 20), "log.txt": b""}.items():
            (first.path / name).write_bytes(content)
        first.push(last=True)
    with open_work_folder(address) as second:
        second.pull()
        sizes = {path.name: path.stat().st_size for path in second.path.iterdir()}
    assert sizes == {"checkpoint.pt": 11 << 20, "log.txt": 0}


def test_both_generations_of_a_checkpoint_are_on_s3(remote: S3) -> None:
    address = Store(remote.address("generations")).work("a")
    with open_work_folder(address) as folder:
        folder.claim()
        for text in "123":
            if (folder.path / "checkpoint.pt").exists():
                (folder.path / "checkpoint.pt").rename(folder.path / "checkpoint.previous.pt")
            (folder.path / "checkpoint.pt").write_text(text)
            folder.push()
    with open_work_folder(address) as again:
        again.pull()
        assert {path.name: path.read_text() for path in again.path.iterdir()} == {
            "checkpoint.pt": "3",
            "checkpoint.previous.pt": "2",
        }


def test_an_upload_is_completed_if_its_answer_was_lost_on_s3(
    remote: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has renamed the checkpoint, but the worker does not know."""
    address = Store(remote.address("answer")).work("a")
    rename = StoreFiles.rename

    def lose_answer(files: StoreFiles, name: str, new: str) -> None:
        rename(files, name, new)
        raise OSError("timeout")

    with open_work_folder(address) as folder:
        folder.claim()
        (folder.path / "checkpoint.pt").write_text("1")
        folder.push()
        (folder.path / "checkpoint.pt").rename(folder.path / "checkpoint.previous.pt")
        (folder.path / "checkpoint.pt").write_text("2")
        with monkeypatch.context() as patch:
            patch.setattr(StoreFiles, "rename", lose_answer)
            folder.push(last=False)
        folder.push(last=False)
    with open_work_folder(address) as again:
        again.pull()
        assert {path.name: path.read_text() for path in again.path.iterdir()} == {
            "checkpoint.pt": "2",
            "checkpoint.previous.pt": "1",
        }


def test_a_failed_run_shows_the_end_of_its_log_from_s3(remote: S3, tmp_path: Path) -> None:
    path = write(tmp_path, GRID.replace("[0.02, 0.1]", "[0.02]").replace("[0, 1]", "[0]"))
    words = ("--set", "runtime.device=warp", "--store", remote.address("failing"))
    said = ascl_sweep("run", path, *words, "--executor", "local")
    assert said.returncode == 1, said.stderr
    assert "│ ascl.errors.RunError: runtime.device must be a device of this machine" in said.stderr


def test_a_bucket_that_is_not_there_is_named(remote: S3, tmp_path: Path) -> None:
    store = remote.address("results").replace("//bucket", "//pail")
    said = ascl_sweep("run", write(tmp_path, GRID), "--store", store)
    assert said.returncode == 4, said.stderr
    assert "bucket does not exist" in said.stderr and "Traceback" not in said.stderr
