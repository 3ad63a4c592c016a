"""Laws of the embedded dataset."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl.data import shapes
from ascl.data.shapes import CLASSES, SIZE, render_at


def render(count: int, *, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The first images of a split."""
    return render_at(torch.arange(count), split=split)


@pytest.mark.parametrize("split", ["train", "test"])
def test_images_are_bytes_and_classes_alternate(split: str) -> None:
    images, labels = render(33, split=split)
    assert images.shape == (33, 3, SIZE, SIZE) and images.dtype == torch.uint8
    assert images.is_contiguous() and labels.dtype == torch.int64
    assert labels.tolist() == [i % len(CLASSES) for i in range(33)]


@settings(deadline=None, max_examples=20)
@given(count=st.integers(0, 600), more=st.integers(0, 600))
def test_a_shorter_rendering_is_a_prefix_of_a_longer_one(count: int, more: int) -> None:
    short, long = render(count, split="train"), render(count + more, split="train")
    assert all(a.equal(b[:count]) for a, b in zip(short, long, strict=True))


@settings(deadline=None, max_examples=20)
@given(places=st.lists(st.integers(0, 599), max_size=40))
def test_image_does_not_depend_on_the_number_of_images(places: list[int]) -> None:
    chosen = torch.tensor(places, dtype=torch.int64)
    some, all_of_them = render_at(chosen, split="test"), render(600, split="test")
    assert all(a.equal(b[chosen]) for a, b in zip(some, all_of_them, strict=True))


def test_rendering_does_not_use_the_global_random_state() -> None:
    torch.manual_seed(1)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first = render(20, split="train")[0]
    assert torch.get_rng_state().equal(before) and torch.get_num_threads() == threads
    torch.manual_seed(2)
    assert render(20, split="train")[0].equal(first)


def test_no_image_occurs_twice_in_or_across_the_splits() -> None:
    images = torch.cat([render(1000, split=split)[0] for split in ("train", "test")])
    assert len({image.numpy().tobytes() for image in images}) == 2000


def test_an_unknown_split_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no split named 'val'; there are: train, test"):
        render(1, split="val")


@pytest.mark.parametrize("name", CLASSES)
def test_every_outline_is_a_distance_and_fits_the_unit_circle(name: str) -> None:
    axis = torch.linspace(-1.5, 1.5, 301, dtype=torch.float64)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    distance = shapes._OUTLINES[name](x, y)
    assert (distance[torch.hypot(x, y) > 1.2] > 0).all()
    assert (distance < 0).double().mean() > 0.05
    # Never steeper than a distance, or edges would be jagged.
    steps = torch.cat([distance.diff(dim=0).flatten(), distance.diff(dim=1).flatten()])
    assert steps.abs().max() <= 0.01 + 1e-6


def test_every_image_shows_its_shape_large_and_in_contrast() -> None:
    factors = torch.rand(500, 5, generator=torch.Generator().manual_seed(0))
    cover = shapes._draw_shapes(torch.arange(500) % len(CLASSES), factors)
    assert cover.min() == 0 and cover.max() == 1
    assert cover.mean((1, 2, 3)).min() > 0.04
    background, foreground = shapes._draw_colors(factors)
    assert (foreground - background).mean(1).abs().min() > 0.1


def test_color_does_not_depend_on_the_class() -> None:
    images, labels = render(5000, split="train")
    means = images.float().mean((2, 3))
    by_class = torch.stack([means[labels == label].mean(0) for label in range(len(CLASSES))])
    # Far below the spread within a class, which is about 50 of 255.
    assert by_class.std(0).max() < 0.2 * means.std(0).min()


def test_raw_pixel_knn_is_above_chance_and_poor() -> None:
    (bank, known), (queries, truth) = render(5000, split="train"), render(500, split="test")
    mean = bank.float().mean()
    bank_features, features = (F.normalize(x.float().sub(mean).flatten(1)) for x in (bank, queries))
    nearest = (features @ bank_features.T).topk(20).indices
    guess = known[nearest].mode().values
    assert 0.1 < (guess == truth).float().mean() < 0.4
