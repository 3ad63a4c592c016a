"""Laws of ImageNet: listed, not read, and an incomplete folder is named."""

import shutil
from pathlib import Path

import pytest

from ascl.data.base import ImageFiles
from ascl.data.subset import fetch, load_data
from ascl.errors import DataError
from tests.ascl.data.files import error_message


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """A root with an ImageNet of empty files, two for training and one for validation a class."""
    for split, count in {"train": 2, "val": 1}.items():
        for c in range(1000):
            folder = tmp_path / "imagenet" / split / f"n{c:08}"
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i}.JPEG").touch()
    return tmp_path


def test_imagenet_is_listed_not_read(imagenet: Path) -> None:
    read = load_data("imagenet", imagenet, train_size=1000)
    assert isinstance(read.train, ImageFiles) and isinstance(read.test, ImageFiles)
    assert read.train.labels.tolist() == list(range(1000)) == read.test.labels.tolist()
    for path, label in zip(read.train.paths, read.train.labels.tolist(), strict=True):
        assert Path(path).parent == imagenet / "imagenet" / "train" / f"n{label:08}"


def test_missing_imagenet_is_reported_with_setup_instructions(tmp_path: Path) -> None:
    said = error_message("imagenet", tmp_path)
    assert "register at https://image-net.org" in said
    assert f"{tmp_path}/imagenet/train/<wnid>/" in said and "val/<wnid>/" in said
    with pytest.raises(DataError, match="imagenet cannot be downloaded; its license does not"):
        fetch("imagenet", tmp_path)


def test_incomplete_imagenet_is_reported(imagenet: Path) -> None:
    val, train = imagenet / "imagenet" / "val", imagenet / "imagenet" / "train"
    (train / "n00000004" / "0.JPEG").unlink()
    (train / "n00000004" / "1.JPEG").unlink()
    assert f"{train}/n00000004 is incomplete (it holds no .JPEG" in error_message(
        "imagenet", imagenet
    )
    (train / "n00000004").rmdir()
    said = error_message("imagenet", imagenet)
    assert f"{train} is incomplete (it holds 999 of 1000 class folders)" in said
    (train / "n00000004").mkdir()
    (train / "n00000004" / "0.JPEG").touch()
    shutil.rmtree(val)
    assert f"imagenet is not in {imagenet}: {val} does not exist; its license" in error_message(
        "imagenet", imagenet
    )
