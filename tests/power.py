"""Simulation of a power failure: what the disk has of a folder whose files were not all flushed."""

import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

Names = dict[Path, tuple[int, int]]
"""Files of a folder with a key of their contents."""


class Disk:
    """Records what a program flushes to disk, and what it only seems to have written.

    The contents of a file are lost unless the file was flushed. Names become permanent in the order
    of the changes, and all of them when their folder is flushed, as on ext4 and XFS. New folders
    are permanent at once.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, root: Path, on_change: Callable[[], None]
    ) -> None:
        """Record from now on; `on_change` is called after each change of names."""
        self._root, self._on_change = root, on_change
        self._contents: dict[tuple[int, int], bytes] = {}
        self._names: dict[Path, list[Names]] = {}  # the permanent names, then each later change
        for name in ("link", "replace", "rename", "unlink"):
            patch.setattr(os, name, self._watch(getattr(os, name)))
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self._flush)

    def after_failure(self, *, every: bool = False) -> Iterator[dict[Path, bytes]]:
        """Yield what the disk may have after a power failure now: files with their contents.

        `every` yields every combination of the folders' states, not only the oldest and the newest.
        """
        states = list(self._names.values())
        if not every:
            states = [[names[0], names[-1]] for names in states]
        chosen = product(*states) if every else zip(*states, strict=True)
        for folders in chosen:
            yield {
                path.relative_to(self._root): self._contents.get(key, b"")
                for names in folders
                for path, key in names.items()
            }

    def _watch(self, change: Callable[..., None]) -> Callable[..., None]:
        def watched(*paths: Any, **options: Any) -> None:
            folder = Path(paths[-1]).parent
            inside = folder.is_relative_to(self._root)
            if inside and folder not in self._names:
                self._names[folder] = [_list(folder)]
            change(*paths, **options)
            if inside:
                self._names[folder].append(_list(folder))
                self._on_change()

        return watched

    def _flush(self, handle: int) -> None:
        self._fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            if path.is_relative_to(self._root):
                self._names[path] = [_list(path)]
        else:
            self._contents[_key(path)] = path.read_bytes()


def _list(folder: Path) -> Names:
    return {path: _key(path) for path in folder.iterdir() if path.is_file()}


def _key(path: Path) -> tuple[int, int]:
    """Return a key that differs for another file, also if it has the inode of a deleted one."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def write_files(folder: Path, files: dict[Path, bytes]) -> Path:
    """Write files to a new folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
