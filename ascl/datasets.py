"""The datasets: what each is and how it is read from disk. A new one is one entry at the end.

Reading is by split: its labels first, then only the images that were chosen, so that a small subset
of a large dataset costs little. What is missing or damaged becomes one sentence, a `DataError`.
torchvision is imported where it is used: checking a config should not wait a second for it.
"""

# Shapes: N = images, H and W = their size as stored.

import io
import os
import shlex
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ascl import shapes
from ascl.faults import unknown_name

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

    from ascl.decoded import Decoded, OnDecoded, RawPicture


class DataError(ValueError):
    """A dataset that is missing, damaged or out of reach, said in one sentence with the way out."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images held in memory."""

    images: Tensor
    """uint8 (N, 3, H, W), contiguous."""
    labels: Tensor
    """int64 (N,); -1 is unlabelled."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images left on disk, to be decoded when they are wanted."""

    paths: tuple[str, ...]
    labels: Tensor
    """int64 (N,)."""
    decoded: "Decoded | None" = None
    """Where their pixels lie, if they are kept."""

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, index: int) -> "str | RawPicture":
        """What a loader's worker needs to read an image: a path, or where its pixels lie."""
        return self.paths[index] if self.decoded is None else self.decoded.picture(index)


@dataclass(frozen=True, eq=False)
class Split:
    """A split whose labels are known and whose images are read when chosen."""

    labels: Tensor
    take: Callable[[Tensor], Images | ImageFiles]
    """The images at these places."""


@dataclass(frozen=True)
class DatasetSpec:
    """What the rest of the program needs to know of a dataset."""

    name: str
    num_classes: int
    image_size: int | None
    """Side of the images as stored; None where it varies."""
    view_size: int
    """Side of the views trained on."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    open: Callable[["DatasetSpec", Path, str], Split]
    """Open the split "train" or "test" under a root."""
    download: Callable[["DatasetSpec", Path], None]
    streams: bool = False
    """Whether images stay on disk and are decoded on the loader's workers."""
    decode: "Callable[[DatasetSpec, Path, OnDecoded], None] | None" = None
    """Keep the pixels of all images on disk; None where images are held in memory anyway."""


# ---------------------------------------------------------------- sentences


def fetch_command(spec: DatasetSpec, root: Path) -> str:
    return f"`ascl-sweep fetch {spec.name} --root {shlex.quote(str(root))}`"


def _missing(spec: DatasetSpec, root: Path, path: Path) -> DataError:
    return DataError(
        f"{spec.name} is not in {root}: no {path}; get it with {fetch_command(spec, root)}"
    )


def _damaged(spec: DatasetSpec, root: Path, path: Path, how: str) -> DataError:
    return DataError(f"{path} is damaged ({how}); delete it and run {fetch_command(spec, root)}")


def _check_files(
    spec: DatasetSpec, root: Path, folder: str, files: Sequence[Sequence[str]]
) -> None:
    """Name the first file that is missing or differs from the published one."""
    from torchvision.datasets.utils import check_integrity

    for file, md5 in files:
        path = root / folder / file
        if not path.is_file():
            raise _missing(spec, root, path if path.parent.is_dir() else path.parent)
        if not check_integrity(path, md5):
            raise _damaged(spec, root, path, "its checksum differs from the published one")


# ---------------------------------------------------------------- shapes

_SHAPES_SIZES = {"train": 10_000, "test": 2_000}


def _open_shapes(spec: DatasetSpec, root: Path, split: str) -> Split:
    labels = shapes.labels_at(torch.arange(_SHAPES_SIZES[split]))
    return Split(labels, lambda places: Images(*shapes.render_at(places, split=split)))


def _download_nothing(spec: DatasetSpec, root: Path) -> None:
    """Shapes are drawn, not stored."""


# ---------------------------------------------------------------- CIFAR


def _cifar(spec: DatasetSpec) -> "type[CIFAR10]":
    from torchvision import datasets

    source: type[CIFAR10] = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[spec.name]
    return source


def _open_cifar(spec: DatasetSpec, root: Path, split: str) -> Split:
    source = _cifar(spec)
    # CIFAR comes pickled, and unpickling runs code. It is acceptable here because torchvision
    # compares every file with its published md5 before it opens the first.
    try:
        dataset = source(root, train=split == "train")
    except RuntimeError as error:
        meta = (source.meta["filename"], source.meta["md5"])
        files = [*source.train_list, *source.test_list, meta]
        _check_files(spec, root, source.base_folder, files)
        raise _damaged(spec, root, root / source.base_folder, str(error)) from error
    # Undoes torchvision's own transpose, so this is the array as stored and nothing is copied.
    images = torch.from_numpy(dataset.data.transpose(0, 3, 1, 2))
    labels = torch.tensor(dataset.targets)
    return Split(labels, lambda places: Images(_pick(images, places), labels[places]))


def _pick(images: Tensor, places: Tensor) -> Tensor:
    # All of them, in order (places are sorted): no need of a copy.
    return images if len(places) == len(images) else images[places]


def _download_cifar(spec: DatasetSpec, root: Path) -> None:
    _cifar(spec)(root, train=False, download=True)


# ---------------------------------------------------------------- STL-10


def _open_stl10(spec: DatasetSpec, root: Path, split: str) -> Split:
    from torchvision.datasets import STL10

    # Read here rather than by torchvision: its loader checks all 3 GB for each split and holds
    # three copies of the unlabelled part, where a mapped file needs none beside the result.
    files = STL10.train_list if split == "train" else STL10.test_list
    _check_files(spec, root, STL10.base_folder, files)
    folder = root / STL10.base_folder
    parts = [np.memmap(folder / file, np.uint8, "r") for file, _ in files if file.endswith("X.bin")]
    # Stored column by column.
    columns = [part.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2) for part in parts]
    labels = torch.full((sum(map(len, columns)),), -1)
    known = np.fromfile(folder / files[1][0], np.uint8).astype(np.int64) - 1
    labels[: len(known)] = torch.from_numpy(known)

    def take(places: Tensor) -> Images:
        images = torch.empty(len(places), 3, 96, 96, dtype=torch.uint8)
        pixels = images.numpy()
        for row, place in enumerate(places.tolist()):
            beyond = place - len(columns[0])
            pixels[row] = columns[0][place] if beyond < 0 else columns[1][beyond]
        return Images(images, labels[places])

    return Split(labels, take)


def _download_stl10(spec: DatasetSpec, root: Path) -> None:
    from torchvision.datasets import STL10

    STL10(root, split="test", download=True)


# ---------------------------------------------------------------- Tiny ImageNet

_TINY = "tiny-imagenet-200"
_TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
_TINY_PER_CLASS = {"train": 500, "test": 50}
"""Published number of images of each class; fewer means that extraction was cut short."""


def _open_tiny_imagenet(spec: DatasetSpec, root: Path, split: str) -> Split:
    # The archive before the folder: it is what `fetch` brings, so fetching mends a half folder.
    folder, archive = root / _TINY, root / f"{_TINY}.zip"
    if not archive.is_file() and not folder.is_dir():
        raise _missing(spec, root, archive)
    where = archive if archive.is_file() else folder
    try:
        names, read = _archive(archive) if archive.is_file() else _folder(folder)
        paths, labels = _tiny_listing(spec, split, names, read)
    except (ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(spec, root, where, str(error)) from error

    def take(places: Tensor) -> Images:
        images = torch.empty(len(places), 3, 64, 64, dtype=torch.uint8)
        pixels = images.numpy()

        def decode(row: int, path: str) -> None:
            try:
                with Image.open(io.BytesIO(read(path))) as image:
                    # Some are greyscale.
                    pixels[row] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
            except Exception as error:
                # PIL and zipfile share no error for broken input; here it is always the input.
                how = f"{path} is not a readable 64 x 64 image"
                raise _damaged(spec, root, where, how) from error

        # Decoding lets go of the interpreter's lock, so threads help.
        with ThreadPoolExecutor() as pool:
            list(pool.map(decode, range(len(places)), [paths[i] for i in places.tolist()]))
        return Images(images, labels[places])

    return Split(labels, take)


def _archive(path: Path) -> tuple[set[str], Callable[[str], bytes]]:
    """The names of the files in the zip, and how to read one."""
    opened = zipfile.ZipFile(path)
    top = f"{_TINY}/"
    names = {name.removeprefix(top) for name in opened.namelist() if name.startswith(top)}
    return names, lambda name: opened.read(top + name)


def _folder(path: Path) -> tuple[set[str], Callable[[str], bytes]]:
    """The names of the files in the extracted folder, and how to read one."""
    names = {
        Path(parent, file).relative_to(path).as_posix()
        for parent, _, files in os.walk(path)
        for file in files
    }
    return names, lambda name: (path / name).read_bytes()


def _tiny_listing(
    spec: DatasetSpec, split: str, names: set[str], read: Callable[[str], bytes]
) -> tuple[list[str], Tensor]:
    """The images of a split and their labels; whatever is not there is a ValueError."""

    def lines(name: str) -> list[str]:
        if name not in names:
            raise ValueError(f"no {name} in it")
        return read(name).decode().splitlines()

    if split == "train":
        images = [name for name in names if fnmatch(name, "train/*/images/*.JPEG")]
        found = {name: name.split("/")[1] for name in images}
    else:
        # The published test split has no labels, so "val" is what is scored.
        rows = [line.partition("\t") for line in lines("val/val_annotations.txt")]
        listed = {f"val/images/{file}": rest.split("\t")[0] for file, _, rest in rows}
        found = {name: wnid for name, wnid in listed.items() if name in names}
    wnids = sorted(lines("wnids.txt"))
    counts = Counter(found.values())
    for wnid in wnids:
        if counts[wnid] != _TINY_PER_CLASS[split]:
            expected = f"{counts[wnid]} of {_TINY_PER_CLASS[split]} {split} images"
            raise ValueError(f"it holds {expected} of class {wnid}")
    if len(wnids) != spec.num_classes or len(counts) != spec.num_classes:
        raise ValueError(f"wnids.txt names {len(wnids)} of {spec.num_classes} classes")
    paths = sorted(found)
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    return paths, torch.tensor([label_of[found[path]] for path in paths])


def _download_tiny_imagenet(spec: DatasetSpec, root: Path) -> None:
    from torchvision.datasets.utils import check_integrity, download_url

    archive = root / f"{_TINY}.zip"
    if not check_integrity(archive, _TINY_MD5):
        # Under another name until it is whole, so that an interrupted one is never read.
        part = archive.with_suffix(".zip.part")
        download_url(_TINY_URL, root, part.name, _TINY_MD5)
        part.replace(archive)


# ---------------------------------------------------------------- ImageNet


def _open_imagenet(spec: DatasetSpec, root: Path, split: str) -> Split:
    from ascl.decoded import open_decoded, pixels_of  # not above: it raises our DataError

    folder = _imagenet_folder(root, split)
    again = f"`ascl-sweep fetch imagenet --root {shlex.quote(str(root))} --decode`"
    names, decoded = open_decoded(pixels_of(folder), f"mend it with {again}") or ([], None)
    if decoded is None or folder.is_dir():
        there = _imagenet_names(spec, root, folder)
        if decoded is not None and names != there:
            raise DataError(
                f"{decoded.folder} was decoded from other files than are in {folder} "
                f"({len(names)} and {len(there)} of them); renew it with {again}, or delete it"
            )
        names = there
    counts = Counter(name.partition("/")[0] for name in names)  # in order: the names are sorted
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(list(counts.values())))

    def take(places: Tensor) -> ImageFiles:
        paths = tuple(os.path.join(folder, names[i]) for i in places.tolist())
        kept = None if decoded is None else decoded[places.numpy()]
        return ImageFiles(paths, labels[places], kept)

    return Split(labels, take)


def _imagenet_folder(root: Path, split: str) -> Path:
    return root / "imagenet" / ("train" if split == "train" else "val")


def _imagenet_names(spec: DatasetSpec, root: Path, folder: Path) -> list[str]:
    """The images in a folder, as <wnid>/<file>, sorted."""
    if not folder.is_dir():
        raise DataError(f"imagenet is not in {root}: no {folder}; {_imagenet_advice(root)}")
    wnids = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if len(wnids) != spec.num_classes:
        raise DataError(
            f"{folder} is incomplete (it holds {len(wnids)} of {spec.num_classes} class folders); "
            f"{_imagenet_advice(root)}"
        )
    names: list[str] = []
    for wnid in wnids:
        files = sorted(file for file in os.listdir(folder / wnid) if file.endswith(".JPEG"))
        if not files:
            raise DataError(
                f"{folder / wnid} is incomplete (it holds no .JPEG file); {_imagenet_advice(root)}"
            )
        names += [f"{wnid}/{file}" for file in files]
    return names


def _decode_imagenet(spec: DatasetSpec, root: Path, on_progress: "OnDecoded") -> None:
    from ascl.decoded import decode_folders

    folders = [_imagenet_folder(root, split) for split in ("train", "test")]
    decode_folders({f: _imagenet_names(spec, root, f) for f in folders}, on_progress)


def _imagenet_advice(root: Path) -> str:
    folder = root / "imagenet"
    return (
        "its licence does not let us download it: register at https://image-net.org and unpack "
        f"ILSVRC2012 to {folder / 'train'}/<wnid>/ and {folder / 'val'}/<wnid>/"
    )


def _download_imagenet(spec: DatasetSpec, root: Path) -> None:
    raise DataError(f"imagenet cannot be fetched; {_imagenet_advice(root)}")


# ---------------------------------------------------------------- the datasets

# Means and deviations are those of the training pixels, scaled to [0, 1]; ImageNet's are the
# customary ones, so that published weights fit.
# fmt: off
_SPECS = (
    DatasetSpec("shapes", 10, 32, 32, (0.4216, 0.4220, 0.4227), (0.2890, 0.2740, 0.2146),
                _open_shapes, _download_nothing),
    DatasetSpec("cifar10", 10, 32, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
                _open_cifar, _download_cifar),
    DatasetSpec("cifar100", 100, 32, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
                _open_cifar, _download_cifar),
    DatasetSpec("stl10", 10, 96, 64, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713),
                _open_stl10, _download_stl10),
    DatasetSpec("tiny_imagenet", 200, 64, 64, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821),
                _open_tiny_imagenet, _download_tiny_imagenet),
    DatasetSpec("imagenet", 1000, None, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
                _open_imagenet, _download_imagenet, streams=True, decode=_decode_imagenet),
)
# fmt: on

DATASETS: Mapping[str, DatasetSpec] = {spec.name: spec for spec in _SPECS}


def dataset_spec(name: str) -> DatasetSpec:
    """Find a dataset by name."""
    if name not in DATASETS:
        raise ValueError(unknown_name("dataset", name, DATASETS))
    return DATASETS[name]
