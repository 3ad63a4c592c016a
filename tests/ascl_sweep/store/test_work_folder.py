"""Work folders: uploads to a remote store, and training while the store is unreachable."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, active_count

import pyarrow as pa
import pytest

from ascl.checkpoint import CHECKPOINT
from ascl_sweep.contracts import RunState
from ascl_sweep.executors.worker import run_task
from ascl_sweep.store import retry, work_folder
from ascl_sweep.store.filesystem import StoreFiles
from ascl_sweep.store.work_folder import (
    PREVIOUS,
    SupersededError,
    WorkerDiskError,
    WorkFolder,
    open_work_folder,
)
from tests.ascl_sweep.executors.test_worker import task
from tests.ascl_sweep.store.test_retry import Clock
from tests.s3 import let_in
from tests.sweeps import wait_until


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/x"  # an address instead of a path, so the files are copied


def test_a_folder_on_this_machine_is_used_as_it_is(tmp_path: Path) -> None:
    with open_work_folder(str(tmp_path)) as folder:
        assert folder.path == tmp_path
        (tmp_path / CHECKPOINT).write_text("1")
        folder.pull()
        folder.push(last=True)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_the_next_worker_gets_what_the_keeper_pushed(address: str) -> None:
    with open_work_folder(address) as first:
        first.pull()
        (first.path / CHECKPOINT).write_text("1")
        (first.path / ".log.txt.7.half").write_text("cut")
        first.push(last=False)
    assert not first.path.exists()
    with open_work_folder(address) as second:
        second.pull()
        assert [path.name for path in second.path.iterdir()] == [CHECKPOINT]
        assert (second.path / CHECKPOINT).read_text() == "1"


def test_other_ranks_copy_only_their_log(address: str, tmp_path: Path) -> None:
    StoreFiles(address).write(CHECKPOINT, b"1")
    for text in ("1", "12"):
        with open_work_folder(address, only="log.txt.1") as folder:
            folder.pull()
            with (folder.path / "log.txt.1").open("a") as log:
                log.write(text)
            (folder.path / "other").write_text("1")
            folder.push(last=True)
    stored = tmp_path / "store" / "x"
    assert sorted(path.name for path in stored.iterdir()) == [CHECKPOINT, "log.txt.1"]
    assert (stored / "log.txt.1").read_text() == "112", "the log of an earlier attempt is continued"


def test_what_is_pushed_begins_with_the_checkpoint_and_is_what_changed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[str] = []
    write = StoreFiles.write

    def watch(store: StoreFiles, name: str, data: bytes | pa.Buffer) -> None:
        pushed.append(name)
        write(store, name, data)

    monkeypatch.setattr(StoreFiles, "write", watch)
    with open_work_folder(address) as folder:
        for name in ("best.pt", CHECKPOINT, "config.yaml"):
            (folder.path / name).write_text("1")
        folder.push()
        assert pushed[0] == CHECKPOINT and sorted(pushed) == ["best.pt", CHECKPOINT, "config.yaml"]
        os.utime(folder.path / CHECKPOINT, (1, 1))
        folder.push()
    assert pushed[3:] == [CHECKPOINT]


def test_the_previous_checkpoint_is_renamed_in_the_store_and_not_uploaded_again(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, pushed = tmp_path / "store" / "x", []
    write = StoreFiles.write

    def watch(store: StoreFiles, name: str, data: bytes | pa.Buffer) -> None:
        pushed.append(name)
        write(store, name, data)

    def save(folder: Path, text: str) -> None:
        """Write a checkpoint as `ascl.checkpoint.save` does."""
        if (folder / CHECKPOINT).exists():
            (folder / CHECKPOINT).rename(folder / PREVIOUS)
        (folder / CHECKPOINT).write_text(text)

    def contents() -> dict[str, str]:
        return {path.name: path.read_text() for path in stored.iterdir()}

    monkeypatch.setattr(StoreFiles, "write", watch)
    with open_work_folder(address) as first:
        for text in "12":
            save(first.path, text)
            first.push()
        assert contents() == {PREVIOUS: "1", CHECKPOINT: "2"}
    with open_work_folder(address) as second:
        second.pull()
        save(second.path, "3")
        second.push()
        assert contents() == {PREVIOUS: "2", CHECKPOINT: "3"}
        for text in "45":  # not pushed in between: the store was unreachable
            save(second.path, text)
        second.push()
        assert contents() == {PREVIOUS: "2", CHECKPOINT: "5"}
        (second.path / PREVIOUS).unlink()  # the run has finished
        second.push()
        assert contents() == {CHECKPOINT: "5"}
    assert pushed == [CHECKPOINT] * 4


@pytest.mark.parametrize("moment", range(4))
def test_a_worker_that_stands_still_during_an_upload_changes_nothing_of_a_newer_one(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Each moment is between two files of one upload."""

    def save(folder: WorkFolder, text: str) -> None:
        if (folder.path / CHECKPOINT).exists():
            (folder.path / CHECKPOINT).rename(folder.path / PREVIOUS)
        for name in (CHECKPOINT, "config.yaml", "metrics.jsonl"):
            (folder.path / name).write_text(text)

    def stored() -> dict[str, str]:
        return {path.name: path.read_text() for path in (tmp_path / "store" / "x").iterdir()}

    with open_work_folder(address) as older, open_work_folder(address) as newer:
        older.claim()
        save(older, "1")
        older.push()
        version, left = work_folder._version, moment

        def look(path: Path) -> tuple[int, int]:
            nonlocal left
            found = version(path)
            if path.parent == older.path:
                left -= 1
                if left == -1:
                    newer.claim()
                    newer.pull()
                    save(newer, "3")
                    newer.push()
                    before.update(stored())
            return found

        before: dict[str, str] = {}
        monkeypatch.setattr(work_folder, "_version", look)
        save(older, "2")
        with pytest.raises(SupersededError):
            older.push()
        assert before[CHECKPOINT] == "3" and stored() == before


def test_a_damaged_checkpoint_in_the_store_does_not_replace_the_previous_one(
    address: str, tmp_path: Path
) -> None:
    stored = StoreFiles(address)
    stored.write(CHECKPOINT, b"damaged")
    stored.write(PREVIOUS, b"1")
    with open_work_folder(address) as folder:
        folder.pull()
        (folder.path / PREVIOUS).replace(folder.path / CHECKPOINT)  # as `resume` does
        (folder.path / CHECKPOINT).rename(folder.path / PREVIOUS)
        (folder.path / CHECKPOINT).write_text("2")
        folder.push()
    assert stored.read_text(PREVIOUS) == "1" and stored.read_text(CHECKPOINT) == "2"


def test_the_log_is_copied_while_a_run_trains(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be killed, or hang until it is killed."""
    monkeypatch.setattr(work_folder, "LOG_SECONDS", 0.01)
    stored, before = tmp_path / "store" / "x" / "log.txt", active_count()
    with open_work_folder(address) as folder, folder.copying("log.txt"):
        for text in ("1", "12"):
            (folder.path / CHECKPOINT).write_text(text)
            (folder.path / "log.txt").write_text(text)
            wait_until(lambda text=text: stored.exists() and stored.read_text() == text)
        assert [path.name for path in stored.parent.iterdir()] == ["log.txt"]
    assert active_count() == before


def test_the_log_of_an_older_worker_replaces_no_newer_one(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_folder, "LOG_SECONDS", 0.01)
    with open_work_folder(address) as older, open_work_folder(address) as newer:
        older.claim()
        newer.claim()
        (newer.path / "log.txt").write_text("newer")
        newer.push()
        with older.copying("log.txt"):
            (older.path / "log.txt").write_text("older")
            time.sleep(0.1)
    assert (tmp_path / "store" / "x" / "log.txt").read_text() == "newer"


# --- the worker's own disk ------------------------------------------------------------------------

HOLD = """
import sys, time
from ascl_sweep.store.work_folder import open_work_folder

with open_work_folder(sys.argv[1]) as folder:
    (folder.path / "checkpoint.pt").write_text("1")
    print(folder.path, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # read TMPDIR again
    return folder


def test_the_folder_of_a_killed_worker_is_deleted_and_that_of_a_living_one_is_kept(
    address: str, own_tmp: Path
) -> None:
    (own_tmp / "ascl-work-file").write_text("no folder")
    (own_tmp / "ascl-ray-1-x").mkdir()
    workers = [
        subprocess.Popen([sys.executable, "-c", HOLD, address], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        lines = [worker.stdout.readline() for worker in workers if worker.stdout]
        killed, living = (Path(line.strip()) for line in lines)
        workers[0].kill()
        workers[0].wait()
        assert (killed / CHECKPOINT).exists()
        with open_work_folder(address) as folder:
            assert not killed.exists()
            assert (living / CHECKPOINT).exists() and folder.path.exists()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert {path.name for path in own_tmp.iterdir()} == {
        *("ascl-work-file", "ascl-ray-1-x", living.name)
    }


@pytest.fixture
def full_disk(own_tmp: Path) -> Iterator[Path]:
    """TMPDIR on a real file system of 64 kB."""
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(own_tmp)]
    if subprocess.run(words).returncode:
        pytest.skip("only root may mount a small disk")
    yield own_tmp
    subprocess.run(["umount", "-l", own_tmp], check=True)


def test_a_full_disk_of_the_worker_is_one_sentence_that_names_its_folder(
    address: str, full_disk: Path, clock: Clock
) -> None:
    (result,) = run_task(task(address))
    assert result.state is RunState.FAILED and result.error and result.node_fault
    assert result.error.startswith(f"the disk of {full_disk} on {socket.gethostname()} is full")
    assert result.error.endswith("set TMPDIR to a folder on a larger disk")


def test_a_full_disk_is_not_taken_for_an_unreachable_store(
    address: str, full_disk: Path, clock: Clock
) -> None:
    StoreFiles(address).write(CHECKPOINT, bytes(1 << 20))
    with pytest.raises(WorkerDiskError), open_work_folder(address) as folder:
        folder.pull()
    assert clock.now == 0, "no retry"


# --- a remote store that is unreachable ---------------------------------------------------------


class Refusing(BaseHTTPRequestHandler):
    """S3 server that accepts the start of every upload and then rejects its parts."""

    protocol_version = "HTTP/1.1"

    def answer(self, code: int = 200, text: str = "") -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        id_of = "<InitiateMultipartUploadResult><UploadId>1</UploadId>"
        self.answer(text=f"{id_of}</InitiateMultipartUploadResult>")

    def do_PUT(self) -> None:
        is_part = "partNumber" in self.path
        self.close_connection = is_part  # the body is not read: it may be chunked
        self.answer(403 if is_part else 200)

    def log_message(self, *words: object) -> None:
        pass


def test_what_a_store_did_not_take_is_not_taken_for_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_in(monkeypatch)
    (tmp_path / CHECKPOINT).write_text("1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        where = f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http"
        folder = WorkFolder(tmp_path, f"s3://bucket/x?{where}")
        with pytest.raises(OSError, match="uploading part"):
            folder._upload()
        server.shutdown()
    assert folder._stored == {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Make the store unreachable until `clock.back`; time advances only in `sleep`."""
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(work_folder, "time", clock)
    upload = WorkFolder._upload

    def upload_later(folder: WorkFolder) -> None:
        clock.unreachable_until(clock.back)
        upload(folder)

    monkeypatch.setattr(WorkFolder, "_upload", upload_later)
    return clock


def test_training_continues_while_the_store_is_unreachable_and_waits_with_its_last_epoch(
    address: str, clock: Clock, tmp_path: Path
) -> None:
    clock.back = 100
    with open_work_folder(address) as folder:
        (folder.path / CHECKPOINT).write_text("1")
        folder.push(last=False)
        assert clock.now == 0 and not (tmp_path / "store").exists()
        folder.push(last=True)
    assert 100 <= clock.now < 120
    assert (tmp_path / "store" / "x" / CHECKPOINT).exists()


def test_a_run_whose_checkpoints_the_store_has_long_lacked_waits_for_it_and_then_fails(
    address: str, clock: Clock
) -> None:
    clock.back = 1e9
    with open_work_folder(address) as folder:
        folder.push(last=False)
        clock.now = retry.PATIENCE
        folder.push(last=False)
        clock.now += 1
        with pytest.raises(OSError, match="unreachable"):
            folder.push(last=False)
    assert clock.now > 2 * retry.PATIENCE - retry.LONGEST_PAUSE
