"""Atomic file writes: a reader sees either the old file or the new one, never a partial file.

Also the lock of a temporary folder.
"""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_atomically(
    path: Path,
    write: Callable[[Path], object],
    *,
    before_replace: Callable[[], object] = lambda: None,
) -> None:
    """Call `write(temporary)` to create a file, then move it to `path` atomically.

    `before_replace` is called when the new file is on the disk; if it raises, nothing changes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes in two containers may have the same id.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.half")
    try:
        write(temporary)
        put_in_place(temporary, path, before_replace)
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(
    temporary: Path, path: Path, before_replace: Callable[[], object] = lambda: None
) -> None:
    """Flush a complete file to disk and rename it to `path`."""
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    before_replace()
    os.replace(temporary, path)
    # Flush the new name too, because a caller may then delete the files that this one replaces.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Lock a folder. The lock ends with the process and is visible in other containers.

    Raises PermissionError for another user's folder, BlockingIOError if another process holds it.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
