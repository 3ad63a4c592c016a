"""A sweep's store is unreachable for a while: no result is lost, no intervention is needed."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow.fs import FileSystem

from ascl.metrics import EpochMetrics
from ascl_sweep.store.filesystem import StoreFiles
from ascl_sweep.store.store import Store
from tests.s3 import S3, serving
from tests.s3_server import ANSWERED, ERRORS, HANGS
from tests.sweeps import (
    GRID,
    ascl_sweep,
    epochs_recorded,
    finish,
    kill,
    numbers,
    orphans,
    start,
    states,
    wait_until,
    write,
)

Numbers = dict[str, list[tuple[object, ...]]]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
NOTE = "training continues, results are buffered until the store is back"
AWAY_SECONDS = 10  # pyarrow itself retries for six seconds


@pytest.fixture
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    yield from serving(tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    folder = tmp_path_factory.mktemp("undisturbed")
    words = ("run", write(folder, GRID), "--store", folder / "store", "--executor", "local")
    said = ascl_sweep(*words)
    assert said.returncode == 0, said.stderr
    return numbers(folder / "store")


def check(store: str, expected: Numbers, before: dict[str, list[EpochMetrics]]) -> None:
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected
    after = Store(store).epochs()
    for run_id, epochs in before.items():
        assert after[run_id][: len(epochs)] == epochs, (
            "also the durations: no epoch was trained again"
        )
    assert orphans() == []


def test_what_this_s3_has_answered_outlives_it(s3: S3) -> None:
    files, _ = FileSystem.from_uri(s3.address(""))
    part = bytes(11 << 20)  # more than pyarrow buffers
    with files.open_output_stream("bucket/upload") as upload:
        upload.write(part)
        upload.flush()
        s3.kill()
        s3.start()
        upload.write(b"end")
    with files.open_input_file("bucket/upload") as file:
        assert file.read() == part + b"end"


def test_a_sweep_outlives_its_store_being_away(
    s3: S3, tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log = s3.address("outlives"), tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    s3.kill()
    wait_until(lambda: NOTE in log.read_text(), log, seconds=60)
    time.sleep(AWAY_SECONDS)
    s3.start()
    # Kill the server again at the end of the sweep.
    wait_until(lambda: driver.poll() is not None or epochs_recorded(store) >= 16, log)
    before = Store(store).epochs()
    s3.kill()
    time.sleep(AWAY_SECONDS)
    s3.start()
    assert finish(driver, log) == 0, log.read_text()
    said = log.read_text()
    assert "is back; all results are saved" in said
    assert "Traceback" not in said
    check(store, undisturbed, before)


def test_a_driver_killed_while_its_store_is_away_loses_nothing_that_was_recorded(
    s3: S3, tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log, path = s3.address("killed"), tmp_path / "log", write(tmp_path, GRID)
    driver = start("run", path, "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    before = Store(store).epochs()
    s3.kill()
    wait_until(lambda: NOTE in log.read_text(), log, seconds=60)
    kill(driver.pid)
    driver.wait()
    said = ascl_sweep("run", path, "--store", store)
    assert said.returncode == 4 and "Traceback" not in said.stderr, said.stderr
    s3.start()
    said = ascl_sweep("run", path, "--store", store)
    assert said.returncode == 0, said.stderr
    check(store, undisturbed, before)


@pytest.mark.parametrize("fault", [HANGS, *ERRORS])
def test_a_request_to_a_faulty_store_soon_fails(s3: S3, fault: str) -> None:
    """A driver does nothing else meanwhile. Without our limit, pyarrow waits up to 90 seconds."""
    files = StoreFiles(s3.address("soon"))
    files.write("a", b"a")
    with s3.failing(fault):
        if fault == "slow down":  # S3 answers some requests
            for _ in range(ANSWERED):
                with suppress(OSError):
                    files.read_text("none")
        else:
            began = time.monotonic()
            with pytest.raises(OSError, match="a"):
                files.read_text("a")
            assert time.monotonic() - began < 30
    assert files.read_text("a") == "a"


@pytest.mark.parametrize("fault", ["hangs", "expired"])
def test_a_sweep_outlives_a_store_that_answers_no_request_correctly(
    s3: S3, tmp_path: Path, undisturbed: Numbers, fault: str
) -> None:
    store, log = s3.address("faulty"), tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    before = Store(store).epochs()
    with s3.failing(fault):
        wait_until(lambda: NOTE in log.read_text(), log, seconds=120)
        time.sleep(AWAY_SECONDS)
        if fault == "expired":
            said = ascl_sweep("run", tmp_path / "sweep.yaml", "--store", s3.address("new"))
            assert said.returncode == 4 and "Traceback" not in said.stderr, said.stderr
            assert "check that the store is reachable and that its credentials" in said.stderr
    assert finish(driver, log) == 0, log.read_text()
    text = log.read_text()
    assert "is back; all results are saved" in text
    assert "Traceback" not in text
    check(store, undisturbed, before)


def test_a_sweep_ends_in_time_though_its_store_throttles_it(
    s3: S3, tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log = s3.address("throttled"), tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 2, log)
    before = Store(store).epochs()
    with s3.failing("slow down"):
        time.sleep(3 * AWAY_SECONDS)
    assert finish(driver, log) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    check(store, undisturbed, before)
