"""That a killed driver's Ray is cleaned up, and what is said of a Ray that is not joined."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascl_sweep.cluster import PREFIX, clean_up_after_killed_drivers, why_not_joined


def test_a_cluster_of_other_versions_is_refused_with_both_in_one_sentence() -> None:
    from ray._private.utils import check_version_info, compute_version_info

    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": "2.1.0", "python_version": "3.9.2"}, "node h")
    ray, python = compute_version_info()
    said = why_not_joined("h:6379", caught.value)
    assert f"got Ray {ray} on Python {python} here and Ray 2.1.0 on Python 3.9.2 there" in said
    assert said.endswith("; install the same here") and "\n" not in said


def test_what_else_keeps_us_out_is_told_by_its_first_line() -> None:
    said = why_not_joined("h:6379", RuntimeError("no way\nin"))
    assert said == "Ray at h:6379 could not be joined (no way); see `ray status` there"


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
