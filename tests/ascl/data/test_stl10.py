"""Laws of STL-10: read as torchvision reads it, labeled and unlabeled images apart."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import STL10

from ascl.data.base import Images
from ascl.data.subset import load_data
from tests.ascl.data.files import error_message, md5


@pytest.fixture
def stl10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with an STL-10 of 40 labeled, 60 unlabeled and 10 test images."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, count in {"train": 40, "unlabeled": 60, "test": 10}.items():
        rng.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8).tofile(folder / f"{part}_X.bin")
        if part != "unlabeled":
            (np.arange(count) % 10 + 1).astype(np.uint8).tofile(folder / f"{part}_y.bin")
    for files in ("train_list", "test_list"):
        sums = [[name, md5(folder / name)] for name, _ in getattr(STL10, files)]
        monkeypatch.setattr(STL10, files, sums)
    return tmp_path


def test_stl10_is_read_as_torchvision_reads_it(stl10: Path) -> None:
    read = load_data("stl10", stl10)
    parts = ((read.train, "train+unlabeled"), (read.reference, "train"), (read.test, "test"))
    for ours, split in parts:
        theirs = STL10(stl10, split=split)
        assert isinstance(ours, Images) and ours.images.is_contiguous()
        assert ours.images.equal(torch.from_numpy(theirs.data.copy()))
        assert ours.labels.tolist() == theirs.labels.tolist()


def test_subset_of_stl10_keeps_the_fraction_of_unlabeled_images(stl10: Path) -> None:
    part = load_data("stl10", stl10, train_size=50)
    assert (part.train.labels == -1).sum() == 30
    assert part.reference.labels.bincount().tolist() == [2] * 10


def test_holdout_of_stl10_has_only_labeled_images(stl10: Path) -> None:
    part = load_data("stl10", stl10, holdout=0.5)
    assert part.test.labels.bincount().tolist() == [2] * 10
    assert (len(part.train), len(part.reference)) == (80, 20)


def test_subset_without_a_labeled_image_is_refused(stl10: Path) -> None:
    with pytest.raises(ValueError, match="only 40 of the 100 images of stl10 have labels"):
        load_data("stl10", stl10, train_size=1)


def test_a_damaged_stl10_file_is_named(stl10: Path) -> None:
    path = stl10 / "stl10_binary" / "unlabeled_X.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path} is damaged" in error_message("stl10", stl10)
    path.unlink()
    assert f"stl10 is not in {stl10}: {path} does not exist; download it with" in error_message(
        "stl10", stl10
    )
