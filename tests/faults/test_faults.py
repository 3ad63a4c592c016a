"""Processes are killed during a sweep: afterwards `run` ends with exactly the planned runs done,
each epoch recorded once, and the results of an undisturbed sweep.

Tests of the driver use every executor.
"""

import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from ascl_sweep.store.store import Store, StoreBusyError
from tests.sweeps import (
    GRID,
    TWO_WORKERS,
    ascl_sweep,
    descendants,
    epochs_recorded,
    finish,
    kill,
    numbers,
    orphans,
    start,
    states,
    title,
    wait_until,
    write,
)

Numbers = dict[str, list[tuple[object, ...]]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(params=["local", "ray"])
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    folder = tmp_path_factory.mktemp("undisturbed")
    words = ("run", write(folder, GRID), "--store", folder / "store", "--executor", "local")
    said = ascl_sweep(*words)
    assert said.returncode == 0, said.stderr
    return numbers(folder / "store")


def on(executor: str) -> tuple[str, str]:
    return "--executor", executor


def check(store: Path, expected: Numbers) -> None:
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected
    assert orphans() == []


def test_a_driver_killed_at_random_moments_loses_nothing(
    tmp_path: Path, undisturbed: Numbers
) -> None:
    """With Ray, `test_kills` kills drivers."""
    store, log = tmp_path / "store", tmp_path / "log"
    path = write(tmp_path, GRID)
    rng = random.Random(0)
    seen = 0
    for _ in range(12):
        driver = start("run", path, "--store", store, *on("local"), log=log)
        try:
            driver.wait(rng.uniform(1, 9))
            break
        except Exception:
            kill(driver.pid)
            driver.wait()
        before, seen = seen, epochs_recorded(store) if store.exists() else 0
        assert seen >= before, "an epoch that was recorded stays recorded"
    said = ascl_sweep("run", path, "--store", store, *on("local"))
    assert said.returncode == 0, said.stderr
    check(store, undisturbed)


def test_the_first_ctrl_c_drains_and_the_command_it_prints_goes_on(
    tmp_path: Path, undisturbed: Numbers, executor: str
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, *on(executor), log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    driver.send_signal(signal.SIGINT)
    assert finish(driver, log) == 130, log.read_text()
    said = log.read_text()
    assert (
        "interrupted, finished epochs are saved; resume with:" in said and "Traceback" not in said
    )
    assert orphans() == []
    recorded = epochs_recorded(store)
    assert 0 < recorded < 20
    again = said.strip().splitlines()[-1].split()
    assert again[:2] == ["ascl-sweep", "run"]
    done = ascl_sweep(*again[1:])
    assert done.returncode == 0, done.stderr
    check(store, undisturbed)


def test_a_second_ctrl_c_ends_at_once_and_loses_nothing(
    tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 2, log)
    driver.send_signal(signal.SIGINT)
    time.sleep(0.3)
    driver.send_signal(signal.SIGINT)
    assert finish(driver, log) == 130, log.read_text()
    assert "Traceback" not in log.read_text()
    assert ascl_sweep("run", tmp_path / "sweep.yaml", "--store", store).returncode == 0
    check(store, undisturbed)


def test_stop_ends_a_sweep_from_another_terminal(
    tmp_path: Path, undisturbed: Numbers, executor: str
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, *on(executor), log=log)
    wait_until(lambda: epochs_recorded(store) >= 2, log)
    with pytest.raises(StoreBusyError, match="another driver is writing to the store"):
        Store(store).writer().__enter__()
    assert ascl_sweep("stop", "--store", store).returncode == 0
    assert finish(driver, log) == 130, log.read_text()
    assert (
        ascl_sweep("run", tmp_path / "sweep.yaml", "--store", store, *on(executor)).returncode == 0
    )
    check(store, undisturbed)


def test_damaged_checkpoints_start_their_run_over_with_a_note(
    tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, *on("local"), log=log)

    def checkpoints() -> list[Path]:
        return list((store / "work").glob("*/checkpoint*.pt"))

    wait_until(lambda: bool(checkpoints()), log)  # the first run has four epochs left
    kill(driver.pid)
    driver.wait()
    for checkpoint in checkpoints():
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    said = ascl_sweep("run", tmp_path / "sweep.yaml", "--store", store, *on("local"))
    assert said.returncode == 0, said.stderr
    assert "the checkpoint cannot be loaded, the run starts over" in said.stderr
    check(store, undisturbed)


def write_imagenet(root: Path) -> None:
    """Write an ImageNet of 1000 classes with one small image each, in the published layout."""
    for c in range(1000):
        for split in ("train", "val"):
            folder = root / "imagenet" / split / f"n{c:08}"
            folder.mkdir(parents=True)
            color = (c % 256, c * 7 % 256, c * 31 % 256)
            Image.new("RGB", (16, 16), color).save(folder / "0.JPEG")


def test_a_dataset_that_was_away_is_named_and_used_when_it_is_back(tmp_path: Path) -> None:
    store, root = tmp_path / "store", tmp_path / "data"
    text = GRID.replace("name: shapes, train_size: 200", f"name: imagenet, root: {root}")
    path = write(tmp_path, text.replace("epochs: 5", "epochs: 1").replace("[0, 1]", "[0]"))
    said = ascl_sweep("run", path, "--store", store)
    assert said.returncode == 4 and "imagenet is not in" in said.stderr, said.stderr
    assert "starting Ray" not in said.stderr and not store.exists()
    write_imagenet(root)
    said = ascl_sweep("run", path, "--store", store, *on("local"), timeout=600)
    assert said.returncode == 0, said.stderr
    assert states(store) == ["done"] * 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 700 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", place])
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_named_and_with_room_again_the_sweep_ends_as_if_nothing_had_been(
    tmp_path: Path, small_disk: Path, undisturbed: Numbers
) -> None:
    path, store = write(tmp_path, GRID), small_disk / "store"
    said = ascl_sweep("run", path, "--store", store, *on("local"))
    assert said.returncode in (1, 4), said.stderr
    assert "disk full" in said.stderr or "No space left" in said.stderr
    # The worker's traceback may be shown as the end of a log, but nowhere else.
    assert not re.search(r"^Traceback", said.stderr, re.MULTILINE)
    subprocess.run(["mount", "-o", "remount,size=100m", small_disk], check=True)
    said = ascl_sweep("run", path, "--store", store, *on("local"))
    assert said.returncode == 0, said.stderr
    check(store, undisturbed)


def test_hopeless_runs_of_two_workers_end_early_even_if_the_dashboard_has_died(
    tmp_path: Path,
) -> None:
    """Ray Train releases the workers of a stopped run through the dashboard."""
    store, log = tmp_path / "store", tmp_path / "log"
    search = TWO_WORKERS.replace("[0.02, 0.1]", "[0.01, 0.02, 0.05]")
    path = write(tmp_path, search + "stop: {asha: {grace: 1, factor: 3}, audit: 0}\n")
    driver = start("run", path, "--store", store, log=log)
    wait_until(lambda: store.exists() and epochs_recorded(store) >= 1, log)
    assert "stopped" not in states(store)
    (dashboard,) = (pid for pid in descendants(driver.pid) if "dashboard.py" in title(pid))
    kill(dashboard)
    # Three runs with five processes each that import PyTorch: minutes each beside other tests.
    assert finish(driver, log, 1100) == 0, log.read_text()
    rows = Store(store).runs().values()
    assert sorted({row.state for row in rows}) == ["done", "stopped"]
    assert len(rows) == 3, "each run used both workers, so each released them"
    assert all(row.epochs < 5 for row in rows if row.state == "stopped")
    assert orphans() == []
