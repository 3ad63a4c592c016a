"""ImageNet-1k (ILSVRC 2012): 1.28 million images of any size, in one folder for each class.

Images stay on disk. If `fetch --decode` has cached their pixels, the cache is read instead.
"""

import os
import shlex
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from ascl.data.base import DatasetSpec, ImageFiles, Split
from ascl.data.pixel_cache import OnDecoded, cache_folder, decode_folders, open_decoded
from ascl.errors import DataError

LABELS = {"imagenet": "ImageNet-1k"}


def _open(spec: DatasetSpec, root: Path, split: str) -> Split:
    folder = _split_folder(root, split)
    again = f"`ascl-sweep fetch imagenet --root {shlex.quote(str(root))} --decode`"
    names, decoded = open_decoded(cache_folder(folder), f"repair it with {again}") or ([], None)
    if decoded is None or folder.is_dir():
        present = _list_names(spec, root, folder)
        if decoded is not None and names != present:
            raise DataError(
                f"{decoded.folder} was decoded from files that differ from those in {folder} "
                f"({len(names)} and {len(present)} files); update it with {again}, or delete it"
            )
        names = present
    counts = Counter(name.partition("/")[0] for name in names)  # in order: the names are sorted
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(list(counts.values())))

    def take(places: Tensor) -> ImageFiles:
        paths = tuple(os.path.join(folder, names[i]) for i in places.tolist())
        kept = None if decoded is None else decoded[places.numpy()]
        return ImageFiles(paths, labels[places], kept)

    return Split(labels, take)


def _split_folder(root: Path, split: str) -> Path:
    return root / "imagenet" / ("train" if split == "train" else "val")


def _list_names(spec: DatasetSpec, root: Path, folder: Path) -> list[str]:
    """Return the images in a folder as <wnid>/<file>, sorted."""
    if not folder.is_dir():
        raise DataError(
            f"imagenet is not in {root}: {folder} does not exist; {_explain_setup(root)}"
        )
    wnids = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if len(wnids) != spec.num_classes:
        raise DataError(
            f"{folder} is incomplete (it holds {len(wnids)} of {spec.num_classes} class folders); "
            f"{_explain_setup(root)}"
        )
    names: list[str] = []
    for wnid in wnids:
        files = sorted(file for file in os.listdir(folder / wnid) if file.endswith(".JPEG"))
        if not files:
            raise DataError(
                f"{folder / wnid} is incomplete (it holds no .JPEG file); {_explain_setup(root)}"
            )
        names += [f"{wnid}/{file}" for file in files]
    return names


def _decode(spec: DatasetSpec, root: Path, on_progress: OnDecoded) -> None:
    folders = [_split_folder(root, split) for split in ("train", "test")]
    decode_folders({f: _list_names(spec, root, f) for f in folders}, on_progress)


def _explain_setup(root: Path) -> str:
    folder = root / "imagenet"
    return (
        "its license does not allow automatic download: register at https://image-net.org and "
        f"unpack ILSVRC2012 to {folder / 'train'}/<wnid>/ and {folder / 'val'}/<wnid>/"
    )


def _download(spec: DatasetSpec, root: Path) -> None:
    raise DataError(f"imagenet cannot be downloaded; {_explain_setup(root)}")


# The usual mean and standard deviation, so that published weights can be used.
SPECS = (
    DatasetSpec(
        name="imagenet",
        num_classes=1000,
        image_size=None,
        view_size=224,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        open=_open,
        download=_download,
        code_max_pool=True,
        streams=True,
        decode=_decode,
    ),
)
