"""Plans: everything about the views of a batch that depends only on the random draws.

The host makes a plan before any image is processed. Its tensors then move to the device in one
copy, and its numbers stay on the host, so that no operation waits for an answer from the device.

The views of one size are made together, as rows of one buffer: first the rows with color jitter,
sorted by their order of operations, then those without, last those with RandAugment. Each operation
therefore applies to a contiguous part. Grayscale and blur append planes (one channel of one row) to
the buffer, and a last step collects the planes of all views in the order of the batch.

Shapes: N = batch, V = views, R = V·N rows, J = rows with color jitter, G = gray rows, B = blurred
rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ascl.augment.color import blend_weights, hue_shifts
from ascl.augment.randaugment import Turns, plan_turns
from ascl.augment.resample import Crops, blur_kernels, plan_crops
from ascl.augment.views import ViewDraw, ViewSpec, crop_boxes


@dataclass(frozen=True)
class Plan:
    """How to make the views of one size. All tensors are on the CPU, or all on the device."""

    rows: int
    source: Crops | Tensor  # crops; or the image of each row (R,), if images are already cropped
    starts: tuple[int, ...]  # arguments of `jitter_`
    factor: Tensor  # (3, J, 1, 1)
    pixel: Tensor  # (3, J, 1, 3)
    mean: Tensor  # (3, J, 1, 3)
    shifts: Tensor  # (J, 3, 1)
    turns: Turns | None  # of RandAugment, for the last rows
    gray: Tensor  # (G,) rows
    blurred: Tensor  # (3B,) planes
    kernels: Tensor  # (B, taps)
    planes: Tensor | None  # (3R,) planes of the views; None if they are in order


def plan_views(
    draws: Sequence[ViewDraw],
    specs: Sequence[ViewSpec],
    pictures: np.ndarray,
    stored: tuple[int, int] | None,
) -> Plan:
    """Plan views of one size.

    Args:
        draws: Random parameters of each view.
        specs: Parameters of each view, with the same size, `num_ops` and `magnitude`.
        pictures: Indices (N,) of the batch's images.
        stored: Height and width of the images; None if they are already cropped.
    """
    count = len(pictures)
    strong, stronger = (
        np.repeat([spec.kind == kind for spec in specs], count) for kind in ("strong", "stronger")
    )
    drawn = _stack(draws, "order")
    blends_first = (drawn == 3).argmax(axis=1)  # blends before the hue shift
    kind = np.where(strong & _stack(draws, "jitter"), blends_first, 4 + stronger)
    order = kind.argsort(kind="stable")
    row = np.empty_like(order)
    row[order] = np.arange(len(order))
    *starts, jittered = np.searchsorted(kind[order], (1, 2, 3, 4)).tolist()

    first = order[:jittered]
    blends = drawn[first][drawn[first] != 3].reshape(-1, 3)  # without the hue shift
    blends = np.ascontiguousarray(blends.T)
    factors = _stack(draws, "factor")[first, blends]
    factor, pixel, mean = blend_weights(factors, blends == 2, blends == 1)

    gray = strong & _stack(draws, "gray")
    blurred = np.flatnonzero(_stack(draws, "sigma") * strong)
    planes, end = 3 * row[:, None] + np.arange(3), 3 * len(row)
    gray_planes = np.arange(end, end + np.count_nonzero(gray))
    planes[gray] = gray_planes[:, None]
    sources = planes[blurred].ravel()
    planes[blurred] = end + len(gray_planes) + np.arange(len(sources)).reshape(-1, 3)
    in_order = not (jittered or gray.any() or len(blurred) or stronger.any())

    return Plan(
        rows=len(order),
        source=_source(draws, pictures, order, stored),
        starts=tuple(starts),
        factor=torch.from_numpy(factor),
        pixel=torch.from_numpy(pixel),
        mean=torch.from_numpy(mean),
        shifts=torch.from_numpy(hue_shifts(_stack(draws, "hue")[first])),
        turns=_turns(draws, specs),
        gray=torch.from_numpy(row[gray]),
        blurred=torch.from_numpy(sources),
        kernels=torch.from_numpy(blur_kernels(_stack(draws, "sigma")[blurred])),
        planes=None if in_order else torch.from_numpy(planes.ravel()),
    )


def _stack(draws: Sequence[ViewDraw], name: str) -> np.ndarray:
    return np.concatenate([getattr(draw, name) for draw in draws])


def _source(
    draws: Sequence[ViewDraw],
    pictures: np.ndarray,
    order: np.ndarray,
    stored: tuple[int, int] | None,
) -> Crops | Tensor:
    samples = order % len(pictures)
    if stored is None:
        return torch.from_numpy(pictures[samples])
    boxes = crop_boxes(_stack(draws, "crop"), _stack(draws, "place"), *stored)
    flip = _stack(draws, "flip")
    return plan_crops(pictures, samples, boxes[order], flip[order], stored)


def _turns(draws: Sequence[ViewDraw], specs: Sequence[ViewSpec]) -> Turns | None:
    """Plan RandAugment for the stronger views."""
    own = [draw for draw, spec in zip(draws, specs, strict=True) if spec.kind == "stronger"]
    if not own:
        return None
    return plan_turns(_stack(own, "ops"), _stack(own, "backwards"), specs[0].magnitude)
