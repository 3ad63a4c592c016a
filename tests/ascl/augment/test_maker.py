"""Views of a batch, made together, against the plain formulas applied to one sample at a time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.augment import maker as maker_module
from ascl.augment.maker import ViewMaker
from ascl.augment.views import ViewDraw, ViewSpec, draw_view
from tests.ascl.augment.test_randaugment import torchvisions
from tests.ascl.augment.test_views import boxes_of, drawn, gen, pictures

ZERO, ONE, HALF = torch.zeros(3), torch.ones(3), torch.full((3,), 0.5)


def make(
    images: Tensor,
    draws: Sequence[ViewDraw],
    specs: Sequence[ViewSpec],
    mean: Tensor = ZERO,
    std: Tensor = ONE,
    layout: torch.memory_format = torch.contiguous_format,
) -> tuple[Tensor, ...]:
    """Views of all images; those of mean 0 and standard deviation 1 are in [0, 1]."""
    height, width = images.shape[2:]
    maker = ViewMaker.of(specs, mean, std, layout, (height, width))
    return maker.make(images, maker.plan(draws, np.arange(len(images))))


def plain(image: Tensor, draw: ViewDraw, spec: ViewSpec) -> Tensor:
    """One view of one image with torchvision, one operation after the other; a draw of one."""
    box = boxes_of(draw, *image.shape[1:])[0].tolist()
    x = TF.resized_crop(image.float() / 255, *box, [spec.size, spec.size], antialias=True)
    x = TF.horizontal_flip(x) if draw.flip[0] else x
    if spec.kind == "stronger":
        for op, back in zip(draw.ops[0], draw.backwards[0], strict=True):
            x = torchvisions(x, int(op), bool(back), spec.magnitude)
    if spec.kind != "strong":
        return x
    if draw.jitter[0]:
        for op in draw.order[0].tolist():
            if op == 3:
                x = TF.adjust_hue(x, float(draw.hue[0]))
            else:
                adjust = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation)[op]
                x = adjust(x, float(draw.factor[0, op]))
    if draw.gray[0]:
        x = TF.rgb_to_grayscale(x, 3)
    if draw.sigma[0]:
        x = TF.gaussian_blur(x, [13, 13], [float(draw.sigma[0])] * 2)
    return x


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (96, 96, 64), (20, 33, 24)])
def test_strong_views_are_those_of_the_plain_formulas(height: int, width: int, size: int) -> None:
    images = pictures(120, max(height, width))[:, :, :height, :width].contiguous()
    spec = ViewSpec("strong", size)
    draw = draw_view(spec, 120, gen(2))
    (ours,) = make(images, [draw], [spec])
    for i in range(120):
        gap = (ours[i] - plain(images[i], draw[i : i + 1], spec)).abs()
        # A pixel that rounding puts across a hue's sextant border may differ a little more.
        assert gap.max() < 2e-4
        assert gap.mean() < 3e-6
    jittered = draw.order[draw.jitter]
    assert len({tuple(order) for order in jittered.tolist()}) == 24
    assert {(g, bool(s)) for g, s in zip(draw.gray, draw.sigma, strict=True)} == {
        *((False, False), (False, True), (True, False), (True, True))
    }


@pytest.mark.parametrize("side", [32, 48])
def test_stronger_views_are_those_of_the_plain_formulas(side: int) -> None:
    images, spec = pictures(80, side), ViewSpec("stronger", 32)
    draw = draw_view(spec, 80, gen(11))
    (ours,) = make(images, [draw], [spec])
    for i in range(80):
        gap = (ours[i] - plain(images[i], draw[i : i + 1], spec)).abs()
        # What rounding puts across a threshold by one operation, the next ones may carry further.
        assert (gap > 1e-4).float().mean() < 0.02


def test_a_stronger_view_with_identities_only_is_a_weak_one() -> None:
    spec, weak = ViewSpec("stronger", 32), ViewSpec("weak", 32)
    images, draw = pictures(40), draw_view(spec, 40, gen(11))
    nothing = replace(draw, ops=np.zeros_like(draw.ops))
    (ours,) = make(images, [nothing], [spec], HALF, HALF)
    assert ours.equal(make(images, [draw], [weak], HALF, HALF)[0])


def close(ours: Tensor, expected: Tensor, spec: ViewSpec) -> None:
    """Up to rounding, which an operation of a stronger view may put across a threshold."""
    gap = (ours - expected).abs()
    if spec.kind == "stronger":
        assert (gap > 1e-5).float().mean() < 0.01
    else:
        assert gap.max() < 1e-5


@given(
    kinds=st.lists(st.sampled_from(["weak", "strong", "stronger"]), min_size=1, max_size=4),
    count=st.integers(1, 9),
    side=st.integers(12, 40),
    size=st.integers(12, 40),
    strength=st.floats(0, 1.2),
    shares=st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 3),
    seed=st.integers(0, 999),
)
def test_a_view_of_a_sample_depends_on_no_other_view_and_no_other_sample(
    kinds: list[str],
    count: int,
    side: int,
    size: int,
    strength: float,
    shares: tuple[float, float, float],
    seed: int,
) -> None:
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=gen(seed))
    jitter, gray, blur = shares
    specs = [
        ViewSpec(
            *(kind, size),
            strength=strength,
            jitter_share=jitter,
            gray_share=gray,
            blur_share=blur,
        )
        for kind in kinds
    ]
    draws = [draw_view(spec, count, gen(seed + i)) for i, spec in enumerate(specs)]
    together = make(images, draws, specs)
    for view, draw, spec in zip(together, draws, specs, strict=True):
        assert view.shape == (count, 3, size, size)
        for i in range(count):
            (alone,) = make(images[i : i + 1], [draw[i : i + 1]], [spec])
            close(view[i], alone[0], spec)


@pytest.mark.parametrize("kind", ["weak", "strong", "stronger"])
def test_views_made_in_parts_are_those_of_the_whole_batch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [ViewSpec(kind, 32), ViewSpec("weak", 32)]
    draws = [draw_view(spec, 13, gen(i)) for i, spec in enumerate(specs)]
    whole = make(pictures(13), draws, specs)
    for samples in (0.5, 5):
        monkeypatch.setattr(maker_module, "CACHED", int(samples * 2 * 3 * 32 * 32))
        for ours, expected, spec in zip(
            make(pictures(13), draws, specs), whole, specs, strict=True
        ):
            close(ours, expected, spec)


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_images_that_are_already_cropped_get_the_colors_of_stored_ones(kind: str) -> None:
    spec, images = ViewSpec(kind, 32), pictures(30)
    draw = draw_view(spec, 30, gen(3))
    boxes = np.array([1.0, 1.0], np.float32)  # the whole image is the crop
    whole = replace(draw, crop=np.broadcast_to(boxes, draw.crop.shape), flip=draw.flip & False)
    maker = ViewMaker.of([spec], HALF, HALF, torch.channels_last)
    order = np.arange(30)[::-1].copy()
    cropped = images.permute(0, 2, 3, 1).contiguous()
    (ours,) = maker.make(cropped.flip(0), maker.plan([whole], order))
    assert ours.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours, make(images, [whole], [spec], HALF, HALF)[0])


def test_grayscale_blur_and_jitter_change_only_the_samples_drawn() -> None:
    spec, draw = drawn(64, seed=4)
    images = pictures(64)
    (ours,), (weak,) = make(images, [draw], [spec]), make(images, [draw], [ViewSpec("weak", 32)])
    untouched = torch.from_numpy(~draw.jitter & ~draw.gray & (draw.sigma == 0))
    assert 0 < untouched.sum() < 64
    assert ours[untouched].equal(weak[untouched])
    changed = (ours != weak).flatten(1).any(dim=1)
    assert changed.equal(~untouched)
    grayed = ours[torch.from_numpy(draw.gray)]
    assert grayed[:, 0].equal(grayed[:, 2])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_views_are_normalized_and_images_unchanged(layout: torch.memory_format) -> None:
    spec, draw = drawn(300, seed=9)
    images, mean, std = pictures(300), torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.4])
    before = images.clone()
    (view,) = make(images, [draw], [spec], mean, std, layout)
    assert images.equal(before)
    assert view.is_contiguous(memory_format=layout)
    raw = view * std.view(3, 1, 1) + mean.view(3, 1, 1)
    assert raw.min() >= -1e-6
    assert raw.max() <= 1 + 1e-6
    torch.testing.assert_close(raw, make(images, [draw], [spec])[0])


def test_zero_strength_changes_no_color() -> None:
    spec, draw = drawn(50, seed=10, strength=0.0, gray_share=0.0, blur_share=0.0)
    images = pictures(50)
    (ours,), (weak,) = make(images, [draw], [spec]), make(images, [draw], [ViewSpec("weak", 32)])
    torch.testing.assert_close(ours, weak, atol=1e-5, rtol=0)
