"""Cache of decoded images on disk, so that training does not decode JPEG files.

The cache of a folder `train` is `train.pixels`: shards `00000.bin`, … of concatenated RGB bytes,
each with an index `00000.npz` of image names and sizes. An index is written after its shard and
states the total number of images, so an interrupted cache is recognized and the next call resumes
it. Only the rows of a crop are read; crops are bit-identical to those of the decoded file.
"""

# Shapes: N = images.

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

from ascl.errors import DataError
from ascl.files import put_in_place

PER_SHARD = 4096  # images; about 2 GB for ImageNet
SAMPLE = 1000  # images whose sizes are used to estimate the disk space
_NUMBER = 5 * "[0-9]"

OnDecoded = Callable[[int, int], None]
"""Progress callback: number of decoded images, total number of images."""


class RawPicture(NamedTuple):
    """An image in a shard; replaces a PIL image where crops are read."""

    path: str
    offset: int
    height: int
    width: int

    def crop(self, box: tuple[int, int, int, int]) -> Image.Image:
        """Return the part within (left, top, right, bottom), like PIL's `crop`."""
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
                f"{self.path} is damaged (it ends within an image); repair it with "
                "`ascl-sweep fetch imagenet --decode`"
            )
        # With the stride of the whole image, PIL skips the columns outside the box.
        stride = 3 * self.width
        return Image.frombuffer("RGB", (width, height), pixels, "raw", "RGB", stride, 1)


@dataclass(frozen=True, eq=False)
class Decoded:
    """Locations of decoded images."""

    folder: Path
    places: np.ndarray
    """int64 (N, 4): shard, offset, height and width."""

    def __getitem__(self, chosen: np.ndarray) -> "Decoded":
        return Decoded(self.folder, self.places[chosen])

    def picture(self, index: int) -> RawPicture:
        shard, offset, height, width = self.places[index].tolist()
        return RawPicture(str(_shard(self.folder, shard)), offset, height, width)


@contextmanager
def _open(file: str) -> Iterator[Image.Image]:
    try:
        with Image.open(file) as picture:
            yield picture
    except OSError as error:
        raise DataError(f"{file} cannot be decoded: {error}; replace the file") from error


def decode(file: str) -> Image.Image:
    """Decode an image file to RGB, for the cache or for immediate use."""
    with _open(file) as picture:
        picture.load()
        # Some files are grayscale or CMYK; RGB files need no copy.
        return picture if picture.mode == "RGB" else picture.convert("RGB")


def cache_folder(folder: Path) -> Path:
    """Return the cache of a folder of images."""
    return folder.with_name(f"{folder.name}.pixels")


def open_decoded(folder: Path, remedy: str) -> tuple[list[str], Decoded] | None:
    """Return the names and locations of the images in a cache; None if the cache is incomplete.

    `remedy` is appended to the message if a shard is damaged.
    """
    names: list[str] = []
    places, totals = [], set()
    for index in sorted(folder.glob(f"{_NUMBER}.npz")):
        shard = index.with_suffix(".bin")
        try:
            part, sizes, total = _read_index(shard)
        except ValueError as error:
            raise DataError(f"{shard} is damaged ({error}); {remedy}") from error
        offsets = _offsets(sizes)
        places.append(np.column_stack((np.full_like(offsets, int(shard.stem)), offsets, sizes)))
        names += part
        totals.add(total)
    if totals != {len(names)}:
        return None
    return names, Decoded(folder, np.concatenate(places))


def decode_folders(folders: Mapping[Path, Sequence[str]], on_progress: OnDecoded) -> None:
    """Decode the named images of each folder into its cache.

    Complete shards are kept. Raises OSError if the disk has too little free space.
    """
    shards = [shard for folder, names in folders.items() for shard in _shards(folder, names)]
    wanted = {shard.path.with_suffix(end) for shard in shards for end in (".bin", ".npz")}
    for folder in folders:
        for end in ("bin", "npz", "part"):
            for path in set(cache_folder(folder).glob(f"{_NUMBER}.{end}")) - wanted:
                path.unlink()  # from a longer list of images, or from an interrupted call
    todo = [shard for shard in shards if not shard.is_whole()]
    total = sum(len(shard.names) for shard in shards)
    done = total - sum(len(shard.names) for shard in todo)
    pool = ThreadPoolExecutor()  # decoding releases the GIL
    try:
        _check_disk_space(todo, pool)
        on_progress(done, total)
        for shard in todo:
            for _ in shard.write(pool):
                done += 1
                on_progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Shard:
    """A part of a folder's images, decoded or to be decoded."""

    source: Path
    number: int
    names: list[str]
    total: int
    """Number of images in all shards of the folder."""

    @property
    def path(self) -> Path:
        return _shard(cache_folder(self.source), self.number)

    def files(self) -> list[str]:
        return [os.path.join(self.source, name) for name in self.names]

    def is_whole(self) -> bool:
        try:
            names, _, total = _read_index(self.path)
        except ValueError:
            return False
        return names == self.names and total == self.total

    def write(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """Decode the images and yield after each; the shard is on disk when the iterator ends."""
        index, part = self.path.with_suffix(".npz"), self.path.with_suffix(".part")
        index.unlink(missing_ok=True)  # an old index does not describe the new shard
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
        put_in_place(part, self.path)  # before the index, which marks the shard as complete
        with open(part, "wb") as whole:
            names = np.array([os.fsencode(name) for name in self.names])
            np.savez(whole, names=names, sizes=sizes, total=self.total)
        put_in_place(part, index)


def _shards(folder: Path, names: Sequence[str]) -> list[_Shard]:
    starts = range(0, len(names), PER_SHARD)
    parts = [list(names[start : start + PER_SHARD]) for start in starts]
    return [_Shard(folder, number, part, len(names)) for number, part in enumerate(parts)]


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.bin"


def _read_index(shard: Path) -> tuple[list[str], np.ndarray, int]:
    """Return the names and sizes of a shard's images, and the number of images in all shards.

    Raises ValueError if the shard is missing, damaged or incomplete.
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
    """Return the byte offsets of concatenated images of these sizes."""
    lengths = 3 * sizes.prod(axis=1)
    offsets: np.ndarray = lengths.cumsum() - lengths
    return offsets


def _size(file: str) -> tuple[int, int]:
    """Read the height and width of an image from its file header."""
    with _open(file) as picture:
        return picture.height, picture.width


def _check_disk_space(shards: Sequence[_Shard], pool: ThreadPoolExecutor) -> None:
    """Raise OSError if the free disk space is too small, estimated from a sample of image sizes."""
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
            f"{len(files):,} decoded images need about {need / 1e9:,.1f} GB, but only "
            f"{free / 1e9:,.1f} GB are free in {where}; free disk space, or omit --decode "
            "and train from the image files",
        )
