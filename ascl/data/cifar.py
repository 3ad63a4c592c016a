"""CIFAR-10 and CIFAR-100: 32 × 32 images, 50,000 for training and 10,000 for testing.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ascl.data.base import DatasetSpec, Images, Split, check_files, damaged_data

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

LABELS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
# Of files whose md5 is the published one. An md5 alone does not exclude a forged file.
SHA256 = {
    "cifar10": {
        "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
        "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
        "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
        "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
        "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
        "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
        "batches.meta": "f962466ef690d46b226450fb9aadc74ba4bc64a76aa526b5827fe4bc5c7125cb",
    }
}


def _torchvision_class(spec: DatasetSpec) -> "type[CIFAR10]":
    from torchvision import datasets

    source: type[CIFAR10] = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[spec.name]
    return source


def _open(spec: DatasetSpec, root: Path, split: str) -> Split:
    source = _torchvision_class(spec)
    # CIFAR is distributed as pickles, and unpickling runs code. This is acceptable here because
    # torchvision checks the published md5 of every file before it opens any.
    _check_sha256(spec, root / source.base_folder, root, split)
    try:
        dataset = source(root, train=split == "train")
    except RuntimeError as error:
        meta = (source.meta["filename"], source.meta["md5"])
        files = [*source.train_list, *source.test_list, meta]
        check_files(spec, root, source.base_folder, files)
        raise damaged_data(spec, root, root / source.base_folder, str(error)) from error
    # This undoes torchvision's transpose, so the array is as stored and nothing is copied.
    images = torch.from_numpy(dataset.data.transpose(0, 3, 1, 2))
    labels = torch.tensor(dataset.targets)
    return Split(labels, lambda places: Images(_pick(images, places), labels[places]))


def _check_sha256(spec: DatasetSpec, folder: Path, root: Path, split: str) -> None:
    """Raise `DataError` for a file of the split that differs from the published one."""
    for name, expected in SHA256.get(spec.name, {}).items():
        if name.startswith("data" if split == "train" else "test") or name == "batches.meta":
            with suppress(FileNotFoundError), (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    how = "its checksum differs from the published one"
                    raise damaged_data(spec, root, folder / name, how)


def _pick(images: Tensor, places: Tensor) -> Tensor:
    # No copy if all images are selected (places are sorted).
    return images if len(places) == len(images) else images[places]


def _download(spec: DatasetSpec, root: Path) -> None:
    _torchvision_class(spec)(root, train=False, download=True)


# Mean and standard deviation of the training pixels, scaled to [0, 1].
SPECS = (
    DatasetSpec(
        name="cifar10",
        num_classes=10,
        image_size=32,
        view_size=32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        open=_open,
        download=_download,
    ),
    DatasetSpec(
        name="cifar100",
        num_classes=100,
        image_size=32,
        view_size=32,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        open=_open,
        download=_download,
    ),
)
