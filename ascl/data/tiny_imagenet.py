"""Tiny ImageNet: 200 classes of 64 × 64 images, 500 per class for training and 50 for testing."""

import io
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ascl.data.base import DatasetSpec, Images, Split, damaged_data, missing_data

LABELS = {"tiny_imagenet": "Tiny ImageNet"}
FOLDER = "tiny-imagenet-200"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
PER_CLASS = {"train": 500, "test": 50}
"""Published number of images of each class; fewer means that extraction was interrupted."""


def _open(spec: DatasetSpec, root: Path, split: str) -> Split:
    # Prefer the archive to the folder: `fetch` downloads it, which repairs an incomplete folder.
    folder, archive = root / FOLDER, root / f"{FOLDER}.zip"
    if not archive.is_file() and not folder.is_dir():
        raise missing_data(spec, root, archive)
    where = archive if archive.is_file() else folder
    try:
        names, read = _read_archive(archive) if archive.is_file() else _read_folder(folder)
        paths, labels = _list_split(spec, split, names, read)
    except (ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged_data(spec, root, where, str(error)) from error

    def take(places: Tensor) -> Images:
        images = torch.empty(len(places), 3, 64, 64, dtype=torch.uint8)
        pixels = images.numpy()

        def decode(row: int, path: str) -> None:
            try:
                with Image.open(io.BytesIO(read(path))) as image:
                    # Some files are grayscale.
                    pixels[row] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
            except Exception as error:
                # PIL and zipfile have no common error for damaged input.
                how = f"{path} is not a readable 64 x 64 image"
                raise damaged_data(spec, root, where, how) from error

        # Decoding releases the GIL, so threads help.
        with ThreadPoolExecutor() as pool:
            list(pool.map(decode, range(len(places)), [paths[i] for i in places.tolist()]))
        return Images(images, labels[places])

    return Split(labels, take)


def _read_archive(path: Path) -> tuple[set[str], Callable[[str], bytes]]:
    """Return the names of the files in the zip, and a function that reads one."""
    opened = zipfile.ZipFile(path)
    top = f"{FOLDER}/"
    names = {name.removeprefix(top) for name in opened.namelist() if name.startswith(top)}
    return names, lambda name: opened.read(top + name)


def _read_folder(path: Path) -> tuple[set[str], Callable[[str], bytes]]:
    """Return the names of the files in the extracted folder, and a function that reads one."""
    names = {
        Path(parent, file).relative_to(path).as_posix()
        for parent, _, files in os.walk(path)
        for file in files
    }
    return names, lambda name: (path / name).read_bytes()


def _list_split(
    spec: DatasetSpec, split: str, names: set[str], read: Callable[[str], bytes]
) -> tuple[list[str], Tensor]:
    """Return the images of a split and their labels; raise ValueError if any is missing."""

    def lines(name: str) -> list[str]:
        if name not in names:
            raise ValueError(f"it has no {name}")
        return read(name).decode().splitlines()

    if split == "train":
        images = [name for name in names if fnmatch(name, "train/*/images/*.JPEG")]
        found = {name: name.split("/")[1] for name in images}
    else:
        # The published test split has no labels, so "val" is scored instead.
        rows = [line.partition("\t") for line in lines("val/val_annotations.txt")]
        listed = {f"val/images/{file}": rest.split("\t")[0] for file, _, rest in rows}
        found = {name: wnid for name, wnid in listed.items() if name in names}
    wnids = sorted(lines("wnids.txt"))
    counts = Counter(found.values())
    for wnid in wnids:
        if counts[wnid] != PER_CLASS[split]:
            expected = f"{counts[wnid]} of {PER_CLASS[split]} {split} images"
            raise ValueError(f"it holds {expected} of class {wnid}")
    if len(wnids) != spec.num_classes or len(counts) != spec.num_classes:
        raise ValueError(f"wnids.txt names {len(wnids)} of {spec.num_classes} classes")
    paths = sorted(found)
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    return paths, torch.tensor([label_of[found[path]] for path in paths])


def _download(spec: DatasetSpec, root: Path) -> None:
    from torchvision.datasets.utils import check_integrity, download_url

    archive = root / f"{FOLDER}.zip"
    if not check_integrity(archive, MD5):
        # Under another name until it is complete, so that a partial download is never read.
        part = archive.with_suffix(".zip.part")
        download_url(URL, root, part.name, MD5)
        part.replace(archive)


# Mean and standard deviation of the training pixels, scaled to [0, 1].
SPECS = (
    DatasetSpec(
        name="tiny_imagenet",
        num_classes=200,
        image_size=64,
        view_size=64,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        open=_open,
        download=_download,
        code_max_pool=True,
    ),
)
