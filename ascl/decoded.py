"""Pictures decoded once and kept on disk as plain pixels, so that training need not decode them.

Beside a folder `train` lies `train.pixels`: shards `00000.bin`, … of RGB bytes, one picture after
the other, and to each an index `00000.npz` with its pictures' names and sizes. An index is written
after its shard and says how many pictures there are in all, so that what a killed call left is
known for what it is, and the next call goes on from there. Crops are read row by row from where
they lie; they are bit for bit those of the decoded file.
"""

# Shapes: N = pictures.

import errno
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ascl.datasets import DataError

PER_SHARD = 4096  # pictures; some 2 GB of ImageNet's
SAMPLE = 1000  # pictures whose sizes tell how much disk is needed
_NUMBER = 5 * "[0-9]"

OnDecoded = Callable[[int, int], None]
"""Told how many pictures are decoded, of how many."""


class RawPicture(NamedTuple):
    """A picture among others in a file of pixels; stands in for PIL's where crops are cut."""

    path: str
    offset: int
    height: int
    width: int

    def crop(self, box: tuple[int, int, int, int]) -> Image.Image:
        """The part within (left, top, right, bottom), as PIL has it."""
        left, top, right, bottom = box
        height, width = bottom - top, right - left
        length = 3 * ((height - 1) * self.width + width)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset + 3 * (top * self.width + left))
                pixels = file.read(length)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error}; check the disk") from error
        if len(pixels) != length:
            raise DataError(
                f"{self.path} is damaged (it ends within a picture); mend it with "
                "`ascl-sweep fetch --decode`"
            )
        # With the stride of the whole picture, PIL leaves the columns beside the box out.
        stride = 3 * self.width
        return Image.frombuffer("RGB", (width, height), pixels, "raw", "RGB", stride, 1)


@dataclass(frozen=True, eq=False)
class Decoded:
    """Where the pictures of a set lie decoded."""

    folder: Path
    places: np.ndarray
    """int64 (N, 4): shard, offset, height and width."""

    def __getitem__(self, chosen: np.ndarray) -> "Decoded":
        return Decoded(self.folder, self.places[chosen])

    def picture(self, index: int) -> RawPicture:
        shard, offset, height, width = self.places[index].tolist()
        return RawPicture(str(_shard(self.folder, shard)), offset, height, width)


@contextmanager
def _opened(file: str) -> Iterator[Image.Image]:
    try:
        with Image.open(file) as picture:
            yield picture
    except OSError as error:
        raise DataError(f"{file} cannot be decoded: {error}; fetch that file again") from error


def decode(file: str) -> Image.Image:
    """The pixels of a file in RGB; the same whether they are kept or used at once."""
    with _opened(file) as picture:
        picture.load()
        # Some are greyscale or CMYK; the others need no copy.
        return picture if picture.mode == "RGB" else picture.convert("RGB")


def pixels_of(folder: Path) -> Path:
    """Where the pictures of a folder are kept decoded."""
    return folder.with_name(f"{folder.name}.pixels")


def open_decoded(folder: Path, way_out: str) -> tuple[list[str], Decoded] | None:
    """The names of the pictures that a folder holds decoded, and where; None if not all are."""
    names: list[str] = []
    places, totals = [], set()
    for index in sorted(folder.glob(f"{_NUMBER}.npz")):
        shard = index.with_suffix(".bin")
        try:
            part, sizes, total = _read_index(shard)
        except ValueError as error:
            raise DataError(f"{shard} is damaged ({error}); {way_out}") from error
        offsets = _offsets(sizes)
        places.append(np.column_stack((np.full_like(offsets, int(shard.stem)), offsets, sizes)))
        names += part
        totals.add(total)
    if totals != {len(names)}:
        return None
    return names, Decoded(folder, np.concatenate(places))


def decode_folders(folders: Mapping[Path, Sequence[str]], on_progress: OnDecoded) -> None:
    """Keep the pictures of these names in these folders decoded, each folder's beside it.

    Shards that are whole are left as they are. Raises OSError if the disk has no room.
    """
    shards = [shard for folder, names in folders.items() for shard in _shards(folder, names)]
    wanted = {shard.path.with_suffix(end) for shard in shards for end in (".bin", ".npz")}
    for folder in folders:
        for end in ("bin", "npz", "part"):
            for path in set(pixels_of(folder).glob(f"{_NUMBER}.{end}")) - wanted:
                path.unlink()  # of a longer list, or left by a call that was killed
    todo = [shard for shard in shards if not shard.is_whole()]
    total = sum(len(shard.names) for shard in shards)
    done = total - sum(len(shard.names) for shard in todo)
    pool = ThreadPoolExecutor()  # decoding lets go of the interpreter's lock
    try:
        _check_room(todo, pool)
        on_progress(done, total)
        for shard in todo:
            for _ in shard.write(pool):
                done += 1
                on_progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Shard:
    """A part of a folder's pictures, decoded or to be."""

    source: Path
    number: int
    names: list[str]
    total: int
    """Pictures in all shards of the folder."""

    @property
    def path(self) -> Path:
        return _shard(pixels_of(self.source), self.number)

    def files(self) -> list[str]:
        return [os.path.join(self.source, name) for name in self.names]

    def is_whole(self) -> bool:
        try:
            names, _, total = _read_index(self.path)
        except ValueError:
            return False
        return names == self.names and total == self.total

    def write(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """Decode the pictures, yielding after each; all are on disk when it ends."""
        index, part = self.path.with_suffix(".npz"), self.path.with_suffix(".part")
        index.unlink(missing_ok=True)  # it would vouch for another shard
        files = self.files()
        sizes = np.array(list(pool.map(_size, files)), np.int64)

        def put(file: str, offset: int) -> None:
            pixels = decode(file).tobytes()
            with open(part, "r+b") as shard:
                shard.seek(offset)
                shard.write(pixels)

        part.parent.mkdir(exist_ok=True)
        part.write_bytes(b"")
        for _ in pool.map(put, files, _offsets(sizes).tolist()):
            yield
        _put_in_place(part, self.path)
        with open(part, "wb") as whole:
            names = np.array([os.fsencode(name) for name in self.names])
            np.savez(whole, names=names, sizes=sizes, total=self.total)
        _put_in_place(part, index)


def _shards(folder: Path, names: Sequence[str]) -> list[_Shard]:
    starts = range(0, len(names), PER_SHARD)
    parts = [list(names[start : start + PER_SHARD]) for start in starts]
    return [_Shard(folder, number, part, len(names)) for number, part in enumerate(parts)]


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.bin"


def _read_index(shard: Path) -> tuple[list[str], np.ndarray, int]:
    """Names and sizes of a shard's pictures, and how many there are in all shards.

    Raises ValueError with what is wrong unless the shard is whole.
    """
    try:
        with np.load(shard.with_suffix(".npz"), allow_pickle=False) as index:
            names = [os.fsdecode(name) for name in index["names"].tolist()]
            sizes, total = index["sizes"], int(index["total"])
        held, expected = shard.stat().st_size, 3 * sizes.prod(axis=1).sum()
    except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from error
    if held != expected:
        raise ValueError(f"it holds {held:,} of {expected:,} bytes")
    return names, sizes, total


def _offsets(sizes: np.ndarray) -> np.ndarray:
    """Where pictures of these sizes begin that lie one after the other."""
    lengths = 3 * sizes.prod(axis=1)
    offsets: np.ndarray = lengths.cumsum() - lengths
    return offsets


def _size(file: str) -> tuple[int, int]:
    """Height and width of a picture, from the first bytes of its file."""
    with _opened(file) as picture:
        return picture.height, picture.width


def _check_room(shards: Sequence[_Shard], pool: ThreadPoolExecutor) -> None:
    """Raise OSError if the disk has too little room for these, judged by the sizes of some."""
    files = [file for shard in shards for file in shard.files()]
    if not files:
        return
    some = files[:: -(-len(files) // SAMPLE)]
    mean = sum(3 * height * width for height, width in pool.map(_size, some)) / len(some)
    where = shards[0].source.parent
    need, free = mean * len(files), shutil.disk_usage(where).free
    if need > free:
        raise OSError(
            errno.ENOSPC,
            f"{len(files):,} decoded pictures need about {need / 1e9:,.1f} GB and "
            f"{free / 1e9:,.1f} GB are free in {where}; make room, or train without them",
        )


def _put_in_place(part: Path, path: Path) -> None:
    # On the disk before it has its name: an index must never vouch for a shard that is not there.
    with open(part, "rb+") as file:
        os.fsync(file.fileno())
    part.replace(path)
