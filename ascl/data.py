"""The datasets: what each is, how it is read from disk, and which of its images a run sees.

Reading is by split: its labels first, then only the images that were chosen, so that a small subset
of a large dataset costs little. What is missing or damaged becomes one sentence, a `DataError`.
"""

# Shapes: N = images, H and W = their size as stored.

import contextlib
import http.client
import io
import os
import shlex
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100, STL10
from torchvision.datasets.utils import check_integrity, download_url

from ascl import shapes


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

    def __len__(self) -> int:
        return len(self.labels)


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


@dataclass(frozen=True, eq=False)
class Data:
    """The images of one run."""

    spec: DatasetSpec
    train: Images | ImageFiles
    """What a method trains on."""
    reference: Images | ImageFiles
    """Its labelled part: the kNN bank and the probe's training set."""
    test: Images | ImageFiles
    """What is scored."""
    scored: str
    """Which images those are: "test", or "holdout" when part of train was kept back."""


def dataset_spec(name: str) -> DatasetSpec:
    """Find a dataset by name."""
    if name not in DATASETS:
        raise ValueError(f"no dataset named {name!r}; there are: {', '.join(DATASETS)}")
    return DATASETS[name]


def load_data(
    name: str, root: str | Path, *, train_size: int | None = None, holdout: float = 0.0
) -> Data:
    """Read the images of a run; the same ones for every seed.

    `train_size` takes a class-balanced subset of train, each contained in every larger one.
    `holdout` then keeps that share of its labelled images back, class-balanced, to be scored in
    place of the test split. So a search sees no image that the final run does not train on.
    """
    spec = dataset_spec(name)
    root = Path(root).expanduser()
    if not 0 <= holdout < 1:
        raise ValueError(f"holdout is a share of train, at least 0 and below 1, got {holdout}")
    try:
        return _read(spec, root, train_size, holdout)
    except OSError as error:
        raise DataError(
            f"{name} in {root} cannot be read ({error}); check the disk and the permissions"
        ) from error


def _read(spec: DatasetSpec, root: Path, train_size: int | None, holdout: float) -> Data:
    train = spec.open(spec, root, "train")
    chosen = _subset(train.labels, train_size, spec.name)
    kept, held = _hold_out(train.labels, chosen, holdout, spec)
    # Opened before any image is read, so that what is missing shows at once.
    test = None if len(held) else spec.open(spec, root, "test")
    images = train.take(kept)
    labelled = kept[train.labels[kept] >= 0]
    reference = images if len(labelled) == len(kept) else train.take(labelled)
    if test is None:
        return Data(spec, images, reference, train.take(held), "holdout")
    return Data(spec, images, reference, test.take(torch.arange(len(test.labels))), "test")


def fetch(name: str, root: str | Path) -> None:
    """Download a dataset unless it is there already; progress goes to stderr."""
    spec = dataset_spec(name)
    root = Path(root).expanduser()
    # What these raise: no network or disk; a broken reply; a wrong checksum; a broken archive.
    failures = OSError, http.client.HTTPException, RuntimeError, tarfile.TarError, EOFError
    try:
        # Some torchvision versions print to stdout, which is for data.
        with contextlib.redirect_stdout(sys.stderr):
            spec.download(spec, root)
    except failures as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise DataError(
            f"{name} could not be downloaded to {root} ({reason}); "
            f"check the network and the disk, then run {_fetch_command(spec, root)} again"
        ) from error


# ---------------------------------------------------------------- subsets


def _balanced_order(labels: Tensor) -> Tensor:
    """Order images so that in every prefix the classes differ by at most one, while they last."""
    # A fixed seed: subsets must not change with the run's. Shuffled: files come sorted by source.
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    turn = torch.arange(len(labels)) - starts.repeat_interleave(counts)
    return by_class[turn.argsort(stable=True)]


def _subset(labels: Tensor, size: int | None, name: str) -> Tensor:
    """Choose places, labelled ones first and class-balanced, each kind in its natural share."""
    labelled = (labels >= 0).nonzero().squeeze(1)
    unlabelled = (labels < 0).nonzero().squeeze(1)
    if size is None:
        size = len(labels)
    if not 1 <= size <= len(labels):
        raise ValueError(
            f"train_size must be between 1 and the {len(labels)} training images of {name}, "
            f"got {size}; leave it out for all of them"
        )
    num_labelled = round(size * len(labelled) / len(labels))
    if num_labelled == 0:
        raise ValueError(
            f"train_size must leave a labelled image to compare with, got {size}, while only "
            f"{len(labelled)} of the {len(labels)} images of {name} have labels; try a larger one"
        )
    from_labelled = labelled[_balanced_order(labels[labelled])[:num_labelled]]
    # One stratum for all the unlabelled, so balancing them is shuffling them.
    order = _balanced_order(torch.zeros(len(unlabelled), dtype=torch.int64))
    return torch.cat([from_labelled, unlabelled[order[: size - num_labelled]]])


def _hold_out(
    labels: Tensor, chosen: Tensor, share: float, spec: DatasetSpec
) -> tuple[Tensor, Tensor]:
    """Part the chosen places into those kept and those held out, each in the order of the files."""
    num_labelled = int((labels[chosen] >= 0).sum())
    # The labelled come first, in an order whose prefixes are balanced.
    size = round(share * num_labelled)
    held, kept = chosen[:size], chosen[size:]
    if share > 0:
        held_counts = labels[held].bincount(minlength=spec.num_classes)
        left = labels[kept]
        kept_counts = left[left >= 0].bincount(minlength=spec.num_classes)
        if held_counts.min() < 1 or kept_counts.min() < 1:
            raise ValueError(
                "holdout must take and leave at least one image of each class, "
                f"got holdout={share} of {num_labelled} labelled images in {spec.num_classes} "
                f"classes of {spec.name}; try a share nearer to a half, or a larger train_size"
            )
    return kept.sort().values, held.sort().values


# ---------------------------------------------------------------- sentences


def _fetch_command(spec: DatasetSpec, root: Path) -> str:
    return f"`ascl-sweep fetch {spec.name} --root {shlex.quote(str(root))}`"


def _missing(spec: DatasetSpec, root: Path, path: Path) -> DataError:
    return DataError(
        f"{spec.name} is not in {root}: no {path}; get it with {_fetch_command(spec, root)}"
    )


def _damaged(spec: DatasetSpec, root: Path, path: Path, how: str) -> DataError:
    return DataError(f"{path} is damaged ({how}); delete it and run {_fetch_command(spec, root)}")


def _check_files(
    spec: DatasetSpec, root: Path, folder: str, files: Sequence[Sequence[str]]
) -> None:
    """Name the first file that is missing or differs from the published one."""
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


def _open_cifar(source: type[CIFAR10], spec: DatasetSpec, root: Path, split: str) -> Split:
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


def _download_cifar(source: type[CIFAR10], spec: DatasetSpec, root: Path) -> None:
    source(root, train=False, download=True)


# ---------------------------------------------------------------- STL-10


def _open_stl10(spec: DatasetSpec, root: Path, split: str) -> Split:
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
    archive = root / f"{_TINY}.zip"
    if not check_integrity(archive, _TINY_MD5):
        # Under another name until it is whole, so that an interrupted one is never read.
        part = archive.with_suffix(".zip.part")
        download_url(_TINY_URL, root, part.name, _TINY_MD5)
        part.replace(archive)


# ---------------------------------------------------------------- ImageNet


def _open_imagenet(spec: DatasetSpec, root: Path, split: str) -> Split:
    folder = root / "imagenet" / ("train" if split == "train" else "val")
    if not folder.is_dir():
        raise DataError(f"imagenet is not in {root}: no {folder}; {_imagenet_advice(root)}")
    wnids = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if len(wnids) != spec.num_classes:
        raise DataError(
            f"{folder} is incomplete (it holds {len(wnids)} of {spec.num_classes} class folders); "
            f"{_imagenet_advice(root)}"
        )
    paths: list[str] = []
    counts = []
    for wnid in wnids:
        files = sorted(file for file in os.listdir(folder / wnid) if file.endswith(".JPEG"))
        if not files:
            raise DataError(
                f"{folder / wnid} is incomplete (it holds no .JPEG file); {_imagenet_advice(root)}"
            )
        paths += [os.path.join(folder, wnid, file) for file in files]
        counts.append(len(files))
    labels = torch.arange(len(wnids)).repeat_interleave(torch.tensor(counts))

    def take(places: Tensor) -> ImageFiles:
        return ImageFiles(tuple(paths[i] for i in places.tolist()), labels[places])

    return Split(labels, take)


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
                partial(_open_cifar, CIFAR10), partial(_download_cifar, CIFAR10)),
    DatasetSpec("cifar100", 100, 32, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
                partial(_open_cifar, CIFAR100), partial(_download_cifar, CIFAR100)),
    DatasetSpec("stl10", 10, 96, 64, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713),
                _open_stl10, _download_stl10),
    DatasetSpec("tiny_imagenet", 200, 64, 64, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821),
                _open_tiny_imagenet, _download_tiny_imagenet),
    DatasetSpec("imagenet", 1000, None, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
                _open_imagenet, _download_imagenet, streams=True),
)
# fmt: on

DATASETS: Mapping[str, DatasetSpec] = {spec.name: spec for spec in _SPECS}
