"""RandAugment of a whole batch at once, on its device: every sample takes its own operations.

The operations and their magnitudes are torchvision's for floats in [0, 1], with its defaults:
geometry takes the nearest pixel and fills with black. As with all views, what is random is drawn
beforehand, and here it is only applied; samples at the same operation go through it together.

Shapes: N = batch, M = samples at one operation, S = side of the pictures.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ascl.colour import grey_of

OPS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "colour", "contrast", "sharpness"),
    *("posterise", "solarise", "auto_contrast", "equalise"),
)
TOP = 30  # the largest magnitude, where operations come to what follows
SHEAR = 0.3  # slope
TRANSLATE = 150 / 331  # share of the side
ROTATE = math.radians(30)
BLEND = 0.9  # how far brightness, colour, contrast and sharpness leave 1
POSTERISE = 4  # bits taken from 8
LEVELS = 255.999  # grey levels as torchvision counts them: [0, 1] is cut into 256 equal steps


def rand_augment_(images: Tensor, ops: Tensor, backwards: Tensor, magnitude: int) -> Tensor:
    """Put pictures (N, 3, S, S) in [0, 1] through the operations (N, rounds), in place.

    `ops` are places in `OPS`; `backwards` turns those round that have a direction. Both are on the
    CPU, so that which samples go together is known without asking the device.
    """
    device, reach = images.device, magnitude / TOP
    for op, back in zip(ops.unbind(dim=1), backwards.unbind(dim=1), strict=True):
        for first, last, apply in _PASSES:
            chosen = ((op >= first) & (op <= last)).nonzero().squeeze(1)
            if len(chosen):
                at = chosen.to(device)
                sign = 1 - 2 * back[chosen].float()
                group = images.index_select(0, at)  # on the CPU thrice as fast as images[at]
                images[at] = apply(group, op[chosen], sign, reach)
    return images


def affine_matrices(reach: float, side: int) -> Tensor:
    """Where pixels come from (2, 5, 2, 3): forwards and backwards, in the order of `OPS`.

    Coordinates run from −1 to 1. A shear leaves the upper left corner in place, a turn the centre.
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


def _move(images: Tensor, op: Tensor, sign: Tensor, reach: float) -> Tensor:
    side = images.shape[-1]
    matrices = affine_matrices(reach, side).flatten(0, 1).to(images.device)
    # Ten grids whatever the batch: to compute one for each sample takes most of the time.
    grids = F.affine_grid(matrices, [len(matrices), 1, side, side], align_corners=False)
    place = (op - OPS.index("shear_x")) + 5 * (sign < 0)
    grid = grids.index_select(0, place.to(images.device))
    return F.grid_sample(images, grid, mode="nearest", align_corners=False)


def _blend(images: Tensor, op: Tensor, sign: Tensor, reach: float) -> Tensor:
    """f·x + (1 − f)·reference: black for brightness, the grey for colour, its mean for contrast."""
    factor, op = (x.view(-1, 1, 1, 1).to(images.device) for x in (1 + BLEND * reach * sign, op))
    grey = grey_of(images)
    mean = grey.mean(dim=(2, 3), keepdim=True) * (op == OPS.index("contrast"))
    reference = torch.where(op == OPS.index("colour"), grey, mean)
    return images.mul_(factor).add_((1 - factor) * reference).clamp_(0, 1)


def _sharpen(images: Tensor, op: Tensor, sign: Tensor, reach: float) -> Tensor:
    factor = (1 + BLEND * reach * sign).view(-1, 1, 1, 1).to(images.device)
    return smoothed(images).lerp_(images, factor).clamp_(0, 1)


def smoothed(images: Tensor) -> Tensor:
    """The mean of each pixel's neighbourhood, itself counted five times; the edge as it is."""
    lines = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    box = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:]
    out = images.clone()
    out[..., 1:-1, 1:-1].mul_(4).add_(box).div_(13)
    return out


def _posterise(images: Tensor, op: Tensor, sign: Tensor, reach: float) -> Tensor:
    levels = 2 ** (8 - round(POSTERISE * reach))
    return images.mul_(levels).floor_().clamp_(0, levels - 1).div_(levels)


def _solarise(images: Tensor, op: Tensor, sign: Tensor, reach: float) -> Tensor:
    return torch.where(images >= 1 - reach, 1 - images, images)


def _auto_contrast(images: Tensor, op: Tensor, sign: Tensor, reach: float) -> Tensor:
    """Stretch each channel to [0, 1]; a flat one stays."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    flat = low == high
    low, width = low.masked_fill_(flat, 0), (high - low).masked_fill_(flat, 1)
    return images.sub_(low).div_(width).clamp_(0, 1)


def _equalise(images: Tensor, op: Tensor, sign: Tensor, reach: float) -> Tensor:
    """Spread each channel's grey levels evenly, in PIL's whole-number way.

    A level becomes the number of darker pixels over a 255th of those that are not at the highest
    level; where that is less than one pixel the channel keeps its levels.
    """
    pixels = images.mul_(LEVELS).long().flatten(2)  # (M, 3, S²)
    counts = pixels.new_zeros(*pixels.shape[:2], 256)
    counts.scatter_add_(2, pixels, torch.ones_like(pixels))
    top = counts.gather(2, pixels.amax(dim=2, keepdim=True))
    step = (pixels.shape[2] - top) // 255  # (M, 3, 1)
    darker = counts.cumsum(dim=2) - counts
    table = ((darker + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=table.device))
    return table.gather(2, pixels).view_as(images).float().div_(255)


_Pass = Callable[[Tensor, Tensor, Tensor, float], Tensor]
_PASSES: tuple[tuple[int, int, _Pass], ...] = tuple(
    (OPS.index(first), OPS.index(last), apply)
    for first, last, apply in (
        ("shear_x", "rotate", _move),
        ("brightness", "contrast", _blend),
        ("sharpness", "sharpness", _sharpen),
        ("posterise", "posterise", _posterise),
        ("solarise", "solarise", _solarise),
        ("auto_contrast", "auto_contrast", _auto_contrast),
        ("equalise", "equalise", _equalise),
    )
)
"""What goes through together: the first and the last of neighbours in `OPS`, and how."""
