"""Laws of pixels kept on disk: they are those of the files, whole or told of, and enough."""

import multiprocessing
import os
import shutil
import signal
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import functional as TF

from ascl import datasets, decoded
from ascl.batches import Pixels, plain_batches, training_batches
from ascl.data import decode, load_data
from ascl.datasets import DATASETS, DataError, ImageFiles
from ascl.views import ViewSpec, small_view

MODES = ("RGB", "L", "CMYK")
Usage = namedtuple("Usage", ["total", "used", "free"])


def small_imagenet(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ImageNet of three classes, 9 pictures to train in three shards and 3 to score in one.

    No two pictures have the same size; one class is greyscale and one CMYK.
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


def unheard(done: int, total: int) -> None:
    """For who does not want to know."""


def sentence(function: Callable[[], object], error: type[Exception] = DataError) -> str:
    with pytest.raises(error) as caught:
        function()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """What has been kept, and when it was written."""
    kept = sorted((root / "imagenet").glob("*.pixels/*"))
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in kept}


def everything_seen(root: Path) -> list[torch.Tensor]:
    """All that a run sees of an ImageNet: its training views, and the pictures it is scored on."""
    data = load_data("imagenet", root)
    pixels = Pixels(torch.device("cpu"), 32, torch.zeros(3), torch.ones(3))
    kinds = [ViewSpec("strong", 32), ViewSpec("stronger", 32), small_view(ViewSpec("weak", 32))]
    generators = [torch.Generator().manual_seed(i) for i in range(3)]
    steps = [torch.tensor([5, 0, 7, 2]), torch.tensor([1, 8, 6, 3])]
    batches = training_batches(data.train, steps, kinds, generators, pixels)
    return [x for views, y in batches for x in (*views, y)] + list(plain_batches(data.test, pixels))


def test_kept_pixels_give_the_same_views_bit_for_bit_and_alone(root: Path) -> None:
    from_files = everything_seen(root)
    decode("imagenet", root, unheard)
    kept = load_data("imagenet", root, train_size=6)
    assert isinstance(kept.train, ImageFiles) and kept.train.decoded is not None
    shutil.rmtree(root / "imagenet" / "train")
    shutil.rmtree(root / "imagenet" / "val")
    alone = everything_seen(root)
    assert len(from_files) == len(alone) == 9
    assert all(a.equal(b) for a, b in zip(from_files, alone, strict=True))


@given(data=st.data(), size=st.integers(1, 40))
def test_a_crop_of_kept_pixels_is_torchvisions_of_the_decoded_file(
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


def test_progress_counts_every_picture_and_decoding_again_writes_nothing(root: Path) -> None:
    told: list[tuple[int, int]] = []
    decode("imagenet", root, lambda *progress: told.append(progress))
    assert told == [(done, 12) for done in range(13)]
    kept = snapshot(root)
    assert len(kept) == 8, "a shard and its index, three of train and one of val"
    told.clear()
    decode("imagenet", root, lambda *progress: told.append(progress))
    assert told == [(12, 12)] and snapshot(root) == kept


def test_a_killed_decoding_is_not_read_and_goes_on_with_the_next_shard(root: Path) -> None:
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
    told: list[int] = []
    decode("imagenet", root, lambda done, total: told.append(done))
    assert told == list(range(4, 13)), "the first shard was kept"
    now = snapshot(root)
    assert {path: now.get(path) for path in list(left)[:2]} == dict(list(left.items())[:2])
    assert not any(path.endswith(".part") for path in now)
    assert load_data("imagenet", root).train.decoded is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", [0, 1000, -1])
def test_a_cut_shard_is_told_and_mended(root: Path, kept: int) -> None:
    decode("imagenet", root, unheard)
    whole = snapshot(root)
    shard = root / "imagenet" / "train.pixels" / "00001.bin"
    data = load_data("imagenet", root)
    shard.write_bytes(shard.read_bytes()[:kept])
    said = sentence(lambda: load_data("imagenet", root))
    assert f"{shard} is damaged (it holds " in said
    assert f"mend it with `ascl-sweep fetch imagenet --root {root} --decode`" in said
    # Cut while a run reads it.
    pixels = Pixels(torch.device("cpu"), 32, torch.zeros(3), torch.ones(3))
    said = sentence(lambda: list(plain_batches(data.train, pixels)))
    assert said.startswith(f"{shard} is damaged (it ends within a picture)")
    decode("imagenet", root, unheard)
    assert {p: b for p, (b, _) in snapshot(root).items()} == {p: b for p, (b, _) in whole.items()}


@pytest.mark.parametrize("content", [b"", b"no index", b"PK\x03\x04 cut"])
def test_a_damaged_index_or_a_lost_shard_is_told(root: Path, content: bytes) -> None:
    decode("imagenet", root, unheard)
    folder = root / "imagenet" / "val.pixels"
    (folder / "00000.npz").write_bytes(content)
    assert f"{folder / '00000.bin'} is damaged (" in sentence(lambda: load_data("imagenet", root))
    (root / "imagenet" / "train.pixels" / "00002.bin").unlink()
    assert "train.pixels/00002.bin is damaged (" in sentence(lambda: load_data("imagenet", root))


def test_pixels_of_other_files_than_the_folders_are_told_and_renewed(root: Path) -> None:
    decode("imagenet", root, unheard)
    folder = root / "imagenet" / "train"
    (folder / "n00000001" / "0.JPEG").rename(folder / "n00000001" / "5.JPEG")
    said = sentence(lambda: load_data("imagenet", root))
    assert f"{folder}.pixels was decoded from other files than are in {folder} (9 and 9" in said
    for c in range(3):
        (folder / f"n{c:08}" / "2.JPEG").unlink()
    assert "(9 and 6 of them)" in sentence(lambda: load_data("imagenet", root))
    decode("imagenet", root, unheard)
    assert len(load_data("imagenet", root).train) == 6
    assert not (folder.with_name("train.pixels") / "00002.bin").exists(), "no longer of use"


def test_too_little_disk_is_told_before_anything_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 100_000))
    said = sentence(lambda: decode("imagenet", root, unheard), OSError)
    assert "12 decoded pictures need about 0.0 GB and 0.0 GB are free in" in said
    assert snapshot(root) == {}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 200_000))
    decode("imagenet", root, unheard)


def test_a_file_that_is_no_picture_is_named_and_decoding_goes_on_once_it_is_one(
    root: Path,
) -> None:
    path = root / "imagenet" / "train" / "n00000002" / "1.JPEG"
    whole = path.read_bytes()
    for broken in (b"no picture", whole[: len(whole) // 2]):
        path.write_bytes(broken)
        said = sentence(lambda: decode("imagenet", root, unheard))
        assert said.startswith(f"{path} cannot be decoded: ")
    path.write_bytes(whole)
    decode("imagenet", root, unheard)
    assert load_data("imagenet", root).train.decoded is not None  # type: ignore[union-attr]


def test_what_is_held_in_memory_need_not_be_decoded(tmp_path: Path) -> None:
    said = sentence(lambda: decode("cifar10", tmp_path, unheard))
    assert said == "cifar10 is held in memory and need not be decoded; leave --decode out"
    assert "imagenet is not in" in sentence(lambda: decode("imagenet", tmp_path, unheard))
