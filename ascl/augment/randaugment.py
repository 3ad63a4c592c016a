"""RandAugment of a whole batch on its device, with separate operations for each sample.

Cubuk et al., RandAugment: Practical automated data augmentation with a reduced search space, 2019,
https://arxiv.org/abs/1909.13719.

The operations and magnitudes are torchvision's for floats in [0, 1], with its defaults: geometric
operations use the nearest pixel and fill with black. As with all views, random parameters are drawn
beforehand and only applied here. Samples with the same kind of operation are processed together.

Shapes: N = samples, T = their operations, M = samples with one kind of operation, S = side of the
images.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ascl.augment.color import blend_, blend_weights

OPS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness"),
    *("posterize", "solarize", "auto_contrast", "equalize"),
)
KINDS = ("none", "move", "blend", *OPS[9:])
"""Kinds of operations that are one pass: all geometric ones, and all of the form of `blend_`."""
KIND_OF = np.array([0, *[1] * 5, *[2] * 3, 3, 4, 5, 6, 7])  # index of the kind of each of `OPS`
COMMON = 0.1  # below 1/7, so that a kind is always common; less: fewer turns, more: fewer calls
TOP = 30  # the largest magnitude; the following constants are the values at this magnitude
SHEAR = 0.3  # slope
TRANSLATE = 150 / 331  # fraction of the side
ROTATE = math.radians(30)
BLEND = 0.9  # distance of the brightness, color, contrast and sharpness factors from 1
POSTERIZE = 4  # bits removed from 8
LEVELS = 255.999  # gray levels as in torchvision: 256 equal steps over [0, 1]


@dataclass(frozen=True)
class Turns:
    """Operations on samples, which each turn sorts so that every kind is a contiguous part.

    The parameters are those of all parts of all turns, one after the other.
    """

    parts: tuple[tuple[tuple[str, int], ...], ...]  # kinds and numbers of samples of each turn
    orders: tuple[Tensor, ...]  # (N,) indices into the samples of the previous turn; one restores
    grid: Tensor  # (T,) index into `affine_grids`; valid for geometric operations only
    factor: Tensor  # (T, 1, 1) arguments of `blend_`; the factor is also that of sharpness
    pixel: Tensor  # (T, 1, 3)
    mean: Tensor  # (T, 1, 3)


def plan_turns(ops: np.ndarray, backwards: np.ndarray, magnitude: int) -> Turns:
    """Sort operations into turns.

    A turn applies the next operation of every sample, except for rare kinds: they wait until they
    come next for at least `COMMON` of the samples with the most operations left. They are then
    applied to more samples at once, which takes fewer calls.

    Args:
        ops: Indices (N, rounds) into `OPS`.
        backwards: Mask (N, rounds) that reverses operations with a direction.
        magnitude: Strength, from 0 to `TOP`.
    """
    drawn = np.argsort(ops == 0, axis=1, kind="stable")  # identities last: they end a sample
    ops, backwards = (np.take_along_axis(x, drawn, axis=1) for x in (ops, backwards))
    kinds = np.pad(KIND_OF[ops], ((0, 0), (0, 1)))
    samples = np.arange(len(ops))
    place, done, left = samples.copy(), np.zeros_like(samples), (ops > 0).sum(axis=1)
    parts, orders, chosen, rounds = [], [], [samples[:0]], [samples[:0]]
    while (most := left.max(initial=0)) > 0:
        kind = kinds[samples, done]
        common = np.bincount(kind[left == most], minlength=len(KINDS))
        kind[common[kind] < COMMON * common.sum()] = 0
        last = (kind - 1) % len(KINDS)  # samples that wait come last
        order = np.argsort(last, kind="stable")
        counts = np.bincount(last, minlength=len(KINDS))[:-1].tolist()
        parts.append(tuple((KINDS[i + 1], n) for i, n in enumerate(counts) if n))
        orders.append(place[order])
        place[order] = samples
        active = order[: sum(counts)]
        chosen.append(active)
        rounds.append(done[active])
        done[active] += 1
        left[active] -= 1
    at = np.concatenate(chosen), np.concatenate(rounds)
    op, sign = ops[at], 1 - 2 * backwards[at].astype(np.float32)
    blends = blend_weights(
        1 + BLEND * magnitude / TOP * sign, op == OPS.index("color"), op == OPS.index("contrast")
    )
    return Turns(
        tuple(parts),
        tuple(map(torch.from_numpy, (*orders, place))),
        torch.from_numpy(op - OPS.index("shear_x") + 5 * (sign < 0)),
        *map(torch.from_numpy, blends),
    )


def rand_augment_(images: Tensor, turns: Turns, grids: Tensor, magnitude: int) -> None:
    """Apply RandAugment in place.

    Args:
        images: Floats (N, 3, S, S) in [0, 1].
        turns: Operations, with tensors on the images' device.
        grids: `affine_grids` on the images' device.
        magnitude: Strength, from 0 to `TOP`.
    """
    reach, sorted_, stop = magnitude / TOP, images, 0
    *orders, restore = turns.orders
    for parts, order in zip(turns.parts, orders, strict=True):
        sorted_ = sorted_.index_select(0, order)
        rest = sorted_
        for kind, count in parts:
            group, rest = rest[:count], rest[count:]
            part = slice(stop, stop := stop + count)
            match kind:
                case "move":
                    grid = grids.index_select(0, turns.grid[part])
                    group[:] = F.grid_sample(group, grid, mode="nearest", align_corners=False)
                case "blend":
                    pixel, mean = turns.pixel[part], turns.mean[part]
                    blend_(group.flatten(2), turns.factor[part], pixel, mean)
                case "sharpness":
                    _sharpen_(group, turns.factor[part].unsqueeze(3))
                case "posterize":
                    _posterize_(group, reach)
                case "solarize":
                    _solarize_(group, reach)
                case "auto_contrast":
                    _auto_contrast_(group)
                case "equalize":
                    _equalize_(group)
    if turns.parts:
        torch.index_select(sorted_, 0, restore, out=images)


def affine_matrices(reach: float, side: int) -> Tensor:
    """Return sampling matrices (2, 5, 2, 3): forward and backward, in the order of `OPS`.

    Coordinates run from −1 to 1. A shear keeps the upper left corner fixed, a rotation the center.
    """
    matrices = []
    for sign in (1, -1):
        a, angle = sign * SHEAR * reach, sign * ROTATE * reach
        t = sign * math.trunc(TRANSLATE * side * reach) * 2 / side  # whole pixels
        c, s = math.cos(angle), math.sin(angle)
        shears = [[1, a, a], [0, 1, 0]], [[1, 0, 0], [a, 1, a]]
        shifts = [[1, 0, -t], [0, 1, 0]], [[1, 0, 0], [0, 1, -t]]
        matrices.append([*shears, *shifts, [[c, -s, 0], [s, c, 0]]])
    return torch.tensor(matrices)


def affine_grids(magnitude: int, side: int) -> Tensor:
    """Return the points (10, S, S, 2) that the geometric operations sample, in both directions."""
    matrices = affine_matrices(magnitude / TOP, side).flatten(0, 1)
    return F.affine_grid(matrices, [len(matrices), 1, side, side], align_corners=False)


def _sharpen_(images: Tensor, factor: Tensor) -> None:
    """f·x + (1 − f)·mean of the 3 × 3 neighbors, with weight 5 for the center; keep the border."""
    lines = images[..., :-2, :] + images[..., 1:-1, :]
    lines += images[..., 2:, :]
    soft = lines[..., :-2] + lines[..., 1:-1]
    inner = images[..., 1:-1, 1:-1]
    soft.add_(lines[..., 2:]).add_(inner, alpha=4).div_(13)
    torch.lerp(soft, inner, factor, out=inner)
    images.clamp_(0, 1)


def _posterize_(images: Tensor, reach: float) -> None:
    levels = 2 ** (8 - round(POSTERIZE * reach))
    images.mul_(levels).floor_().clamp_(0, levels - 1).div_(levels)


def _solarize_(images: Tensor, reach: float) -> None:
    """Invert pixels from a threshold on: |x − 1|."""
    bright = torch.ge(images, 1 - reach, out=torch.empty_like(images))
    images.sub_(bright).abs_()


def _auto_contrast_(images: Tensor) -> None:
    """Stretch each channel to [0, 1]; constant channels are unchanged."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    flat = low == high
    width = (high - low).masked_fill_(flat, 1)
    images.sub_(low.masked_fill_(flat, 0)).div_(width)


def _equalize_(images: Tensor) -> None:
    """Equalize the histogram of each channel with PIL's integer arithmetic.

    The step is 1/255 of the pixels that are not at the highest level. A level becomes the number of
    darker pixels divided by the step; a channel with step 0 is unchanged. The integers are exact as
    floats, whose divisions take a tenth of the time on a CPU.
    """
    pixels = images.mul_(LEVELS).long().flatten(2)  # (M, 3, S²)
    one = images.new_ones(1, 1, 1).expand_as(pixels)
    counts = images.new_zeros(*pixels.shape[:2], 256).scatter_add_(2, pixels, one)
    darker = counts.cumsum(dim=2).sub_(counts)
    # The pixels darker than the brightest one are those that are not at the highest level.
    step = darker.gather(2, pixels.amax(dim=2, keepdim=True)).floor_divide_(255)  # (M, 3, 1)
    table = (darker + step / 2).div_(step.clamp(min=1)).floor_().clamp_(max=255)
    levels = torch.arange(256.0, device=table.device)
    table = torch.where(step > 0, table, levels).div_(255)
    torch.gather(table, 2, pixels, out=images.flatten(2))
