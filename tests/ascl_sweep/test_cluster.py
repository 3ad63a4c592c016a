"""That a killed driver's Ray is cleaned up."""

import os
import subprocess
import sys
from pathlib import Path

from ascl_sweep.cluster import PREFIX, clean_up_after_killed_drivers


def test_what_a_killed_driver_left_is_cleaned_up_and_what_lives_is_not() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = Path("/tmp") / f"{PREFIX}{dead.pid}-x"
    mine = Path("/tmp") / f"{PREFIX}{os.getpid()}-x"
    left.mkdir()
    mine.mkdir()
    code = "import time; time.sleep(60)"
    orphan = subprocess.Popen([sys.executable, "-c", code, f"--session-dir={left}/session"])
    other = subprocess.Popen([sys.executable, "-c", code, f"--session-dir={mine}/session"])
    with (left / "worker.log").open("w") as log:  # a worker's title does not name the folder
        worker = subprocess.Popen([sys.executable, "-c", code], stdout=log)
    try:
        assert clean_up_after_killed_drivers() >= 1
        assert orphan.wait(10) == worker.wait(10) == -9
        assert not left.exists()
        assert other.poll() is None and mine.exists()
    finally:
        other.kill()
        other.wait()
        mine.rmdir()


def test_drivers_that_clean_up_after_the_same_one_leave_each_other_alone() -> None:
    """Whoever deletes a folder has its folders open, as its workers have their logs."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = Path("/tmp") / f"{PREFIX}{dead.pid}-y"
    for i in range(40):
        (left / f"{i % 4}" / f"{i}").mkdir(parents=True)
        for j in range(40):
            (left / f"{i % 4}" / f"{i}" / f"{j}").touch()
    code = "from ascl_sweep.cluster import clean_up_after_killed_drivers as c; input(); c()"
    cleaners = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(4)
    ]
    try:
        for cleaner in cleaners:
            assert cleaner.stdin
            cleaner.stdin.write(b"\n")
            cleaner.stdin.flush()
        assert [cleaner.wait(60) for cleaner in cleaners] == [0, 0, 0, 0]
        assert not left.exists()
    finally:
        for cleaner in cleaners:
            cleaner.kill()
            cleaner.communicate()
