"""Files of a store, in a folder on this machine or in a remote file system.

Every file is written atomically: a reader sees the old file or the new file, never a partial one.
Files of tables are never replaced: `create` refuses a name that exists.
"""

import errno
import os
import posixpath
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs

from ascl.files import write_atomically
from ascl_sweep.errors import StoreError
from ascl_sweep.store.address import is_remote, refuse_password
from ascl_sweep.store.network import is_unreachable

# Object stores in which a file appears once its upload is complete. Not abfs: pyarrow 26 replaces
# the file by an empty one when the upload starts.
_PUT_IS_ATOMIC = ("s3", "gcs")
# Limits of the retries of one request: the callers retry, and work meanwhile.
_S3_ATTEMPTS = 3
_GCS_RETRIES = "retry_limit_seconds=10"
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)  # vfat, exFAT, some FUSE file systems
_HALF_WRITTEN = re.compile(r"\..+\.half")


def is_half_written(name: str) -> bool:
    """Whether a file is being written, or was left behind by a writer that was killed."""
    return _HALF_WRITTEN.fullmatch(name) is not None


@dataclass(frozen=True)
class File:
    """Name and size of a file."""

    name: str
    bytes: int


class StoreFiles:
    """Folder of files, named by paths relative to the folder. Reading creates nothing."""

    def __init__(self, store: str | Path | pafs.FileSystem) -> None:
        self.folder: Path | None = None
        """The folder; None if it is remote."""
        self._files: pafs.FileSystem
        if isinstance(store, pafs.FileSystem):
            self.address, self._files, self._root = f"{store.type_name}:", store, ""
            return
        self.address = str(store) if str(store) == "/" else str(store).rstrip("/")
        if is_remote(self.address):
            refuse_password(self.address)
            try:
                files, self._root = _connect(self.address)
            except (pa.ArrowException, ValueError) as error:
                raise StoreError(
                    "the store must be a folder, or an address that pyarrow.fs supports (s3://, "
                    f"gs://, abfs://, hdfs://, file://), got {self.address}: {error}"
                ) from error
            self._files = files
            if isinstance(self._files, pafs.LocalFileSystem):
                self.folder = Path(self._root)
        else:
            self.folder = Path(self.address).absolute()
            self._files, self._root = pafs.LocalFileSystem(), str(self.folder)

    def may_recover(self, error: OSError) -> bool:
        """Whether an error may pass: the store is remote, or on an unreachable network mount."""
        return self.folder is None or is_unreachable(self.folder, error)

    def is_bad_sector(self, error: BaseException) -> bool:
        """Whether a part of a file can never be read: its disk, of this machine, is damaged."""
        if not isinstance(error, OSError) or error.errno != errno.EIO:
            return False
        return not self.may_recover(error)

    def address_of(self, name: str) -> str:
        """Return the absolute path of a file, or its address if the store is remote."""
        if self.folder is not None:
            return str(self.folder / name)
        address, mark, options = self.address.partition("?")
        return f"{address.rstrip('/')}/{name}{mark}{options}"

    def list_files(self, folder: str = "") -> list[File]:
        """List the complete files directly in a folder, sorted by name."""
        found = self._list_once(folder)
        # A folder on a disk is not read in the order of names: one pass over it may miss a file
        # that is created meanwhile and also the files that it replaces.
        while self.folder is not None and found != (again := self._list_once(folder)):
            found = again
        return found

    def _list_once(self, folder: str) -> list[File]:
        found = [
            File(posixpath.join(folder, info.base_name), info.size or 0)
            for info in self._infos(folder)
            if info.type == pafs.FileType.File and not is_half_written(info.base_name)
        ]
        return sorted(found, key=lambda file: file.name)

    def list_folders(self, folder: str) -> list[str]:
        """List the names of the folders directly in a folder, sorted."""
        infos = self._infos(folder)
        return sorted(i.base_name for i in infos if i.type == pafs.FileType.Directory)

    def count_bytes(self, folder: str) -> int:
        """Return the total size of the files in a folder and its subfolders."""
        return sum(info.size or 0 for info in self._infos(folder, recursive=True))

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading. Downloads a remote file completely, so later reads cannot fail.

        Raises FileNotFoundError if the file does not exist, OSError if it cannot be read now.
        """
        if self.folder is not None:
            return self._files.open_input_file(self._path(name))
        with self._files.open_input_file(self._path(name)) as file:
            return pa.BufferReader(file.read_buffer())

    def read_text(self, name: str) -> str | None:
        """Return the content of a small file; None if the file does not exist."""
        try:
            with self.open(name) as file:
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Create or replace a file atomically; a failure changes nothing."""
        with _naming(path := self._path(name)):
            if self.folder is not None:
                write_atomically(Path(path), lambda temporary: temporary.write_bytes(data))
            else:
                self._upload(path, data)

    def create(self, name: str, data: bytes | pa.Buffer) -> None:
        """Create a file atomically; a failure changes nothing.

        On a disk, raises FileExistsError instead of replacing a file, and creates the file's folder
        but not the store: a store that was deleted stays deleted. A remote store has no such
        check, so names must be unique.
        """
        with _naming(path := self._path(name)):
            if self.folder is not None:
                _create_locally(Path(path), data)
            else:
                self._upload(path, data)

    def move(self, name: str, new: str) -> None:
        """Move a file to a new name, whose folder is created."""
        with _naming(path := self._path(new)):
            if self._files.type_name not in _PUT_IS_ATOMIC:  # object stores have no folders
                self._files.create_dir(posixpath.dirname(path), recursive=True)
            self._files.move(self._path(name), path)

    def rename(self, name: str, new: str) -> None:
        """Rename a file within its folder; replaces a file that has the new name.

        Raises FileNotFoundError if the file does not exist.
        """
        try:
            self._files.move(path := self._path(name), self._path(new))
        except FileNotFoundError:
            raise
        except OSError as error:  # pyarrow 26 raises a plain OSError on S3
            if self._files.get_file_info(path).type != pafs.FileType.NotFound:
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        delete = os.unlink if self.folder is not None else self._files.delete_file
        with suppress(FileNotFoundError):
            delete(self._path(name))

    def delete_folder(self, name: str) -> None:
        """Delete a folder and everything in it if it exists."""
        delete = shutil.rmtree if self.folder is not None else self._files.delete_dir
        with suppress(FileNotFoundError):
            delete(self._path(name))

    def delete_half_written(self, folder: str) -> None:
        """Delete files that killed writers left in a folder. The caller holds the store's lock."""
        for info in self._infos(folder):
            if is_half_written(info.base_name):
                self.delete(f"{folder}/{info.base_name}")

    def _path(self, name: str) -> str:
        """Return the path of a file in the underlying file system."""
        return "/".join(part for part in (self._root, name) if part)

    def _infos(self, folder: str, recursive: bool = False) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self._path(folder), allow_not_found=True, recursive=recursive)
        return self._files.get_file_info(selector)

    def _upload(self, path: str, data: bytes | pa.Buffer) -> None:
        if self._files.type_name in _PUT_IS_ATOMIC:
            self._put(path, data)
            return
        folder, base = posixpath.split(path)
        if folder:
            self._files.create_dir(folder, recursive=True)
        # Processes on two machines may have the same id.
        half = posixpath.join(folder, f".{base}.{os.getpid()}-{secrets.token_hex(4)}.half")
        self._put(half, data)
        self._files.move(half, path)

    def _put(self, path: str, data: bytes | pa.Buffer) -> None:
        # One write: a failure between two writes would leave a partial file.
        with self._files.open_output_stream(path) as file:
            file.write(data)


def _connect(address: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of an address, and the path in it.

    By default, one request of pyarrow 26 blocks for 90 seconds if an S3 server hangs, and for 15
    minutes if GCS is unreachable.
    """
    if address.startswith(("gs://", "gcs://")) and "retry_limit_seconds=" not in address:
        address += f"{'&' if '?' in address else '?'}{_GCS_RETRIES}"
    files, path = pafs.FileSystem.from_uri(address)
    if not isinstance(files, pafs.S3FileSystem):
        return files, path
    # An S3 address has no option for retries, so build the file system again with its options.
    build, (options,) = cast("tuple[Any, tuple[dict[str, Any]]]", files.__reduce__())
    retries = pafs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS)
    limited = build({**options, "retry_strategy": retries})
    return limited if limited.equals(files) else files, path  # unless an option was lost


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Add the path to errors of writing."""
    try:
        yield
    except pa.ArrowNotImplementedError as error:  # pyarrow 26: moving files in Azure
        raise StoreError(
            f"{path} cannot be written, because the store cannot rename files; for abfs://, use an "
            f"account with hierarchical namespaces: {error}"
        ) from error
    except OSError as error:
        if error.errno is None:  # pyarrow sets no errno for errors of remote stores
            raise OSError(f"{path} cannot be written: {error}") from error
        raise OSError(error.errno, f"cannot be written: {error.strerror}", path) from error


def _create_locally(path: Path, data: bytes | pa.Buffer) -> None:
    """Create a file atomically on a disk; raise FileExistsError if it exists."""
    with suppress(FileExistsError):
        path.parent.mkdir()
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        with open(half, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _link(half, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # a caller may then delete the files that this one replaces
        finally:
            os.close(folder)
    finally:
        half.unlink(missing_ok=True)


def _link(half: Path, path: Path) -> None:
    """Give a complete file its name, unless the name exists."""
    try:
        os.link(half, path)
    except FileExistsError:
        if half.stat().st_nlink != 2:  # 2: NFS linked the file and repeated the request
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(half, path)
