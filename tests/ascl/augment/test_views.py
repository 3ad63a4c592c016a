"""What is drawn for views, and the boxes of their crops, against torchvision's in distribution."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from ascl.augment.views import ViewDraw, ViewSpec, crop_boxes, draw_view, small_view


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def boxes_of(draw: ViewDraw, height: int, width: int) -> Tensor:
    return torch.from_numpy(crop_boxes(draw.crop, draw.place, height, width))


def pictures(n: int, side: int = 32, seed: int = 0) -> Tensor:
    """Smooth random images with flat and gray patches: the corners of HSV."""
    g = gen(seed)
    small = torch.rand(n, 3, 8, 8, generator=g)
    x = torch.nn.functional.interpolate(small, (side, side), mode="bicubic").clamp(0, 1)
    x[:, :, :4, :4] = x[:, :1, :4, :4]
    x[:, :, -3:, -3:] = 0
    x[:, :, -3:, :3] = 1
    return (x * 255).round().to(torch.uint8)


def drawn(n: int, seed: int = 0, **spec: float) -> tuple[ViewSpec, ViewDraw]:
    view = replace(ViewSpec("strong", 32), **spec)  # type: ignore[arg-type]
    return view, draw_view(view, n, gen(seed))


def numbers(count: int, g: torch.Generator) -> list[Tensor]:
    """Draw as the first version did: one call for each parameter. The golden losses rest on it."""
    shapes: tuple[tuple[int, ...], ...]
    shapes = ((10, 2), (2,), (), (), (3,), (), (4,), (), (), ())
    return [torch.rand(count, *shape, generator=g) for shape in shapes]


@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["weak", "strong", "stronger"]),
    crop_min=st.floats(0.05, 0.95),
    strength=st.floats(0, 1.5),
)
def test_draws_are_bit_equal_to_one_call_for_each_parameter(
    count: int, seed: int, kind: str, crop_min: float, strength: float
) -> None:
    spec = ViewSpec(kind, 32, crop_min=crop_min, strength=strength)
    g, h = gen(seed), gen(seed)
    for _ in range(2):  # the next batch continues the stream
        draw = draw_view(spec, count, g)
        crop, place, flip, jitter, factor, hue, order, gray, blur, sigma = numbers(count, h)
        low, high = np.log(3 / 4), np.log(4 / 3)
        area = crop_min + (1 - crop_min) * crop[..., 0]
        ratio = (low + (high - low) * crop[..., 1]).exp()
        least = max(0.0, 1 - 0.8 * strength)
        num_ops = 5 if kind == "stronger" else 0
        expected = {
            "crop": torch.stack((area, ratio), dim=-1),
            "place": place,
            "flip": flip < 0.5,
            "jitter": jitter < 0.8,
            "factor": least + (1 + 0.8 * strength - least) * factor,
            "hue": 0.2 * strength * (2 * hue - 1),
            "order": order.argsort(dim=1),
            "gray": gray < 0.2,
            "sigma": (0.1 + (2.0 - 0.1) * sigma) * (blur < 0.5),
            "ops": torch.randint(14, (count, num_ops), generator=h),
            "backwards": torch.rand(count, num_ops, generator=h) < 0.5,
        }
        assert expected.keys() == draw.__dict__.keys()
        for name, value in expected.items():
            assert torch.from_numpy(getattr(draw, name)).equal(value), name


@given(count=st.integers(1, 30), start=st.integers(0, 30), seed=st.integers(0, 99))
def test_a_rank_keeps_its_share_of_the_draws_of_the_whole_batch(
    count: int, start: int, seed: int
) -> None:
    g, h, part = gen(seed), gen(seed), slice(start, start + 7)
    spec = ViewSpec("stronger", 32)
    for _ in range(2):
        whole, own = draw_view(spec, count, g), draw_view(spec, count, h, part)
        for name, value in whole[part].__dict__.items():
            np.testing.assert_array_equal(getattr(own, name), value)


def test_crop_boxes_are_distributed_as_torchvisions() -> None:
    n, side = 20_000, 48
    boxes = boxes_of(draw_view(ViewSpec("weak", 32), n, gen(5)), side, side).float()
    picture = torch.zeros(3, side, side)
    torch.manual_seed(0)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(picture, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(n // 4)]
    ).float()
    for statistic in (
        lambda b: b[:, 2] * b[:, 3] / side**2,  # area
        lambda b: (b[:, 3] / b[:, 2]).log(),  # aspect
        lambda b: b[:, 0],  # place
        lambda b: b[:, 1],
    ):
        a, b = statistic(boxes), statistic(theirs)
        points = torch.linspace(0.05, 0.95, 19)
        gap = (a.quantile(points) - b.quantile(points)).abs().max()
        assert gap < 0.06 * max(a.std().item(), b.std().item()) + 1, gap


def test_area_and_aspect_stay_in_range() -> None:
    boxes = boxes_of(draw_view(ViewSpec("weak", 32, crop_min=0.5), 5000, gen(6)), 64, 64).double()
    area = boxes[:, 2] * boxes[:, 3] / 64**2
    ratio = boxes[:, 3] / boxes[:, 2]
    assert area.min() > 0.5 * 0.95
    assert area.max() <= 1
    assert (ratio > 3 / 4 * 0.95).all()
    assert (ratio < 4 / 3 * 1.05).all()
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= 64).all()
    assert (boxes[:, 1] + boxes[:, 3] <= 64).all()


def test_a_crop_that_never_fits_is_the_largest_centered_one() -> None:
    _, draw = drawn(1, crop_min=1.0)
    wide = replace(draw, crop=np.array([[[1.0, 3 / 4]] * 10], np.float32))
    assert boxes_of(wide, 10, 100).tolist() == [[0, 43, 10, 13]]


def test_color_parameters_are_in_range_and_scale_with_strength() -> None:
    _, weak = drawn(4000, seed=7, strength=0.4)
    _, strong = drawn(4000, seed=7, strength=0.8)
    for draw, s in ((weak, 0.4), (strong, 0.8)):
        assert abs(draw.hue).max() == pytest.approx(0.2 * s, rel=0.01)
        assert draw.factor.min() == pytest.approx(1 - 0.8 * s, abs=0.01)
        assert draw.factor.max() == pytest.approx(1 + 0.8 * s, abs=0.01)
        assert draw.jitter.mean() == pytest.approx(0.8, abs=0.03)
        assert draw.gray.mean() == pytest.approx(0.2, abs=0.03)
        assert (draw.sigma > 0).mean() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_allclose(strong.hue, 2 * weak.hue, rtol=1e-6)
    assert (strong.crop == weak.crop).all(), "arms that differ in strength see the same crops"


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_only_a_stronger_view_draws_operations(kind: str) -> None:
    g, h = gen(12), gen(12)
    draw = draw_view(ViewSpec(kind, 32), 30, g)
    assert draw.ops.shape == draw.backwards.shape == (30, 0)
    stronger = draw_view(ViewSpec("stronger", 32), 30, h)
    names = draw.__dict__.keys() - {"ops", "backwards"}
    assert all((getattr(draw, name) == getattr(stronger, name)).all() for name in names)


@pytest.mark.parametrize(("full", "side"), [(28, 12), (32, 14), (64, 27), (224, 96)])
def test_a_small_view_is_three_sevenths_of_a_full_one(full: int, side: int) -> None:
    spec = small_view(ViewSpec("strong", full, crop_min=0.14, strength=0.3))
    assert (spec.kind, spec.size, spec.strength) == ("strong", side, 0.3)
    assert (spec.crop_min, spec.crop_max) == (pytest.approx(0.05), 0.14)
    draw = draw_view(spec, 4000, gen(13))
    boxes = boxes_of(draw, 256, 256).double()
    area = boxes[:, 2] * boxes[:, 3] / 256**2
    assert area.min() == pytest.approx(0.05, abs=0.002)
    assert area.max() == pytest.approx(0.14, abs=0.002)
    assert area.mean() == pytest.approx(0.095, abs=0.002)


def test_small_crops_of_small_views_are_refused() -> None:
    message = "small crops need full views of at least 27 pixels, got 26"
    with pytest.raises(ValueError, match=message):
        small_view(ViewSpec("strong", 26))
    assert small_view(ViewSpec("strong", 27)).size == 12
