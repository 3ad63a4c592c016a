"""From stored images to batches: memory and disk alike."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as TF

from ascl.batches import Pixels, plain_batches, training_batches
from ascl.datasets import DATASETS, DataError, ImageFiles, Images
from ascl.views import ViewSpec, small_view

CPU = torch.device("cpu")


def pixels(size: int = 32) -> Pixels:
    return Pixels(CPU, size, torch.tensor([0.5] * 3), torch.tensor([0.25] * 3))


def smooth(n: int, side: int) -> torch.Tensor:
    x = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.interpolate(x, (side, side), mode="bicubic").clamp(0, 1)
    return (x * 255).to(torch.uint8)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Images, ImageFiles]:
    """The same pictures in memory and on disk."""
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
    batches = list(training_batches(images, list(steps), specs, generators, pixels()))
    assert torch.cat([y for _, y in batches]).equal(torch.arange(12) % 3)
    return [torch.cat(parts) for parts in zip(*(x for x, _ in batches), strict=True)]


def test_pictures_on_disk_give_the_views_of_pictures_in_memory(
    both: tuple[Images, ImageFiles],
) -> None:
    for memory, disk in zip(views(both[0]), views(both[1]), strict=True):
        # Crops from disk are rounded to 8 bits before the colours: a level or two of 255, times 4.
        assert (memory - disk).abs().mean() < 0.02
        assert (memory - disk).abs().max() < 0.4


def test_stronger_and_small_views_come_from_disk_as_from_memory(
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
def test_views_made_a_few_samples_at_a_time_are_those_of_the_whole_batch(
    both: tuple[Images, ImageFiles], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = views(both[1], (kind,))
    for samples in (0.5, 3):
        monkeypatch.setattr("ascl.batches.CACHED", int(samples * 3 * 32 * 32))
        torch.testing.assert_close(views(both[1], (kind,))[0], whole, atol=1e-5, rtol=0)


def test_whoever_gets_a_batch_has_all_threads(both: tuple[Images, ImageFiles]) -> None:
    g, threads = [torch.Generator().manual_seed(0)], torch.get_num_threads()
    steps = [torch.arange(4)]
    for _ in training_batches(both[1], steps, [ViewSpec("strong", 32)], g, pixels()):
        assert torch.get_num_threads() == threads
    for _ in plain_batches(both[1], pixels()):
        assert torch.get_num_threads() == threads


def test_a_view_does_not_depend_on_how_many_others_there_are(
    both: tuple[Images, ImageFiles],
) -> None:
    assert views(both[0], ("strong",))[0].equal(views(both[0], ("strong", "weak"))[0])
    assert views(both[0], ("weak", "strong"))[1].equal(
        views(both[0], ("stronger", "strong", "small"))[1]
    )


def test_plain_pictures_are_whole_normalised_and_in_order() -> None:
    pictures = smooth(300, 32)
    out = torch.cat(list(plain_batches(Images(pictures, torch.zeros(300).long()), pixels())))
    torch.testing.assert_close(out, (pictures.float() / 255 - 0.5) / 0.25)


def test_plain_pictures_of_another_size_are_resized() -> None:
    images = Images(smooth(3, 96), torch.zeros(3).long())
    assert next(plain_batches(images, pixels(64))).shape == (3, 3, 64, 64)


def test_plain_pictures_from_disk_are_the_centre(both: tuple[Images, ImageFiles]) -> None:
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
    assert "\n" not in str(caught.value), "a sentence, not a worker's traceback"


@pytest.mark.parametrize("channels_last", [True, False])
def test_views_and_plain_pictures_are_laid_out_as_asked(
    both: tuple[Images, ImageFiles], channels_last: bool
) -> None:
    asked = Pixels.of(DATASETS["cifar10"], CPU, channels_last=channels_last)
    g = [torch.Generator().manual_seed(0)]
    steps = [torch.arange(4)]
    for images in both:
        (((view,), _),) = training_batches(images, steps, [ViewSpec("strong", 32)], g, asked)
        for batch in (view, next(plain_batches(images, asked))):
            assert batch.is_contiguous(memory_format=asked.memory_format)


def test_pixels_follow_the_dataset() -> None:
    assert Pixels.of(DATASETS["stl10"], CPU).size == 64
