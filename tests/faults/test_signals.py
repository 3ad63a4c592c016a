"""Signals at every stage of `run`: the command ends cleanly, nothing is lost or left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascl_sweep.store.store import Store
from tests.sweeps import (
    GRID,
    epochs_recorded,
    finish,
    leftovers,
    orphans,
    start,
    states,
    wait_until,
    write,
)

pytestmark = pytest.mark.timeout(900)
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
LOCAL = ("--executor", "local")

SCRIPT = """
import signal, sys, time
from ascl_sweep.runtime.signals import handle_signals

with handle_signals() as interrupts:
    try:
        print("starts", flush=True)
        while sys.argv[1] == "before":
            time.sleep(0.01)
        with interrupts.defer():
            print("runs", flush=True)
            while not interrupts.count:
                time.sleep(0.01)
            print("drains", flush=True)
            while True:
                time.sleep(0.01)
    except KeyboardInterrupt:
        print("ends", flush=True)
        while sys.stdin.readline() != "end\\n":  # cleaning up
            pass
"""


def run_script(when: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", SCRIPT, when]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def read(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_drains_the_second_ends_and_more_change_nothing(number: int) -> None:
    process = run_script("running")
    assert [read(process), read(process)] == ["starts", "runs"]
    process.send_signal(number)
    assert read(process) == "drains"
    process.send_signal(number)
    assert read(process) == "ends"
    for other in SIGNALS:
        process.send_signal(other)
        time.sleep(0.02)
    said = process.communicate("end\n", timeout=60)
    assert said == ("", "") and process.returncode == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", SIGNALS)
def test_before_a_sweep_runs_the_first_signal_ends_the_command(number: int) -> None:
    process = run_script("before")
    assert read(process) == "starts"
    process.send_signal(number)
    assert read(process) == "ends"
    assert process.communicate("end\n", timeout=60) == ("", "") and process.returncode == 0


def test_nohup_is_respected() -> None:
    words = [sys.executable, "-c", SCRIPT, "before"]
    pipe = subprocess.PIPE
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = subprocess.Popen(
        words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, preexec_fn=ignore
    )
    assert read(process) == "starts"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert read(process) == "ends"
    process.communicate("end\n", timeout=60)


def check_clean(store: Path, log: Path) -> None:
    assert "Traceback" not in log.read_text() and "Aborted" not in log.read_text()
    assert Store(store).driver() is None, "the lock is released"
    assert orphans() == [] and leftovers() == []


def test_a_signal_ends_a_driver_that_waits_for_the_lock(tmp_path: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    with Store(store).writer():
        words = ("run", write(tmp_path, GRID), "--store", store, "--wait")
        driver = start(*words, log=log)
        wait_until(lambda: "waiting" in log.read_text(), log)
        driver.send_signal(signal.SIGHUP)
        assert finish(driver, log) == 130, log.read_text()
    check_clean(store, log)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_ray_starts_leaves_no_ray(tmp_path: Path, number: int) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    folders = f"ascl-ray-{driver.pid}-*/ray/session_latest"
    wait_until(lambda: bool(list(Path("/tmp").glob(folders))), log)  # `ray.init` has begun
    driver.send_signal(number)
    assert finish(driver, log) == 130, log.read_text()
    check_clean(store, log)
    assert not set(states(store)) - {"planned"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_process_group_drains_a_sweep_on_ray(tmp_path: Path, number: int) -> None:
    """A closing terminal, a cluster scheduler and `kill -- -PGID` signal the whole group."""
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start("run", write(tmp_path, GRID), "--store", store, log=log)
    wait_until(lambda: epochs_recorded(store) >= 2, log)
    os.killpg(driver.pid, number)
    assert finish(driver, log) == 130, log.read_text()
    assert "interrupted: finishing the current epoch" in log.read_text()
    assert "died" not in log.read_text(), "the workers of Ray have drained too"
    assert "lost" not in states(store)
    check_clean(store, log)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_storm_of_ctrl_c_ends_without_a_traceback(tmp_path: Path, executor: str) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    words = ("run", write(tmp_path, GRID), "--store", store, "--executor", executor)
    driver = start(*words, log=log)
    wait_until(lambda: epochs_recorded(store) >= 2, log)
    for _ in range(40):
        os.kill(driver.pid, signal.SIGINT)
        time.sleep(0.1)
        if driver.poll() is not None:
            break
    assert finish(driver, log, 120) == 130, log.read_text()
    check_clean(store, log)
