"""From stored images to batches: memory and disk alike."""

from itertools import repeat
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as TF

from ascl.augment.views import ViewSpec, small_view
from ascl.data.base import DATASETS, ImageFiles, Images
from ascl.data.loader import Pixels, plain_batches, training_batches
from ascl.errors import DataError
from benchmarks.counting import fake_process_group
from benchmarks.fake_gpu import fake_gpu

CPU = torch.device("cpu")


def pixels(size: int = 32) -> Pixels:
    return Pixels(CPU, size, torch.tensor([0.5] * 3), torch.tensor([0.25] * 3))


def smooth(n: int, side: int) -> torch.Tensor:
    x = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.interpolate(x, (side, side), mode="bicubic").clamp(0, 1)
    return (x * 255).to(torch.uint8)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Images, ImageFiles]:
    """The same images in memory and on disk."""
    pictures, labels = smooth(12, 48), torch.arange(12) % 3
    paths = []
    for i, picture in enumerate(pictures):
        paths.append(str(tmp_path / f"{i}.png"))
        TF.to_pil_image(picture).save(paths[-1])
    return Images(pictures, labels), ImageFiles(tuple(paths), labels)


def views(
    images: Images | ImageFiles, kinds: tuple[str, ...] = ("strong", "weak")
) -> list[torch.Tensor]:
    steps = torch.arange(12).view(3, 4)
    generators = [torch.Generator().manual_seed(i) for i in range(len(kinds))]
    specs = [small_view(ViewSpec("strong", 32)) if k == "small" else ViewSpec(k, 32) for k in kinds]
    batches = list(
        training_batches(images, list(steps), specs, generators, pixels(), iter(range(3)))
    )
    assert torch.cat([batch.indices for batch in batches]).equal(torch.arange(12))
    assert torch.cat([batch.labels for batch in batches]).equal(torch.arange(12) % 3)
    assert [batch.extras for batch in batches] == [0, 1, 2]
    return [torch.cat(parts) for parts in zip(*(batch.views for batch in batches), strict=True)]


def test_images_on_disk_give_the_views_of_images_in_memory(
    both: tuple[Images, ImageFiles],
) -> None:
    for memory, disk in zip(views(both[0]), views(both[1]), strict=True):
        # Crops from disk are rounded to 8 bits before the colours: a level or two of 255, times 4.
        assert (memory - disk).abs().mean() < 0.02
        assert (memory - disk).abs().max() < 0.4


def test_stronger_and_small_views_from_disk_equal_those_from_memory(
    both: tuple[Images, ImageFiles],
) -> None:
    kinds = ("stronger", "small")
    (stronger, small), (from_disk, small_from_disk) = views(both[0], kinds), views(both[1], kinds)
    assert stronger.shape == from_disk.shape == (12, 3, 32, 32)
    assert small.shape == small_from_disk.shape == (12, 3, 14, 14)
    assert (small - small_from_disk).abs().mean() < 0.02
    # A level of 255 may put a pixel across the threshold of an operation, and few do.
    assert ((stronger - from_disk).abs() > 0.2).float().mean() < 0.05


@pytest.mark.parametrize("kind", ["strong", "weak", "stronger"])
def test_views_made_in_chunks_equal_those_of_the_whole_batch(
    both: tuple[Images, ImageFiles], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = views(both[1], (kind,))
    for samples in (0.5, 3):
        monkeypatch.setattr("ascl.augment.maker.CACHED", int(samples * 3 * 32 * 32))
        torch.testing.assert_close(views(both[1], (kind,))[0], whole, atol=1e-5, rtol=0)


def test_consumers_of_batches_have_all_threads(both: tuple[Images, ImageFiles]) -> None:
    g, threads = [torch.Generator().manual_seed(0)], torch.get_num_threads()
    steps = [torch.arange(4)]
    specs = [ViewSpec("strong", 32)]
    for _ in training_batches(both[1], steps, specs, g, pixels(), repeat(None)):
        assert torch.get_num_threads() == threads
    for _ in plain_batches(both[1], pixels()):
        assert torch.get_num_threads() == threads


def test_view_does_not_depend_on_the_number_of_views(
    both: tuple[Images, ImageFiles],
) -> None:
    assert views(both[0], ("strong",))[0].equal(views(both[0], ("strong", "weak"))[0])
    assert views(both[0], ("weak", "strong"))[1].equal(
        views(both[0], ("stronger", "strong", "small"))[1]
    )


@pytest.mark.parametrize(
    ("kinds", "ranks", "calls"),
    [
        (("weak",), 1, 20),
        (("strong", "weak"), 1, 80),
        (("strong", "weak"), 2, 80),
        (("strong", "strong", "small", "small"), 1, 160),
        pytest.param(("strong", "weak", "stronger"), 1, 330, marks=pytest.mark.slow),
    ],
)
def test_a_step_on_a_gpu_takes_one_copy_no_wait_and_few_calls(
    kinds: tuple[str, ...], ranks: int, calls: int
) -> None:
    full = ViewSpec("strong", 32)
    specs = [small_view(full) if kind == "small" else ViewSpec(kind, 32) for kind in kinds]
    generators = [torch.Generator().manual_seed(i) for i in range(len(specs))]
    with fake_process_group(ranks), fake_gpu() as gpu:
        stored = torch.empty(1000, 3, 32, 32, dtype=torch.uint8, device="cuda")
        images = Images(stored, torch.empty(1000, dtype=torch.long, device="cuda"))
        pixels = Pixels.of(DATASETS["cifar10"], stored.device)
        steps, extras = torch.arange(500).split(250), [(torch.arange(3), "a")] * 2
        batches = training_batches(images, steps, specs, generators, pixels, extras)
        next(batches)
        assert gpu.copies == 2, "the second step is planned before the first one is made"
        blocking = gpu.blocking  # constants of the epoch
        gpu.kernels.clear()
        (batch,) = batches
        assert (gpu.copies, gpu.blocking) == (2, blocking)
        assert 0 < gpu.kernels.total() <= calls, gpu.kernels
        assert all(x.is_cuda for x in (*batch.views, batch.labels, batch.indices, batch.extras[0]))
        assert all(len(view) == 250 // ranks for view in batch.views)


def test_plain_images_are_whole_normalized_and_in_order() -> None:
    pictures = smooth(300, 32)
    out = torch.cat(list(plain_batches(Images(pictures, torch.zeros(300).long()), pixels())))
    torch.testing.assert_close(out, (pictures.float() / 255 - 0.5) / 0.25)


def test_plain_images_of_another_size_are_resized() -> None:
    images = Images(smooth(3, 96), torch.zeros(3).long())
    assert next(plain_batches(images, pixels(64))).shape == (3, 3, 64, 64)


def test_plain_images_from_disk_are_center_crops(both: tuple[Images, ImageFiles]) -> None:
    (batch,) = plain_batches(both[1], pixels(32))
    assert batch.shape == (12, 3, 32, 32)
    picture = Image.open(both[1].paths[5])
    expected = TF.to_tensor(TF.center_crop(TF.resize(picture, 37), [32, 32]))
    torch.testing.assert_close(batch[5], (expected - 0.5) / 0.25)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.JPEG"
    path.write_bytes(b"\xff\xd8 not a picture")
    files = ImageFiles((str(path),), torch.zeros(1).long())
    with pytest.raises(DataError, match=r"bad\.JPEG cannot be decoded") as caught:
        list(plain_batches(files, pixels()))
    assert "\n" not in str(caught.value), "one line, not a worker's traceback"


@pytest.mark.parametrize("channels_last", [True, False])
def test_views_and_plain_images_have_the_configured_memory_format(
    both: tuple[Images, ImageFiles], channels_last: bool
) -> None:
    asked = Pixels.of(DATASETS["cifar10"], CPU, channels_last=channels_last)
    g = [torch.Generator().manual_seed(0)]
    steps = [torch.arange(4)]
    for images in both:
        specs = [ViewSpec("strong", 32)]
        (made,) = training_batches(images, steps, specs, g, asked, repeat(None))
        for batch in (*made.views, next(plain_batches(images, asked))):
            assert batch.is_contiguous(memory_format=asked.memory_format)


def test_pixels_follow_the_dataset() -> None:
    assert Pixels.of(DATASETS["stl10"], CPU).size == 64
