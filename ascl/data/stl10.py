"""STL-10: 96 × 96 images, 5,000 labeled and 100,000 unlabeled for training, 8,000 for testing.

Coates, Ng and Lee, An Analysis of Single-Layer Networks in Unsupervised Feature Learning, 2011.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ascl.data.base import DatasetSpec, Images, Split, check_files

LABELS = {"stl10": "STL-10"}


def _open(spec: DatasetSpec, root: Path, split: str) -> Split:
    from torchvision.datasets import STL10

    # Do not use torchvision's loader (0.27): it checks all 3 GB for each split and holds three
    # copies of the unlabeled part, while a memory-mapped file needs no extra copy.
    files = STL10.train_list if split == "train" else STL10.test_list
    check_files(spec, root, STL10.base_folder, files)
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


def _download(spec: DatasetSpec, root: Path) -> None:
    from torchvision.datasets import STL10

    STL10(root, split="test", download=True)


# Mean and standard deviation of the training pixels, scaled to [0, 1].
SPECS = (
    DatasetSpec(
        name="stl10",
        num_classes=10,
        image_size=96,
        view_size=64,
        mean=(0.4467, 0.4398, 0.4066),
        std=(0.2603, 0.2566, 0.2713),
        open=_open,
        download=_download,
        code_max_pool=True,
    ),
)
