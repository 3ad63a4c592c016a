"""A sweep's store goes away and comes back: nothing is lost, and nobody has to do anything."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import FileSystem

from ascl_sweep.ledger import Ledger
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

Numbers = dict[str, list[tuple[object, ...]]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NOTE = "runs go on, and what they come to is kept until it answers"
AWAY_SECONDS = 10  # pyarrow by itself asks again for six


@pytest.fixture
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    yield from serving(tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    folder = tmp_path_factory.mktemp("undisturbed")
    said = ascl_sweep("run", write(folder, GRID), "--store", folder / "store")
    assert said.returncode == 0, said.stderr
    return numbers(folder / "store")


def check(store: str, expected: Numbers, before: dict[str, list[dict[str, object]]]) -> None:
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected
    after = Ledger(store).epochs()
    for run_id, epochs in before.items():
        assert after[run_id][: len(epochs)] == epochs, "their seconds too: none was trained again"
    assert orphans() == []


def test_what_this_s3_has_answered_outlives_it(s3: S3) -> None:
    files, _ = FileSystem.from_uri(s3.address(""))
    part = bytes(11 << 20)  # more than pyarrow keeps back
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
    # Once more, when the last runs end and the sweep with them.
    wait_until(lambda: driver.poll() is not None or epochs_recorded(store) >= 16, log)
    before = Ledger(store).epochs()
    s3.kill()
    time.sleep(AWAY_SECONDS)
    s3.start()
    assert driver.wait(240) == 0, log.read_text()
    said = log.read_text()
    assert "answers again: all is saved" in said
    assert "Traceback" not in said
    check(store, undisturbed, before)


def test_a_driver_killed_while_its_store_is_away_loses_nothing_that_was_recorded(
    s3: S3, tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log, path = s3.address("killed"), tmp_path / "log", write(tmp_path, GRID)
    driver = start("run", path, "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    before = Ledger(store).epochs()
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
