"""Local folder in which a worker trains a run.

If the store is local, this is the run's folder in the store. If the store is remote, it is a
temporary folder whose files are uploaded to the run's folder in the store.

The run's folder in the store contains the token of the worker that claimed it last. A worker of an
older attempt, e.g. on a node that was unreachable for a while, finds another token before its next
write and ends. What remains is one write: on a disk the renames, in a remote store the request that
has already begun. Such a checkpoint is complete and of the same run, and the newer worker's next
one replaces it.
"""

import errno
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread

from ascl.files import hold_folder
from ascl_sweep.errors import AsclSweepError
from ascl_sweep.store.address import is_remote
from ascl_sweep.store.filesystem import StoreFiles, is_half_written
from ascl_sweep.store.retry import PATIENCE, retry

CHECKPOINT = "checkpoint.pt"  # not imported from ascl.checkpoint, which imports torch
PREVIOUS = "checkpoint.previous.pt"
CLAIM = "claimed_by"  # the token of the worker that claimed the folder last
PREFIX = "ascl-work-"
LOG_SECONDS = 60.0  # interval at which the log is copied to a remote store during an epoch
Version = tuple[int, int]
"""Inode and modification time of a local file; unchanged if the file is renamed."""


class SupersededError(AsclSweepError):
    """A newer worker has claimed the run, so this worker must end."""


class WorkerDiskError(AsclSweepError):
    """The temporary folder of a worker cannot be written."""


class WorkFolder:
    """Local files of a run, with copies in the store if the store is remote."""

    def __init__(self, path: Path, remote: str | None = None, *, only: str | None = None) -> None:
        self.path = path
        self._remote = remote  # address to copy the files to; None to copy nothing
        self._only = only  # the only file to copy; None to copy all files
        self._token: str | None = None
        self._stored: dict[str, Version] = {}  # file name → local version that the store has
        self._behind_since: float | None = None  # time of the first upload that failed
        self._uploading = Lock()

    def claim(self) -> None:
        """Make this worker the only one that may write the run's files."""
        self._token = token = secrets.token_hex(16)
        retry(
            lambda: self._files().write(CLAIM, token.encode()),
            seconds=0 if self._remote is None else None,
        )

    def check(self) -> None:
        """Raise SupersededError if a newer worker has claimed the run; call before each write.

        In a remote store, `push` checks: a temporary folder has no other worker.
        """
        if self._remote is None:
            self._check(self._files())

    def pull(self) -> None:
        """Download the files that an earlier worker uploaded to a remote store."""
        if self._remote is not None:
            retry(self._download)

    def push(self, *, last: bool = True) -> None:
        """Upload the files that have changed, so that another worker can resume the run.

        If the store is unreachable, training continues and a later call uploads the files. The call
        waits for the store only after the last epoch, or if uploads have failed for PATIENCE
        seconds. Raises SupersededError.
        """
        if self._remote is None:
            return
        sys.stdout.flush()  # the log is one of the files
        since = self._behind_since
        wait = last or (since is not None and time.monotonic() - since > PATIENCE)
        try:
            retry(self._upload, seconds=PATIENCE if wait else 0)
            self._behind_since = None
        except FileNotFoundError:
            raise
        except OSError:
            if wait:
                raise
            self._behind_since = time.monotonic() if since is None else since

    @contextmanager
    def copying(self, name: str) -> Iterator[None]:
        """Copy a file to a remote store from time to time: this process may be killed."""
        if self._remote is None:
            yield
            return
        over = Event()
        thread = Thread(target=self._copy_until, args=(over, name), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _copy_until(self, over: Event, name: str) -> None:
        with suppress(SupersededError):
            while not over.wait(LOG_SECONDS):
                sys.stdout.flush()
                with suppress(OSError), self._uploading:  # a later call copies the file
                    self._put(self._files(), self.path / name)

    def _check(self, files: StoreFiles) -> None:
        if self._token is not None and files.read_text(CLAIM) != self._token:
            raise SupersededError("another worker has taken over the run, or its folder is deleted")

    def _download(self) -> None:
        files = self._files()
        for name in [file.name for file in files.list_files() if self._is_copied(file.name)]:
            with files.open(name) as source:
                content = source.read_buffer()
            path = self.path / name
            try:
                path.write_bytes(content)
            except OSError as error:  # of this disk, so do not retry as if the store caused it
                raise _disk_error() from error
            self._stored[name] = _version(path)

    def _upload(self) -> None:
        with self._uploading:
            self._upload_all()

    def _upload_all(self) -> None:
        files = self._files()
        here = {path.name: path for path in self.path.iterdir() if self._is_copied(path.name)}
        previous = here.pop(PREVIOUS, None)
        if previous and self._stored.get(CHECKPOINT) == _version(previous):
            # Renamed here since its upload: rename it there too, instead of uploading it again.
            self._check(files)
            with suppress(FileNotFoundError):  # renamed by an attempt whose answer was lost
                files.rename(CHECKPOINT, PREVIOUS)
            self._stored[PREVIOUS] = self._stored.pop(CHECKPOINT)
        # The checkpoint first: without it, the next worker discards the other files.
        for name in sorted(here, key=lambda name: name != CHECKPOINT):
            self._put(files, here[name])
        keep = {*here, PREVIOUS} if previous else here
        for name in [name for name in self._stored if name not in keep]:
            self._check(files)
            files.delete(name)
            del self._stored[name]

    def _put(self, files: StoreFiles, path: Path) -> None:
        """Upload a file if it has changed."""
        version = _version(path)
        if self._stored.get(path.name) != version:
            self._check(files)
            files.write(path.name, path.read_bytes())
            self._stored[path.name] = version

    def _is_copied(self, name: str) -> bool:
        return name == self._only if self._only else name != CLAIM and not is_half_written(name)

    def _files(self) -> StoreFiles:
        """Return a new connection: the store may have been unreachable before."""
        return StoreFiles(self.path if self._remote is None else self._remote)


def _version(path: Path) -> Version:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


@contextmanager
def open_work_folder(address: str, *, only: str | None = None) -> Iterator[WorkFolder]:
    """Open the folder in which a worker trains a run.

    Args:
        address: The run's folder in the store (`RunTask.folder`): a path or a remote address.
        only: The only file that this worker copies from and to a remote store: the log of a rank
            other than the first.
    """
    if not is_remote(address):
        yield WorkFolder(Path(address), only=only)
        return
    try:
        delete_leftovers()
        with _temporary_folder() as path:
            yield WorkFolder(path, address, only=only)
    except OSError as error:
        if _is_of_temporary_folder(error):
            raise _disk_error() from error
        raise


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Create a folder that is deleted at the end, and locked against `delete_leftovers` until then.

    The lock ends with the process, however the process ends.
    """
    with ExitStack() as stack:
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            try:
                stack.enter_context(hold_folder(path))
            except (FileNotFoundError, BlockingIOError):  # another worker is deleting it
                continue
            except OSError:  # NFS cannot lock a folder, so no worker deletes this one
                break
            if path.exists():
                break
        yield path


def delete_leftovers() -> None:
    """Delete the temporary folders of workers on this machine that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), hold_folder(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_of_temporary_folder(error: OSError) -> bool:
    inside = f"{Path(tempfile.gettempdir()) / PREFIX}"
    no_space = error.errno in (errno.ENOSPC, errno.EDQUOT)  # a remote store has no such error
    return str(error.filename).startswith(inside) if error.filename else no_space


def _disk_error() -> WorkerDiskError:
    return WorkerDiskError(
        f"the disk of {tempfile.gettempdir()} on {socket.gethostname()} is full or cannot be "
        "written; free disk space there, or set TMPDIR to a folder on a larger disk"
    )
