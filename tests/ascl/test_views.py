"""Views against torchvision's own operations with the same parameters, and in distribution."""

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from ascl.colour import shift_hue_
from ascl.randaugment import rand_augment_
from ascl.views import (
    ViewDraw,
    ViewSpec,
    blur,
    blur_weights,
    colour_views,
    crop_boxes,
    crop_views,
    distort_,
    draw_view,
    make_view,
    normalise_,
    resample,
    small_view,
)


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def boxes_of(draw: ViewDraw, height: int, width: int) -> Tensor:
    return torch.from_numpy(crop_boxes(draw.crop.numpy(), draw.place.numpy(), height, width))


def pictures(n: int, side: int = 32, seed: int = 0) -> Tensor:
    """Smooth random pictures with flat and grey patches: the corners of HSV."""
    g = gen(seed)
    small = torch.rand(n, 3, 8, 8, generator=g)
    x = torch.nn.functional.interpolate(small, (side, side), mode="bicubic").clamp(0, 1)
    x[:, :, :4, :4] = x[:, :1, :4, :4]
    x[:, :, -3:, -3:] = 0
    x[:, :, -3:, :3] = 1
    return (x * 255).round().to(torch.uint8)


def drawn(n: int, seed: int = 0, **spec: float) -> tuple[ViewSpec, ViewDraw]:
    view = ViewSpec("strong", 32, **spec)
    return view, draw_view(view, n, gen(seed))


@pytest.mark.parametrize(("side", "size"), [(32, 32), (96, 64), (48, 64), (33, 20)])
def test_crops_are_torchvisions_resized_crops(side: int, size: int) -> None:
    images, spec = pictures(40, side), ViewSpec("weak", size)
    draw = draw_view(spec, 40, gen(1))
    ours = crop_views(images, draw, spec)
    for i, (top, left, h, w) in enumerate(boxes_of(draw, side, side).tolist()):
        theirs = TF.resized_crop(
            images[i].float() / 255, top, left, h, w, [size, size], antialias=True
        )
        theirs = TF.horizontal_flip(theirs) if draw.flip[i] else theirs
        torch.testing.assert_close(ours[i], theirs, atol=2e-6, rtol=0)


def test_colour_distortion_is_torchvisions_in_each_samples_order() -> None:
    images = pictures(200).float() / 255
    _, draw = drawn(200, seed=2)
    ours = images.clone()
    distort_(ours, torch.arange(len(ours)), draw)
    for i in range(200):
        x = images[i]
        for op in draw.order[i].tolist():
            if op == 3:
                x = TF.adjust_hue(x, draw.hue[i].item())
            else:
                adjust = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation)[op]
                x = adjust(x, draw.factor[i, op].item())
        # A pixel that rounding puts across a hue's sextant border may differ a little more.
        assert (ours[i] - x).abs().max() < 2e-4
        assert (ours[i] - x).abs().mean() < 2e-6
    assert len({tuple(order) for order in draw.order.tolist()}) == 24


@given(turns=st.floats(-0.5, 0.5), seed=st.integers(0, 100))
def test_hue_shift_is_torchvisions(turns: float, seed: int) -> None:
    x = torch.rand(1, 3, 6, 6, generator=gen(seed))
    torch.testing.assert_close(
        shift_hue_(x.clone(), torch.tensor([turns])), TF.adjust_hue(x, turns), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("size", [7, 32, 64])
def test_blur_is_torchvisions_gaussian_with_mirrored_borders(size: int) -> None:
    x = torch.rand(5, 3, size, size, generator=gen(3))
    sigma = torch.tensor([0.1, 0.5, 1.0, 1.7, 2.0])
    weights = blur_weights(sigma, size)
    for ours, picture, s in zip(resample(x, weights, weights), x, sigma.tolist(), strict=True):
        torch.testing.assert_close(
            ours, TF.gaussian_blur(picture, [13, 13], [s, s]), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("size", [7, 32, 33, 64, 100])
def test_a_blur_in_blocks_is_the_product_with_whole_matrices(size: int) -> None:
    x = torch.rand(3, 3, size, size, generator=gen(15))
    sigma = torch.tensor([0.3, 1.1, 2.0])
    weights = blur_weights(sigma, size)
    torch.testing.assert_close(blur(x, sigma), resample(x, weights, weights), atol=1e-6, rtol=0)


@pytest.mark.parametrize("chroma", [0.0, 1e-38, 1e-8, 1e-5])
def test_a_turn_of_the_hue_leaves_what_is_next_to_grey(chroma: float) -> None:
    x = torch.rand(20, 1, 6, 6, generator=gen(16)) * torch.ones(3, 1, 1)
    x = x + chroma * torch.rand(20, 3, 6, 6, generator=gen(17))
    turned = shift_hue_(x.clone(), torch.linspace(-0.5, 0.5, 20))
    torch.testing.assert_close(turned, x, atol=chroma + 2e-7, rtol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_normalising_is_the_same_in_either_layout(layout: torch.memory_format) -> None:
    x = torch.rand(4, 3, 5, 7, generator=gen(18))
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6])
    expected = (x - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert normalise_(x.contiguous(memory_format=layout), mean, std).equal(expected)


def test_grey_blur_and_jitter_touch_only_the_samples_drawn() -> None:
    images = pictures(64).float() / 255
    _, draw = drawn(64, seed=4)
    out = colour_views(images.clone(), draw)
    untouched = ~draw.jitter & ~draw.grey & (draw.sigma == 0)
    assert 0 < untouched.sum() < 64
    assert out[untouched].equal(images[untouched])
    greyed = out[draw.grey]
    torch.testing.assert_close(greyed[:, 0], greyed[:, 2])
    only_grey = draw.grey & ~draw.jitter & (draw.sigma == 0)
    for i in only_grey.nonzero().flatten().tolist():
        torch.testing.assert_close(out[i], TF.rgb_to_grayscale(images[i], 3), atol=1e-3, rtol=0)


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


def test_a_crop_that_never_fits_is_the_largest_centred_one() -> None:
    _, draw = drawn(1, crop_min=1.0)
    wide = ViewDraw(**{**draw.__dict__, "crop": torch.tensor([[[1.0, 3 / 4]] * 10])})
    assert boxes_of(wide, 10, 100).tolist() == [[0, 43, 10, 13]]


def test_colour_parameters_are_in_range_and_scale_with_strength() -> None:
    _, weak = drawn(4000, seed=7, strength=0.4)
    _, strong = drawn(4000, seed=7, strength=0.8)
    for draw, s in ((weak, 0.4), (strong, 0.8)):
        assert draw.hue.abs().max().item() == pytest.approx(0.2 * s, rel=0.01)
        assert draw.factor.min().item() == pytest.approx(1 - 0.8 * s, abs=0.01)
        assert draw.factor.max().item() == pytest.approx(1 + 0.8 * s, abs=0.01)
        assert draw.jitter.float().mean().item() == pytest.approx(0.8, abs=0.03)
        assert draw.grey.float().mean().item() == pytest.approx(0.2, abs=0.03)
        assert (draw.sigma > 0).float().mean().item() == pytest.approx(0.5, abs=0.03)
    torch.testing.assert_close(strong.hue, 2 * weak.hue)
    assert strong.crop.equal(weak.crop), "arms that differ in strength see the same crops"


def test_the_share_of_a_draw_is_the_draw_of_the_share() -> None:
    spec, draw = drawn(24, seed=8)
    images, mean, std = pictures(24), torch.tensor([0.5] * 3), torch.tensor([0.25] * 3)
    whole = make_view(images, draw, spec, mean, std)
    halves = [make_view(images[p], draw[p], spec, mean, std) for p in (slice(12), slice(12, 24))]
    torch.testing.assert_close(torch.cat(halves), whole, atol=1e-5, rtol=0)


def test_views_are_normalised_and_leave_the_images_alone() -> None:
    spec, draw = drawn(300, seed=9)
    images = pictures(300)
    before = images.clone()
    view = make_view(images, draw, spec, torch.tensor([0.5] * 3), torch.tensor([0.25] * 3))
    assert images.equal(before)
    assert view.shape == (300, 3, 32, 32)
    assert view.min() >= -2.001
    assert view.max() <= 2.001


def test_zero_strength_changes_no_colour() -> None:
    images = pictures(50).float() / 255
    _, draw = drawn(50, seed=10, strength=0.0, grey_share=0.0, blur_share=0.0)
    torch.testing.assert_close(colour_views(images.clone(), draw), images, atol=1e-5, rtol=0)


def test_a_stronger_view_is_a_weak_one_under_randaugment() -> None:
    spec, weak = ViewSpec("stronger", 32), ViewSpec("weak", 32)
    images, half = pictures(40), torch.tensor([0.5] * 3)
    draw = draw_view(spec, 40, gen(11))
    view = make_view(images, draw, spec, half, half)
    expected = crop_views(images, draw_view(weak, 40, gen(11)), weak)
    rand_augment_(expected, draw.ops, draw.backwards, 10)
    torch.testing.assert_close(view, (expected - 0.5) / 0.5)
    nothing = ViewDraw(**{**draw.__dict__, "ops": torch.zeros_like(draw.ops)})
    assert make_view(images, nothing, spec, half, half).equal(
        make_view(images, draw, weak, half, half)
    )


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_only_a_stronger_view_draws_operations(kind: str) -> None:
    g, h = gen(12), gen(12)
    draw = draw_view(ViewSpec(kind, 32), 30, g)
    assert draw.ops.shape == draw.backwards.shape == (30, 0)
    stronger = draw_view(ViewSpec("stronger", 32), 30, h)
    names = draw.__dict__.keys() - {"ops", "backwards"}
    assert all(getattr(draw, name).equal(getattr(stronger, name)) for name in names)
    # What was drawn for these kinds before there were others: the golden losses rest on it.
    again = gen(12)
    for shape in ((10, 2), (2,), (), (), (3,), (), (4,), (), (), ()):
        torch.rand(30, *shape, generator=again)
    assert torch.rand(1, generator=g).equal(torch.rand(1, generator=again))


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
    images = pictures(20, full)
    draw = draw_view(spec, 20, gen(14))
    view = make_view(images, draw, spec, torch.zeros(3), torch.ones(3))
    assert view.shape == (20, 3, side, side)
    assert view.isfinite().all()


def test_a_small_view_of_a_small_picture_gets_a_sentence() -> None:
    message = "a small view needs a full one of at least 27 pixels, got 26"
    with pytest.raises(ValueError, match=message):
        small_view(ViewSpec("strong", 26))
    assert small_view(ViewSpec("strong", 27)).size == 12
