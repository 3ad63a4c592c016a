"""Laws of Tiny ImageNet: a folder or its archive, and missing parts are named."""

import io
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from ascl.data import tiny_imagenet
from ascl.data.base import Images
from ascl.data.subset import fetch, load_data
from ascl.errors import DataError
from tests.ascl.data.files import error_message, md5, serve

TINY = tiny_imagenet.FOLDER


def jpeg(level: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (64, 64), level if mode == "L" else (level,) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a Tiny ImageNet of 200 classes, two training images and one val image each.

    The images of class c are of grey level c, and the first of each class is stored greyscale.
    """
    monkeypatch.setattr(tiny_imagenet, "PER_CLASS", {"train": 2, "test": 1})
    folder = tmp_path / TINY
    (folder / "val" / "images").mkdir(parents=True)
    wnids = [f"n{c:08}" for c in range(200)]
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(wnids)))
    for c, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
        (images / f"{wnid}_0.JPEG").write_bytes(jpeg(c, "L"))
        (images / f"{wnid}_1.JPEG").write_bytes(jpeg(c))
        (folder / "val" / "images" / f"val_{c}.JPEG").write_bytes(jpeg(c))
    rows = [f"val_{c}.JPEG\t{wnid}\t0\t0\t63\t63\n" for c, wnid in enumerate(wnids)]
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    return tmp_path


def zip_tiny(root: Path) -> Path:
    """Replace the folder with the archive it would have come from."""
    with zipfile.ZipFile(root / f"{TINY}.zip", "w") as archive:
        for path in sorted((root / TINY).rglob("*")):
            archive.write(path, path.relative_to(root))
    shutil.rmtree(root / TINY)
    return root / f"{TINY}.zip"


@pytest.mark.parametrize("zipped", [False, True])
def test_tiny_imagenet_is_read_from_folder_or_archive(tiny: Path, zipped: bool) -> None:
    if zipped:
        zip_tiny(tiny)
    read = load_data("tiny_imagenet", tiny)
    assert isinstance(read.train, Images) and isinstance(read.test, Images)
    assert read.train.images.shape == (400, 3, 64, 64)
    assert read.test.images.shape == (200, 3, 64, 64)
    # The grey level is the class, by sorted wnid; greyscale files are spread over the channels.
    for part in (read.train, read.test):
        assert part.images[:, :, 5, 5].equal(part.labels[:, None].expand(-1, 3).to(torch.uint8))


def test_missing_tiny_imagenet_is_reported_with_the_download_command(tmp_path: Path) -> None:
    said = error_message("tiny_imagenet", tmp_path)
    assert (
        f"tiny_imagenet is not in {tmp_path}: {tmp_path}/{TINY}.zip does not exist; "
        "download it with `ascl-sweep fetch tiny_imagenet"
    ) in said


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("wnids.txt", "it has no wnids.txt"),
        ("val/val_annotations.txt", "it has no val/val_annotations.txt"),
        ("train/n00000007", "it holds 0 of 2 train images of class n00000007"),
        (
            "train/n00000007/images/n00000007_1.JPEG",
            "it holds 1 of 2 train images of class n00000007",
        ),
        ("val/images/val_5.JPEG", "it holds 0 of 1 test images of class n00000005"),
    ],
)
def test_incomplete_tiny_imagenet_is_reported(tiny: Path, lost: str, said: str) -> None:
    path = tiny / TINY / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert f"{tiny / TINY} is damaged ({said}); delete it" in error_message("tiny_imagenet", tiny)


@pytest.mark.parametrize("file", ["wnids.txt", "val/val_annotations.txt"])
def test_truncated_listing_of_tiny_imagenet_is_reported(tiny: Path, file: str) -> None:
    path = tiny / TINY / file
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    assert f"{tiny / TINY} is damaged" in error_message("tiny_imagenet", tiny)


def test_a_broken_image_of_tiny_imagenet_is_named(tiny: Path) -> None:
    name = "train/n00000003/images/n00000003_0.JPEG"
    whole = (tiny / TINY / name).read_bytes()
    for broken in (b"", b"no image", whole[: len(whole) // 2]):
        (tiny / TINY / name).write_bytes(broken)
        assert f"{name} is not a readable 64 x 64 image" in error_message("tiny_imagenet", tiny)


def test_truncated_archive_of_tiny_imagenet_is_reported(tiny: Path) -> None:
    archive = zip_tiny(tiny)
    archive.write_bytes(archive.read_bytes()[:-1000])
    assert f"{archive} is damaged (" in error_message("tiny_imagenet", tiny)


def test_flipped_bit_in_the_archive_of_tiny_imagenet_is_reported(tiny: Path) -> None:
    archive = zip_tiny(tiny)
    content = bytearray(archive.read_bytes())
    content[content.index(jpeg(9)) + 300] ^= 1
    archive.write_bytes(content)
    assert "n00000009_1.JPEG is not a readable" in error_message("tiny_imagenet", tiny)


def test_a_fetched_tiny_imagenet_can_be_read(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    archive = zip_tiny(tiny).rename(folder / f"{TINY}.zip")
    monkeypatch.setattr(tiny_imagenet, "MD5", md5(archive))
    with serve(folder) as address:
        monkeypatch.setattr(tiny_imagenet, "URL", f"{address}/{TINY}.zip")
        fetch("tiny_imagenet", tmp_path / "new")
    assert len(load_data("tiny_imagenet", tmp_path / "new", train_size=200).train) == 200


def test_download_with_a_wrong_checksum_is_reported_and_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / f"{TINY}.zip").write_bytes(b"not what was published")
    with serve(folder) as address:
        monkeypatch.setattr(tiny_imagenet, "URL", f"{address}/{TINY}.zip")
        with pytest.raises(DataError, match=r"could not be downloaded to .* \(File not found or"):
            fetch("tiny_imagenet", tmp_path)
    assert "tiny_imagenet is not in" in error_message("tiny_imagenet", tmp_path)
