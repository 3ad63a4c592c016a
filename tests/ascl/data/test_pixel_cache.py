"""Laws of the pixel cache: equal to the files, complete or reported as damaged, and sufficient."""

import multiprocessing
import os
import shutil
import signal
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import functional as TF

from ascl.augment.views import ViewSpec, small_view
from ascl.data import base as datasets
from ascl.data import pixel_cache as decoded
from ascl.data.base import DATASETS, ImageFiles
from ascl.data.loader import Pixels, plain_batches, training_batches
from ascl.data.subset import decode, load_data
from ascl.errors import DataError

MODES = ("RGB", "L", "CMYK")
Usage = namedtuple("Usage", ["total", "used", "free"])


def small_imagenet(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ImageNet of three classes, 9 training images in three shards and 3 scored images in one.

    No two images have the same size; one class is grayscale and one CMYK.
    """
    monkeypatch.setitem(
        datasets.DATASETS,  # type: ignore[arg-type]
        "imagenet",
        replace(DATASETS["imagenet"], num_classes=3),
    )
    monkeypatch.setattr(decoded, "PER_SHARD", 4)
    rng = np.random.default_rng(0)
    for split, count in {"train": 3, "val": 1}.items():
        for c, mode in enumerate(MODES):
            folder = root / "imagenet" / split / f"n{c:08}"
            folder.mkdir(parents=True)
            for i in range(count):
                noise = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
                picture = noise.resize((70 + 9 * c - i, 40 + 11 * i + c)).convert(mode)
                picture.save(folder / f"{i}.JPEG")
    return root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return small_imagenet(tmp_path, monkeypatch)


def ignore_progress(done: int, total: int) -> None:
    """Accept progress reports and do nothing."""


def error_message(function: Callable[[], object], error: type[Exception] = DataError) -> str:
    with pytest.raises(error) as caught:
        function()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of every cached file."""
    kept = sorted((root / "imagenet").glob("*.pixels/*"))
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in kept}


def everything_seen(root: Path) -> list[torch.Tensor]:
    """All that a run sees of an ImageNet: its training views, and the images it is scored on."""
    data = load_data("imagenet", root)
    pixels = Pixels(torch.device("cpu"), 32, torch.zeros(3), torch.ones(3))
    kinds = [ViewSpec("strong", 32), ViewSpec("stronger", 32), small_view(ViewSpec("weak", 32))]
    generators = [torch.Generator().manual_seed(i) for i in range(3)]
    steps = [torch.tensor([5, 0, 7, 2]), torch.tensor([1, 8, 6, 3])]
    batches = training_batches(data.train, steps, kinds, generators, pixels, repeat(None))
    seen = [x for batch in batches for x in (*batch.views, batch.labels)]
    return seen + list(plain_batches(data.test, pixels))


def test_cached_pixels_give_bit_equal_views_without_the_files(root: Path) -> None:
    from_files = everything_seen(root)
    decode("imagenet", root, ignore_progress)
    kept = load_data("imagenet", root, train_size=6)
    assert isinstance(kept.train, ImageFiles) and kept.train.decoded is not None
    shutil.rmtree(root / "imagenet" / "train")
    shutil.rmtree(root / "imagenet" / "val")
    alone = everything_seen(root)
    assert len(from_files) == len(alone) == 9
    assert all(a.equal(b) for a, b in zip(from_files, alone, strict=True))


@given(data=st.data(), size=st.integers(1, 40))
def test_crop_of_cached_pixels_is_torchvisions_of_the_decoded_file(
    data: st.DataObject, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    height, width = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    h, w = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    path = tmp_path_factory.getbasetemp() / "crops.bin"
    path.write_bytes(b"before" + pixels.tobytes() + b"after")
    picture = decoded.RawPicture(str(path), len(b"before"), height, width)
    ours = picture.crop((left, top, left + w, top + h)).resize((size, size), Image.BILINEAR)
    theirs = TF.resized_crop(Image.fromarray(pixels), top, left, h, w, [size, size])
    assert ours.tobytes() == theirs.tobytes()


def test_progress_counts_every_image_and_repeated_decoding_writes_nothing(root: Path) -> None:
    reported: list[tuple[int, int]] = []
    decode("imagenet", root, lambda *progress: reported.append(progress))
    assert reported == [(done, 12) for done in range(13)]
    kept = snapshot(root)
    assert len(kept) == 8, "a shard and its index, three of train and one of val"
    reported.clear()
    decode("imagenet", root, lambda *progress: reported.append(progress))
    assert reported == [(12, 12)] and snapshot(root) == kept


def test_killed_decoding_is_not_read_and_resumes_with_the_next_shard(root: Path) -> None:
    def killed(done: int, total: int) -> None:
        if done == 7:  # in the second shard of four pictures
            os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(
        target=decode, args=("imagenet", root, killed)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    left = snapshot(root)
    assert [Path(path).name for path in left] == ["00000.bin", "00000.npz", "00001.part"]
    assert load_data("imagenet", root).train.decoded is None  # type: ignore[union-attr]
    reported: list[int] = []
    decode("imagenet", root, lambda done, total: reported.append(done))
    assert reported == list(range(4, 13)), "the first shard was kept"
    now = snapshot(root)
    assert {path: now.get(path) for path in list(left)[:2]} == dict(list(left.items())[:2])
    assert not any(path.endswith(".part") for path in now)
    assert load_data("imagenet", root).train.decoded is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", [0, 1000, -1])
def test_truncated_shard_is_reported_and_rebuilt(root: Path, kept: int) -> None:
    decode("imagenet", root, ignore_progress)
    whole = snapshot(root)
    shard = root / "imagenet" / "train.pixels" / "00001.bin"
    data = load_data("imagenet", root)
    shard.write_bytes(shard.read_bytes()[:kept])
    said = error_message(lambda: load_data("imagenet", root))
    assert f"{shard} is damaged (it holds " in said
    assert f"repair it with `ascl-sweep fetch imagenet --root {root} --decode`" in said
    # Cut while a run reads it.
    pixels = Pixels(torch.device("cpu"), 32, torch.zeros(3), torch.ones(3))
    said = error_message(lambda: list(plain_batches(data.train, pixels)))
    assert said.startswith(f"{shard} is damaged (it ends within an image); repair it with ")
    decode("imagenet", root, ignore_progress)
    assert {p: b for p, (b, _) in snapshot(root).items()} == {p: b for p, (b, _) in whole.items()}


@pytest.mark.parametrize("content", [b"", b"no index", b"PK\x03\x04 cut"])
def test_damaged_index_or_missing_shard_is_reported(root: Path, content: bytes) -> None:
    decode("imagenet", root, ignore_progress)
    folder = root / "imagenet" / "val.pixels"
    (folder / "00000.npz").write_bytes(content)
    assert f"{folder / '00000.bin'} is damaged (" in error_message(
        lambda: load_data("imagenet", root)
    )
    (root / "imagenet" / "train.pixels" / "00002.bin").unlink()
    assert "train.pixels/00002.bin is damaged (" in error_message(
        lambda: load_data("imagenet", root)
    )


def test_outdated_pixel_cache_is_reported_and_rebuilt(root: Path) -> None:
    decode("imagenet", root, ignore_progress)
    folder = root / "imagenet" / "train"
    (folder / "n00000001" / "0.JPEG").rename(folder / "n00000001" / "5.JPEG")
    said = error_message(lambda: load_data("imagenet", root))
    assert (
        f"{folder}.pixels was decoded from files that differ from those in {folder} (9 and 9 files)"
    ) in said
    assert (
        f"update it with `ascl-sweep fetch imagenet --root {root} --decode`, or delete it" in said
    )
    for c in range(3):
        (folder / f"n{c:08}" / "2.JPEG").unlink()
    assert "(9 and 6 files)" in error_message(lambda: load_data("imagenet", root))
    decode("imagenet", root, ignore_progress)
    assert len(load_data("imagenet", root).train) == 6
    assert not (folder.with_name("train.pixels") / "00002.bin").exists(), "no longer of use"


def test_too_little_disk_space_is_reported_before_writing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 100_000))
    said = error_message(lambda: decode("imagenet", root, ignore_progress), OSError)
    assert "12 decoded images need about 0.0 GB, but only 0.0 GB are free in" in said
    assert "free disk space, or omit --decode and train from the image files" in said
    assert snapshot(root) == {}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 200_000))
    decode("imagenet", root, ignore_progress)


def test_undecodable_file_is_named_and_decoding_resumes_after_its_repair(
    root: Path,
) -> None:
    path = root / "imagenet" / "train" / "n00000002" / "1.JPEG"
    whole = path.read_bytes()
    for broken in (b"no picture", whole[: len(whole) // 2]):
        path.write_bytes(broken)
        said = error_message(lambda: decode("imagenet", root, ignore_progress))
        assert said.startswith(f"{path} cannot be decoded: ")
    path.write_bytes(whole)
    decode("imagenet", root, ignore_progress)
    assert load_data("imagenet", root).train.decoded is not None  # type: ignore[union-attr]


def test_decoding_a_dataset_held_in_memory_is_refused(tmp_path: Path) -> None:
    said = error_message(lambda: decode("cifar10", tmp_path, ignore_progress))
    assert said == "cifar10 is held in memory and need not be decoded; omit --decode"
    assert "imagenet is not in" in error_message(
        lambda: decode("imagenet", tmp_path, ignore_progress)
    )
