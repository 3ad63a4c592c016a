"""Everything that can go away does, while a sweep runs: afterwards `run` ends with exactly the
planned runs done, each epoch once, and the numbers of a sweep that nobody disturbed."""

import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from ray.cluster_utils import Cluster

from ascl_sweep.cluster import clean_up_after_killed_drivers
from ascl_sweep.ledger import Ledger, LedgerBusy
from tests.sweeps import (
    GRID,
    TWO_WORKERS,
    ascl_sweep,
    descendants,
    epochs_recorded,
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    folder = tmp_path_factory.mktemp("undisturbed")
    said = ascl_sweep("run", write(folder, GRID), "--store", folder / "store")
    assert said.returncode == 0, said.stderr
    return numbers(folder / "store")


def check(store: Path, expected: Numbers) -> None:
    assert states(store) == ["done"] * 4
    assert numbers(store) == expected
    assert orphans() == []


def workers_of(pid: int) -> list[int]:
    """The processes that train runs of a driver."""
    return [p for p in descendants(pid) if "Trainable" in title(p) or "OneWorker" in title(p)]


def kill_a_worker(pid: int) -> None:
    found: list[int] = []
    wait_until(lambda: bool(found.extend(workers_of(pid)) or found))
    kill(random.choice(found))


def test_a_killed_trial_goes_on_from_its_checkpoint(tmp_path: Path, undisturbed: Numbers) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    for wanted in (2, 8):
        wait_until(lambda n=wanted: epochs_recorded(store) >= n, log)  # type: ignore[misc]
        kill_a_worker(driver.pid)
    assert driver.wait(240) == 0, log.read_text()
    assert "its process or machine went away" in log.read_text()
    check(store, undisturbed)


def test_a_driver_killed_at_random_moments_loses_nothing(
    tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    path = write(tmp_path, GRID)
    rng = random.Random(0)
    seen = 0
    for _ in range(20):
        driver = start("run", path, "--store", store, log=log)
        try:
            driver.wait(rng.uniform(1, 16))
            break
        except Exception:
            kill(driver.pid)
            driver.wait()
        before, seen = seen, epochs_recorded(store) if store.exists() else 0
        assert seen >= before, "an epoch that was recorded stays recorded"
    said = ascl_sweep("run", path, "--store", store)
    assert said.returncode == 0, said.stderr
    check(store, undisturbed)


def test_the_first_ctrl_c_drains_and_the_command_it_prints_goes_on(
    tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(240) == 130, log.read_text()
    said = log.read_text()
    assert "interrupted, nothing is lost; go on with:" in said and "Traceback" not in said
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
    assert driver.wait(240) == 130, log.read_text()
    assert "Traceback" not in log.read_text()
    assert ascl_sweep("resume", "--store", store).returncode == 0
    check(store, undisturbed)


def test_stop_ends_a_sweep_from_another_terminal(tmp_path: Path, undisturbed: Numbers) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 2, log)
    with pytest.raises(LedgerBusy, match="only one driver may write to a store"):
        Ledger(store).writer().__enter__()
    assert ascl_sweep("stop", "--store", store).returncode == 0
    assert driver.wait(240) == 130, log.read_text()
    assert ascl_sweep("resume", "grid", "--store", store).returncode == 0
    check(store, undisturbed)


def test_a_damaged_checkpoint_starts_its_run_over_and_says_so(
    tmp_path: Path, undisturbed: Numbers
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 3, log)
    kill(driver.pid)
    driver.wait()
    clean_up_after_killed_drivers()  # its workers live on for a moment, and save
    for checkpoint in (store / "work").glob("*/checkpoint.pt"):
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    said = ascl_sweep("run", tmp_path / "sweep.yaml", "--store", store)
    assert said.returncode == 0, said.stderr
    assert "its checkpoint could not be used and it starts over" in said.stderr
    check(store, undisturbed)


def write_imagenet(root: Path) -> None:
    """An ImageNet of 1000 classes with one small picture each, as it is published."""
    for c in range(1000):
        for split in ("train", "val"):
            folder = root / "imagenet" / split / f"n{c:08}"
            folder.mkdir(parents=True)
            colour = (c % 256, c * 7 % 256, c * 31 % 256)
            Image.new("RGB", (16, 16), colour).save(folder / "0.JPEG")


def test_a_dataset_that_was_away_is_named_and_used_when_it_is_back(tmp_path: Path) -> None:
    store, root = tmp_path / "store", tmp_path / "data"
    text = GRID.replace("name: shapes, train_size: 200", f"name: imagenet, root: {root}")
    path = write(tmp_path, text.replace("epochs: 5", "epochs: 1").replace("[0, 1]", "[0]"))
    said = ascl_sweep("run", path, "--store", store)
    assert said.returncode == 1 and "imagenet is not in" in said.stderr, said.stderr
    assert states(store) == ["failed"] * 2
    write_imagenet(root)
    said = ascl_sweep("retry", "--failed", "--store", store, timeout=600)
    assert said.returncode == 0, said.stderr
    assert states(store) == ["done"] * 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with hardly any room."""
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
    said = ascl_sweep("run", path, "--store", store)
    assert said.returncode in (1, 4), said.stderr
    assert "disk full" in said.stderr or "No space left" in said.stderr
    # The worker's own traceback may be shown as the end of a log, and nowhere else.
    assert not re.search(r"^Traceback", said.stderr, re.MULTILINE)
    subprocess.run(["mount", "-o", "remount,size=100m", small_disk], check=True)
    said = ascl_sweep("run", path, "--store", store)
    assert said.returncode == 0, said.stderr
    check(store, undisturbed)


def test_a_node_that_goes_away_takes_no_run_along(tmp_path: Path, undisturbed: Numbers) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        path = write(tmp_path, GRID)
        driver = start("run", path, "--store", store, "--address", cluster.address, log=log)
        wait_until(lambda: epochs_recorded(store) >= 4, log)
        cluster.remove_node(node, allow_graceful=False)
        assert driver.wait(240) == 0, log.read_text()
    finally:
        cluster.shutdown()
    check(store, undisturbed)


def test_two_workers_train_one_run_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "calm"
    folder.mkdir()
    calm = ascl_sweep("run", write(folder, TWO_WORKERS), "--store", folder / "store")
    assert calm.returncode == 0, calm.stderr
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, TWO_WORKERS), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 2, log)
    ranks = [p for p in descendants(driver.pid) if "RayTrainWorker" in title(p)]
    assert len(ranks) == 2
    kill(ranks[0])
    assert driver.wait(300) == 0, log.read_text()
    assert states(store) == ["done"] * 2
    assert numbers(store) == numbers(folder / "store")
    rows = Ledger(store).runs().values()
    assert all(row.workers == 2 for row in rows)


def test_a_hopeless_run_of_two_workers_ends_early_and_its_workers_come_back(tmp_path: Path) -> None:
    search = TWO_WORKERS.replace("[0.02, 0.1]", "[0.01, 0.02, 0.1]")
    path = write(tmp_path, search + "stop: {asha: {grace: 1, factor: 3}, audit: 0}\n")
    # Three runs, each of five processes that load PyTorch: minutes each beside other tests.
    said = ascl_sweep("run", path, "--store", tmp_path / "store", timeout=1100)
    assert said.returncode == 0, said.stderr
    rows = Ledger(tmp_path / "store").runs().values()
    assert sorted({row.state for row in rows}) == ["done", "stopped"]
    assert len(rows) == 3, "each had both workers to itself, so each got them back"
    assert all(row.epochs < 5 for row in rows if row.state == "stopped")
