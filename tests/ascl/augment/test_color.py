"""Color operations against torchvision's with the same parameters."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.augment.color import blend_, blend_weights, hue_shifts, normalize_, shift_hue_
from tests.ascl.augment.test_views import gen


def shifted(images: Tensor, turns: Tensor) -> Tensor:
    """Images (N, 3, H, W) with shifted hue."""
    images = images.clone()
    shift_hue_(images.flatten(2), torch.from_numpy(hue_shifts(turns.numpy())))
    return images


@given(turns=st.floats(-0.5, 0.5), seed=st.integers(0, 100))
def test_hue_shift_is_torchvisions(turns: float, seed: int) -> None:
    x = torch.rand(1, 3, 6, 6, generator=gen(seed))
    ours = shifted(x, torch.tensor([turns]))
    torch.testing.assert_close(ours, TF.adjust_hue(x, turns), atol=1e-4, rtol=0)


@given(turns=st.floats(-3, 3), pixel=st.tuples(*[st.sampled_from([0.0, 0.2, 0.7, 1.0])] * 3))
def test_hue_shift_is_the_plain_formula_also_where_channels_are_equal(
    turns: float, pixel: tuple[float, float, float]
) -> None:
    red, green, blue = pixel
    high, low = max(pixel), min(pixel)
    chroma = high - low
    if chroma == 0:
        hue = 0.0
    elif high == red:
        hue = (green - blue) / chroma
    elif high == green:
        hue = 2 + (blue - red) / chroma
    else:
        hue = 4 + (red - green) / chroma
    expected = []
    for n in (5, 3, 1):
        k = (n + hue + 6 * turns) % 6
        expected.append(high - chroma * max(0.0, min(k, 4 - k, 1)))
    ours = shifted(torch.tensor(pixel).view(1, 3, 1, 1), torch.tensor([turns]))
    assert ours.flatten().tolist() == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("chroma", [0.0, 1e-38, 1e-8, 1e-5])
def test_hue_shift_keeps_nearly_gray_pixels(chroma: float) -> None:
    x = torch.rand(20, 1, 6, 6, generator=gen(16)) * torch.ones(3, 1, 1)
    x = x + chroma * torch.rand(20, 3, 6, 6, generator=gen(17))
    turned = shifted(x, torch.linspace(-0.5, 0.5, 20))
    torch.testing.assert_close(turned, x, atol=chroma + 2e-7, rtol=0)


@given(seed=st.integers(0, 99), factor=st.floats(0, 2), op=st.integers(0, 2))
def test_a_blend_is_torchvisions_brightness_contrast_or_saturation(
    seed: int, factor: float, op: int
) -> None:
    x = torch.rand(3, 3, 8, 8, generator=gen(seed))
    ops, factors = np.array([op, (op + 1) % 3, op]), np.float32([factor, 1.3, 1.0])
    ours = x.clone()
    blend_(ours.flatten(2), *map(torch.from_numpy, blend_weights(factors, ops == 2, ops == 1)))
    adjust = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation)
    for i in range(3):
        theirs = adjust[ops[i]](x[i], factors[i].item())
        torch.testing.assert_close(ours[i], theirs, atol=1e-6, rtol=0)
    assert ours[2].equal(x[2]), "a factor of 1 changes nothing"


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_normalization_is_equal_in_either_memory_layout(layout: torch.memory_format) -> None:
    x = torch.rand(4, 3, 5, 7, generator=gen(18))
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6])
    expected = (x - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert normalize_(x.contiguous(memory_format=layout), mean, std).equal(expected)
