"""Cleanup of killed drivers' Rays, tokens, and exposed ports."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ascl_sweep.executors.ray import cluster
from ascl_sweep.executors.ray.cluster import PREFIX, clean_up_after_killed_drivers


def gone_driver_folder(name: str) -> Path:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = Path("/tmp") / f"{PREFIX}{dead.pid}-{name}"
    folder.mkdir()
    return folder


def test_what_a_killed_driver_left_is_cleaned_up_and_what_lives_is_not() -> None:
    left = gone_driver_folder("x")
    mine = Path("/tmp") / f"{PREFIX}{os.getpid()}-x"
    mine.mkdir()
    code = "import time; time.sleep(60)"
    orphan = subprocess.Popen([sys.executable, "-c", code, f"--session-dir={left}/session"])
    other = subprocess.Popen([sys.executable, "-c", code, f"--session-dir={mine}/session"])
    with (left / "worker.log").open(
        "w"
    ) as log:  # a worker's command line does not contain the folder
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


def test_a_driver_in_another_container_is_known_by_its_lock() -> None:
    """The process of that driver is not visible here, as if it were dead."""
    folder = gone_driver_folder("z")
    with cluster.hold_folder(folder):
        clean_up_after_killed_drivers()
        assert folder.exists()
    clean_up_after_killed_drivers()
    assert not folder.exists()


def test_the_folders_of_other_users_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = gone_driver_folder("u")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        assert clean_up_after_killed_drivers() == 0
        assert folder.exists() and not cluster._processes(Path("/"))
    folder.rmdir()


def test_a_token_is_kept_and_only_its_user_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / ".ray" / "auth_token"
    cluster._create_token()
    first = token.read_text()
    assert len(first) == 64 and token.stat().st_mode & 0o777 == 0o600
    token.chmod(0o644)  # as Ray writes it
    cluster._create_token()
    assert token.read_text() == first and token.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]


def test_a_new_token_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at all files of the folder after each system call that creates the token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, seen = tmp_path / ".ray", set()

    def watch(frame: object, event: str, function: object) -> None:
        if event == "c_return" and folder.exists():
            files = [folder, *folder.iterdir()]
            seen.update((path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in files)

    before = os.umask(0)
    sys.setprofile(watch)
    try:
        cluster._create_token()
    finally:
        sys.setprofile(None)
        os.umask(before)
    assert (folder / "auth_token").stat().st_mode & 0o777 == 0o600
    assert seen == {(True, 0o700), (False, 0o600)}


FAKE_RAY = """
import socket, types
def init(**options):
    global opened
    opened = socket.create_server(("0.0.0.0", 0))
    return types.SimpleNamespace(dashboard_url=None)
def shutdown():
    print("shut down", flush=True)
"""
CONNECT = """
from ascl_sweep.executors.ray import cluster
cluster._import_worker = lambda: None
with cluster.connect_ray(None, dashboard=False):
    print("started")
"""


def test_a_private_ray_that_listens_on_another_interface_is_ended(tmp_path: Path) -> None:
    private = tmp_path / "ray" / "_private"
    private.mkdir(parents=True)
    (private.parent / "__init__.py").write_text(FAKE_RAY)
    (private / "services.py").write_text("class ConsolePopen: ...")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", os.getcwd())])
    said = subprocess.run(
        [sys.executable, "-c", CONNECT],
        env=os.environ | {"PYTHONPATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "ClusterError: a private Ray must listen on the loopback" in said.stderr
    assert said.stdout == "shut down\n"


def test_drivers_that_clean_up_after_the_same_one_leave_each_other_alone() -> None:
    """A driver that deletes a folder has files in it open, like the workers that are killed."""
    left = gone_driver_folder("y")
    for i in range(40):
        (left / f"{i % 4}" / f"{i}").mkdir(parents=True)
        for j in range(40):
            (left / f"{i % 4}" / f"{i}" / f"{j}").touch()
    code = (
        "from ascl_sweep.executors.ray.cluster import clean_up_after_killed_drivers\n"
        "input(); clean_up_after_killed_drivers()"
    )
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
