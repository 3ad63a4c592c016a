"""A sweep whose store is on S3, by the real command: moto's server plays S3 on this machine."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow.fs import FileSystem, copy_files

from ascl_sweep.ledger import Ledger, LedgerBusy
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


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    yield from serving(tmp_path_factory.mktemp("s3"))


@dataclass(frozen=True)
class Disturbed:
    """A sweep on S3 whose driver was killed, what was recorded by then, and what was said."""

    store: str
    recorded: dict[str, list[dict[str, object]]]
    second: subprocess.CompletedProcess[str]
    again: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def disturbed(remote: S3, tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    folder = tmp_path_factory.mktemp("disturbed")
    store, path, log = remote.address("results"), write(folder, GRID), folder / "log"
    driver = start("run", path, "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    second = ascl_sweep("run", path, "--store", store)
    kill(driver.pid)
    driver.wait()
    recorded = Ledger(store).epochs()
    again = ascl_sweep("run", path, "--store", store)
    return Disturbed(store, recorded, second, again)


def test_a_second_driver_is_refused_while_the_first_writes(disturbed: Disturbed) -> None:
    assert disturbed.second.returncode == 2, disturbed.second.stderr
    assert "only one driver may write to a store" in disturbed.second.stderr


def test_a_sweep_killed_on_s3_goes_on_at_once_and_has_the_numbers_of_one_on_disk(
    disturbed: Disturbed, tmp_path: Path
) -> None:
    assert disturbed.again.returncode == 0, disturbed.again.stderr
    assert states(disturbed.store) == ["done"] * 4
    here = ascl_sweep("run", write(tmp_path, GRID), "--store", tmp_path / "store")
    assert here.returncode == 0, here.stderr
    assert numbers(disturbed.store) == numbers(tmp_path / "store")
    assert orphans() == []


def test_runs_went_on_from_their_checkpoints(disturbed: Disturbed) -> None:
    assert 3 <= sum(map(len, disturbed.recorded.values())) < 20
    after = Ledger(disturbed.store).epochs()
    for run_id, epochs in disturbed.recorded.items():
        assert after[run_id][: len(epochs)] == epochs, "their seconds too: none was trained again"


def test_every_run_has_its_own_files_on_s3(disturbed: Disturbed) -> None:
    for row in Ledger(disturbed.store).runs().values():
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


def test_gc_frees_what_it_is_told_to_on_s3(disturbed: Disturbed, remote: S3) -> None:
    store = remote.address("copy")
    s3, source = FileSystem.from_uri(disturbed.store)
    copy_files(source, "bucket/copy", s3, s3)
    ledger = Ledger(store)
    assert ascl_sweep("gc", "--store", store).returncode == 0
    assert len(ledger.work_ids()) == 4
    gone = ascl_sweep("gc", "--store", store, "--done")
    assert gone.returncode == 0 and "of 4 runs" in gone.stderr
    assert ledger.work_ids() == [] and len(ledger.runs()) == 4


def test_one_writer_at_a_time_holds_a_lease_on_s3(remote: S3) -> None:
    ledger = Ledger(remote.address("lease"))
    with ledger.writer():
        assert ledger.driver() is not None
        with pytest.raises(LedgerBusy):
            Ledger(remote.address("lease")).writer().__enter__()
    assert ledger.driver() is None


def test_a_failed_run_shows_the_end_of_its_log_from_s3(remote: S3, tmp_path: Path) -> None:
    text = GRID.replace("name: shapes, train_size: 200", f"name: cifar10, root: {tmp_path}/no")
    path = write(tmp_path, text.replace("[0.02, 0.1]", "[0.02]").replace("[0, 1]", "[0]"))
    said = ascl_sweep("run", path, "--store", remote.address("failing"))
    assert said.returncode == 1, said.stderr
    assert "│ ascl.datasets.DataError: cifar10 is not in" in said.stderr


def test_a_bucket_that_is_not_there_is_named(remote: S3, tmp_path: Path) -> None:
    store = remote.address("results").replace("//bucket", "//pail")
    said = ascl_sweep("run", write(tmp_path, GRID), "--store", store)
    assert said.returncode == 4, said.stderr
    assert "bucket does not exist" in said.stderr and "Traceback" not in said.stderr
