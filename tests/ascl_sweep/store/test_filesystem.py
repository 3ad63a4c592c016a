"""Files of a store: addresses, and files that are never replaced."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ascl_sweep.errors import StoreError
from ascl_sweep.store import network
from ascl_sweep.store.filesystem import StoreFiles
from ascl_sweep.store.store import Store
from tests.ascl_sweep.store.rows import a_run, put


def test_work_is_absolute_and_the_address_is_as_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("results")
    assert store.address == "results"
    assert store.work("a") == str(tmp_path / "results" / "work" / "a")
    assert Store(f"file://{tmp_path}/results").work("a") == store.work("a")


def test_the_options_of_an_address_stay_at_its_end() -> None:
    options = "?endpoint_override=127.0.0.1:9000&scheme=http"
    for root in ("s3://bucket/results", "s3://bucket/results/"):
        store = Store(root + options)
        assert store.work("a") == f"s3://bucket/results/work/a{options}"
        assert store.log("a") == f"s3://bucket/results/work/a/log.txt{options}"


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(StoreError, match="must not contain a password") as refused:
        Store("s3://key:hush@bucket/results")
    assert "hush" not in str(refused.value) and "AWS_SECRET_ACCESS_KEY" in str(refused.value)


def test_an_address_that_nobody_knows_is_refused() -> None:
    with pytest.raises(StoreError, match=r"must be a folder, or an address .*, got x://y"):
        Store("x://y")


# --- files that are never replaced --------------------------------------------------------------


def test_creating_a_file_never_replaces_one(tmp_path: Path) -> None:
    store = StoreFiles(tmp_path)
    store.create("runs/a", b"first")
    with pytest.raises(FileExistsError, match=r"cannot be written: .*runs/a"):
        store.create("runs/a", b"second")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"], "no temporary file"
    assert (tmp_path / "runs" / "a").read_bytes() == b"first"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_disk_without_hard_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(number, "no links here")))
    test_creating_a_file_never_replaces_one(tmp_path)


def test_a_link_that_nfs_reports_as_existing_although_it_made_it_is_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", repeated)
    StoreFiles(tmp_path).create("runs/a", b"first")
    assert (tmp_path / "runs" / "a").read_bytes() == b"first"


def test_creating_a_file_does_not_create_the_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StoreFiles(tmp_path / "gone").create("runs/a", b"first")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("kind", ["abfs", "hdfs"])
def test_a_kill_during_an_upload_leaves_the_old_file_where_uploads_are_not_atomic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As on Azure: opening a file for writing empties it."""
    store = StoreFiles(SubTreeFileSystem(str(tmp_path), LocalFileSystem()))
    store.write(".lock", b"old")

    class Remote:
        type_name = kind

        def __getattr__(self, name: str) -> object:
            return getattr(SubTreeFileSystem(str(tmp_path), LocalFileSystem()), name)

        def open_output_stream(self, path: str) -> None:
            (tmp_path / path).write_bytes(b"")
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "_files", Remote())
    with pytest.raises(KeyboardInterrupt):
        store.write(".lock", b"new")
    assert (tmp_path / ".lock").read_bytes() == b"old"
    with pytest.raises(KeyboardInterrupt):
        store.create("runs/a.parquet", b"new")
    assert store.list_files("runs") == [], "half-written files are not listed"


# --- network file systems -----------------------------------------------------------------------

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/export /mnt/data nfs4 rw 0 0
/dev/vdb /mnt/data/scratch xfs rw 0 0
beegfs_nodev /mnt/with\\040space beegfs rw 0 0
host: /mnt/ssh fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "remote"),
    [
        ("/home/results", False),
        ("/mnt/data/results", True),
        ("/mnt/database", False),
        ("/mnt/data/scratch/results", False),
        ("/mnt/with space/results", True),
        ("/mnt/ssh", True),
    ],
)
def test_network_file_systems_are_found_by_their_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, remote: bool
) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(network, "_MOUNTS", tmp_path / "mounts")
    assert network.is_network_folder(Path(folder)) == remote
    store = Store(folder)
    for number in (errno.ESTALE, errno.EIO):
        assert store.may_recover(OSError(number, "stale")) == remote
    assert not store.may_recover(OSError(errno.ENOSPC, "full"))


def test_a_reader_waits_until_an_outdated_listing_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, a_run("a"))
    pauses: list[float] = []
    opened = StoreFiles.open

    def stale(store: StoreFiles, name: str) -> pa.NativeFile:
        if sum(pauses) < 30:  # seconds for which an NFS client may keep a listing
            raise OSError(errno.ESTALE if pauses else errno.ENOENT, "gone", name)
        return opened(store, name)

    monkeypatch.setattr(StoreFiles, "open", stale)
    monkeypatch.setattr("ascl_sweep.store.tables.time.sleep", pauses.append)
    assert Store(tmp_path).runs().keys() == {"a"}
