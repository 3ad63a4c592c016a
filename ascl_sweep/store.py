"""Where a store's files lie: a folder here, or any address that pyarrow.fs knows.

A file is written whole or not at all, so that a reader never meets a part of one.
"""

import os
import posixpath
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from ascl_sweep.address import refuse_password

_PUT_IS_ATOMIC = ("s3", "gcs", "abfs")  # object stores: nothing is seen before the upload is done
_HALF = re.compile(r"\..+\.half")  # a write under way, or of a process that was killed at it


@dataclass(frozen=True)
class File:
    name: str
    bytes: int


class Store:
    """A folder of files. Names are relative to it, with slashes; nothing is made by reading."""

    def __init__(self, store: str | Path | pafs.FileSystem) -> None:
        self.folder: Path | None = None
        """The folder if it is on this machine."""
        self._files: pafs.FileSystem
        if isinstance(store, pafs.FileSystem):
            self.address, self._files, self._root = f"{store.type_name}:", store, ""
            return
        self.address = str(store) if str(store) == "/" else str(store).rstrip("/")
        if "://" in self.address:
            refuse_password(self.address)
            try:
                self._files, self._root = pafs.FileSystem.from_uri(self.address)
            except (pa.ArrowException, ValueError) as error:
                raise ValueError(
                    "the store must be a folder, or an address that pyarrow.fs knows (s3://, "
                    f"gs://, abfs://, hdfs://, file://), got {self.address}: {error}"
                ) from error
            if isinstance(self._files, pafs.LocalFileSystem):
                self.folder = Path(self._root)
        else:
            self.folder = Path(self.address).absolute()
            self._files, self._root = pafs.LocalFileSystem(), str(self.folder)

    def path(self, name: str) -> str:
        """The name as this store's file system wants it."""
        return f"{self._root}/{name}" if self._root else name

    def place(self, name: str) -> str:
        """The name as anyone on any machine wants it: an absolute path or an address."""
        if self.folder is not None:
            return str(self.folder / name)
        address, mark, options = self.address.partition("?")
        return f"{address.rstrip('/')}/{name}{mark}{options}"

    def files(self, folder: str) -> list[File]:
        """The files directly in a folder, in order of name; those half written are left out."""
        found = [
            File(f"{folder}/{info.base_name}", info.size or 0)
            for info in self._infos(folder)
            if info.type == pafs.FileType.File and not _HALF.fullmatch(info.base_name)
        ]
        return sorted(found, key=lambda file: file.name)

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in a folder."""
        infos = self._infos(folder)
        return sorted(i.base_name for i in infos if i.type == pafs.FileType.Directory)

    def bytes_in(self, folder: str) -> int:
        """The size of everything in a folder and below."""
        return sum(info.size or 0 for info in self._infos(folder, recursive=True))

    def _infos(self, folder: str, recursive: bool = False) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self.path(folder), allow_not_found=True, recursive=recursive)
        return self._files.get_file_info(selector)

    def open(self, name: str) -> pa.NativeFile:
        """A file to read from. What is far is fetched here, so that only this can meet the network.

        Raises OSError: the file may be good. FileNotFoundError if it is not there (any more).
        """
        if self.folder is not None:
            return self._files.open_input_file(self.path(name))
        with self._files.open_input_file(self.path(name)) as file:
            return pa.BufferReader(file.read_buffer())

    def text(self, name: str) -> str | None:
        """What a small file says; None if there is none."""
        try:
            with self.open(name) as file:
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Put a file in place in one step, over what may be there; a failure changes nothing."""
        path = self.path(name)
        folder, base = posixpath.split(path)
        half = posixpath.join(folder, f".{base}.{os.getpid()}.half")
        try:
            if self.folder is not None:
                _write_here(path, half, data)
            elif self._files.type_name in _PUT_IS_ATOMIC:
                self._put(path, data)
            else:
                if folder:
                    self._files.create_dir(folder, recursive=True)
                self._put(half, data)
                self._files.move(half, path)
        except OSError as error:
            if error.errno is None:  # how pyarrow reports what went wrong far away
                raise OSError(f"{path} cannot be written: {error}") from error
            raise OSError(error.errno, f"cannot be written: {error.strerror}", path) from error

    def _put(self, path: str, data: bytes | pa.Buffer) -> None:
        with self._files.open_output_stream(path) as file:
            file.write(data)

    def delete(self, name: str) -> None:
        """Delete a file; it may be gone already."""
        try:
            if self.folder is not None:
                os.unlink(self.path(name))
            else:
                self._files.delete_file(self.path(name))
        except FileNotFoundError:
            pass

    def delete_folder(self, name: str) -> None:
        """Delete a folder with all in it; it may be gone already."""
        try:
            if self.folder is not None:
                shutil.rmtree(self.path(name))
            else:
                self._files.delete_dir(self.path(name))
        except FileNotFoundError:
            pass

    def delete_half_written(self, folder: str) -> None:
        """Delete what a killed writer left; only for who holds the lock."""
        for info in self._infos(folder):
            if _HALF.fullmatch(info.base_name):
                self.delete(f"{folder}/{info.base_name}")


def _write_here(path: str, half: str, data: bytes | pa.Buffer) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    try:
        with open(half, "wb") as file:
            file.write(memoryview(data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    finally:
        if os.path.exists(half):
            os.unlink(half)
    # The new name must be on the disk before a caller deletes the files that it replaces.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
