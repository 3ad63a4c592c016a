"""Crops and blurs against torchvision's with the same parameters, and their plain formulas."""

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.augment.resample import (
    BLUR_RADIUS,
    blur,
    blur_kernels,
    blur_taps,
    crop,
    plan_crops,
    resize_table,
    sum_rows,
)
from tests.ascl.augment.test_views import gen, pictures


def cropped(images: Tensor, boxes: list[list[int]], flip: list[bool], size: int) -> Tensor:
    """One crop of each image."""
    height, width = images.shape[2:]
    every = np.arange(len(images))
    crops = plan_crops(every, every, np.array(boxes), np.array(flip), (height, width))
    out = torch.empty(len(images), 3, size, size)
    crop(images, crops, resize_table(max(height, width), size), out)
    return out


@given(
    height=st.integers(5, 40),
    width=st.integers(5, 40),
    size=st.integers(5, 40),
    seed=st.integers(0, 99),
)
def test_crops_are_torchvisions_resized_crops(
    height: int, width: int, size: int, seed: int
) -> None:
    g = gen(seed)
    images = torch.randint(0, 256, (6, 3, height, width), dtype=torch.uint8, generator=g)
    boxes = []
    for _ in images:
        h, w = (int(torch.randint(1, side + 1, (), generator=g)) for side in (height, width))
        top = int(torch.randint(0, height - h + 1, (), generator=g))
        left = int(torch.randint(0, width - w + 1, (), generator=g))
        boxes.append([top, left, h, w])
    flip = [i % 2 == 1 for i in range(6)]
    ours = cropped(images, boxes, flip, size)
    for i, box in enumerate(boxes):
        theirs = TF.resized_crop(images[i].float() / 255, *box, [size, size], antialias=True)
        theirs = TF.horizontal_flip(theirs) if flip[i] else theirs
        torch.testing.assert_close(ours[i], theirs, atol=3e-6, rtol=0)


@pytest.mark.parametrize(("source", "size"), [(32, 32), (96, 64), (7, 20), (20, 7)])
def test_a_resize_is_a_triangle_filter_over_the_points_of_the_crop(source: int, size: int) -> None:
    taps, weights = (x.view(2 * source, size, -1) for x in resize_table(source, size))
    for length in {1, 2, source // 2, source - 1, source}:
        step = length / size
        support = max(step, 1.0)
        for i in range(size):
            center = (i + 0.5) * step
            plain = [max(0.0, 1 - abs(p + 0.5 - center) / support) for p in range(length)]
            expected = torch.tensor(plain) / sum(plain)
            for entry, point in ((length - 1, i), (source + length - 1, size - 1 - i)):
                ours = torch.zeros(length).scatter_add_(
                    0, taps[entry, point], weights[entry, point]
                )
                torch.testing.assert_close(ours, expected, atol=2e-6, rtol=0)


def test_a_crop_of_the_whole_image_is_the_image() -> None:
    images = pictures(4, 32)
    out = cropped(images, [[0, 0, 32, 32]] * 4, [False, True, False, True], 32)
    expected = images.float() / 255
    expected[1::2] = expected[1::2].flip(3)
    torch.testing.assert_close(out, expected, atol=6e-8, rtol=0)


@given(seed=st.integers(0, 99), taps=st.integers(1, 5))
def test_sums_of_rows_are_the_plain_formula(seed: int, taps: int) -> None:
    g = gen(seed)
    table, weights = torch.rand(9, 4, generator=g), torch.rand(3, 1, taps, generator=g)
    rows = torch.randint(0, 9, (3, 2, taps), generator=g)
    ours = sum_rows(table, rows, weights).view(3, 2, 4)
    for i in range(3):
        for j in range(2):
            plain = sum(weights[i, 0, t] * table[rows[i, j, t]] for t in range(taps))
            torch.testing.assert_close(ours[i, j], plain)


@pytest.mark.parametrize("size", [7, 14, 32, 33, 64, 100])
def test_blur_is_torchvisions_gaussian_with_mirrored_borders(size: int) -> None:
    x = torch.rand(8, 3, size, size, generator=gen(3))
    sigma, chosen = np.float32([0.1, 0.5, 1.0, 1.7, 2.0]), torch.tensor([6, 0, 3, 1, 7])
    planes = 3 * chosen.view(-1, 1) + torch.arange(3)
    out = torch.empty(15, size, size)
    kernels = torch.from_numpy(blur_kernels(sigma))
    blur(x.flatten(0, 1), planes.flatten(), kernels, blur_taps(size), out)
    for ours, i, s in zip(out.view(5, 3, size, size), chosen.tolist(), sigma.tolist(), strict=True):
        theirs = TF.gaussian_blur(x[i], [13, 13], [s, s])
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_blur_kernel_is_a_normalized_gaussian() -> None:
    (kernel,) = blur_kernels(np.float32([1.3]))
    plain = [math.exp(-(x**2) / (2 * 1.3**2)) for x in range(-BLUR_RADIUS, BLUR_RADIUS + 1)]
    assert kernel.tolist() == pytest.approx([x / sum(plain) for x in plain], rel=1e-6)


def test_views_too_small_for_a_blur_are_refused() -> None:
    with pytest.raises(ValueError, match="must be larger than 6 pixels, got 6"):
        blur_taps(6)
