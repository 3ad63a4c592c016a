"""Crops, resizes and blurs of a batch of images, with separate parameters for each image.

Both directions are weighted sums of lines. The first direction sums whole rows, and its cost is
that of the weights other than zero. The second is a product with a matrix for each image, because
sums of columns would need two transpositions, which take longer.

Shapes: N = images, R = crops, T = taps, the points that contribute to a point; H × W = stored
image, S = side of the view.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BLUR_RADIUS = 6  # three sigmas of the widest blur
BLUR_BLOCK = 32  # lines per block; smaller blocks waste less work, larger ones multiply faster


@dataclass(frozen=True)
class Crops:
    """Parts of images to resize and flip."""

    pictures: Tensor  # (N,) index of the stored images
    resizes: Tensor  # (2R,) entries of `resize_table`: columns of each crop, then rows of each crop
    left: Tensor  # (R, 1) first column
    top: Tensor  # (R, 3, 1) first row of each channel, among the rows of all channels and images


def plan_crops(
    pictures: np.ndarray,
    samples: np.ndarray,
    boxes: np.ndarray,
    flip: np.ndarray,
    stored: tuple[int, int],
) -> Crops:
    """Plan crops from boxes in pixels.

    Args:
        pictures: Indices (N,) of the stored images.
        samples: For each crop the index into `pictures` (R,).
        boxes: Top, left, height and width (R, 4) of each crop.
        flip: Whether to flip each crop (R,).
        stored: Height and width of the images.
    """
    top, left, height, width = boxes.T
    resizes = np.concatenate((width + max(stored) * flip, height)) - 1
    rows = stored[0] * (3 * samples[:, None] + np.arange(3)) + top[:, None]
    arrays = pictures, resizes, left[:, None], rows[..., None]
    return Crops(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))


def resize_table(source: int, size: int) -> tuple[Tensor, Tensor]:
    """Return how to resize the first 1, 2, … points of a line to `size` points.

    Bilinear with antialiasing: a triangle filter, wider if the crop is larger than the view.

    Args:
        source: Length of the whole line.
        size: Length of the result.

    Returns:
        The taps (2·source, size·T) and their weights; the second half of the entries is flipped.
    """
    length = torch.arange(1, source + 1).view(-1, 1, 1)
    step = length / size
    support = step.clamp(min=1)
    center = step * torch.arange(0.5, size).view(-1, 1)
    first = (center - support + 0.5).floor()
    taps = first + torch.arange(math.ceil(2 * max(1, source / size)))
    weights = (1 - (taps + 0.5 - center).abs() / support).clamp(min=0)
    # Exclude points outside the crop, because the image is cropped before it is resized.
    inside = taps.clamp(min=0).minimum(length - 1)
    weights *= inside == taps
    weights /= weights.sum(dim=2, keepdim=True)

    def with_flipped(x: Tensor) -> Tensor:
        return torch.cat((x, x.flip(1))).flatten(1)

    return with_flipped(inside.long()), with_flipped(weights)


def crop(images: Tensor, crops: Crops, table: tuple[Tensor, Tensor], out: Tensor) -> None:
    """Crop, resize and flip uint8 images to floats in [0, 1].

    Args:
        images: Stored images (M, 3, H, W).
        crops: What to do, with tensors on the images' device.
        table: `resize_table` for these sizes, on the same device.
        out: Images (R, 3, S, S) to overwrite.
    """
    count, _, size, _ = out.shape
    width = images.shape[3]
    (across, down), (across_weights, down_weights) = (
        x.index_select(0, crops.resizes).split(count) for x in table
    )
    rows = images.index_select(0, crops.pictures).view(-1, width).float()
    taps = (down.unsqueeze(1) + crops.top).view(count, 3, size, -1)
    rows = sum_rows(rows, taps, down_weights.view(count, 1, size, -1))
    columns = rows.new_zeros(count, size, width)
    taps = (across + crops.left).view(count, size, -1)
    columns.scatter_add_(2, taps, across_weights.div_(255).view_as(taps))
    lines = rows.view(count, -1, width)
    torch.bmm(lines, columns.mT, out=out.view(count, -1, size))


def sum_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums of rows of a table (rows, columns).

    Args:
        table: Floats.
        rows: Indices (..., T) of the rows of each sum.
        weights: Weights of the rows; broadcast to the shape of `rows`.
    """
    bags = rows.flatten(0, -2)
    weights = weights.expand_as(rows).reshape(bags.shape)
    return F.embedding_bag(bags, table, mode="sum", per_sample_weights=weights)


def blur_kernels(sigma: np.ndarray) -> np.ndarray:
    """Return Gaussian kernels (N, 2·BLUR_RADIUS + 1), normalized, for widths (N,) in pixels."""
    offset = np.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, dtype=np.float32)
    kernels = np.exp(-0.5 * (offset / sigma[:, None]) ** 2)
    return np.asarray(kernels / kernels.sum(axis=1, keepdims=True))


def blur_taps(size: int) -> Tensor:
    """Return the points (S, T) that contribute to each point of a blurred line, with mirrored
    borders."""
    if size <= BLUR_RADIUS:
        raise ValueError(f"views with blur must be larger than {BLUR_RADIUS} pixels, got {size}")
    taps = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1)
    points = (torch.arange(size).view(-1, 1) + taps).abs()  # mirror at the left edge
    return torch.where(points >= size, 2 * (size - 1) - points, points)  # and at the right


def blur(planes: Tensor, chosen: Tensor, kernels: Tensor, taps: Tensor, out: Tensor) -> None:
    """Blur some images with a separate Gaussian kernel for each.

    Args:
        planes: Floats (P, S, S), three planes for each image.
        chosen: Planes (3N,) of the images to blur.
        kernels: Kernels (N, T).
        taps: `blur_taps(S)` on the same device.
        out: Planes (3N, S, S) to overwrite.
    """
    count, size = len(kernels), planes.shape[-1]
    rows = taps + size * chosen.view(count, 3, 1, 1)
    down = sum_rows(planes.view(-1, size), rows, kernels.view(count, 1, 1, -1))
    down, out = down.view(count, 3 * size, size), out.view(count, 3 * size, size)
    matrices = kernels.new_zeros(count, size, size)
    kernels = kernels.unsqueeze(1).expand(-1, size, -1)
    matrices.scatter_add_(2, taps.expand(count, -1, -1), kernels)
    # In blocks of columns within reach of the blur: at 224 pixels a fifth of the full product.
    for start in range(0, size, BLUR_BLOCK):
        block = slice(start, start + BLUR_BLOCK)
        near = slice(max(0, start - BLUR_RADIUS), start + BLUR_BLOCK + BLUR_RADIUS)
        torch.bmm(down[:, :, near], matrices[:, block, near].mT, out=out[:, :, block])
