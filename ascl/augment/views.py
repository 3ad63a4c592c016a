"""Views: what is drawn for the random crops and color distortions of a batch.

Every sample has its own random parameters. `draw_view` draws them on the CPU from the caller's
generator before any image is processed; `ascl.augment.maker` applies them. The same seed therefore
gives the same views on any device, in any arm of an ablation and on any number of ranks: each rank
draws for the whole batch and keeps its share.

Shapes: N = batch, H × W = stored image.
"""

import math
from dataclasses import dataclass, fields, replace
from itertools import accumulate

import numpy as np
import torch

from ascl.augment.randaugment import OPS

BLUR_SIGMA = (0.1, 2.0)
CROP_RATIO = (3 / 4, 4 / 3)
CROP_TRIES = 10  # candidates per crop before the fallback to the whole image, as in torchvision
SMALL_SIDE = 3 / 7  # of the side of a full view: 96 of 224 in SwAV
SMALL_LEAST = 12  # pixels; fewer are too few for a network that halves the side three times
# Smallest area of a small crop relative to `crop_min`, its largest area. SwAV's small crops take
# 0.05–0.14 of an ImageNet image, its full crops 0.14–1.
SMALL_AREA = 5 / 14


@dataclass(frozen=True)
class ViewSpec:
    """Parameters of a view. `weak` is crop and flip; `strong` adds color jitter, grayscale and
    blur; `stronger` adds RandAugment to `weak`, as in CLSA."""

    kind: str
    size: int
    crop_min: float = 0.2
    crop_max: float = 1.0
    strength: float = 0.8
    """Color distortion: brightness, contrast, saturation 0.8·s and hue 0.2·s, as in SimCLR."""
    jitter_share: float = 0.8
    gray_share: float = 0.2
    blur_share: float = 0.5
    num_ops: int = 5
    """Operations of a stronger view; CLSA uses 5 at magnitude 10."""
    magnitude: int = 10


def small_view(spec: ViewSpec) -> ViewSpec:
    """Return a small view of a small part of the image (SwAV's multi-crop)."""
    size = round(SMALL_SIDE * spec.size)
    if size < SMALL_LEAST:
        least = math.ceil((SMALL_LEAST - 0.5) / SMALL_SIDE)
        raise ValueError(f"small crops need full views of at least {least} pixels, got {spec.size}")
    return replace(spec, size=size, crop_min=SMALL_AREA * spec.crop_min, crop_max=spec.crop_min)


@dataclass(frozen=True)
class ViewDraw:
    """Random parameters of a batch of views, all on the CPU; row i belongs to sample i."""

    crop: np.ndarray  # (N, CROP_TRIES, 2) relative area and aspect ratio of each candidate
    place: np.ndarray  # (N, 2) relative position of the crop, in [0, 1)
    flip: np.ndarray  # (N,) bool
    jitter: np.ndarray  # (N,) bool
    factor: np.ndarray  # (N, 3) brightness, contrast, saturation
    hue: np.ndarray  # (N,) shift in turns
    order: np.ndarray  # (N, 4) a permutation of 0 brightness, 1 contrast, 2 saturation, 3 hue
    gray: np.ndarray  # (N,) bool
    sigma: np.ndarray  # (N,) blur width in pixels; 0 = not blurred
    ops: np.ndarray  # (N, num_ops) indices into RandAugment's OPS, in order of application
    backwards: np.ndarray  # (N, num_ops) bool: reverse the direction of the operation

    def __getitem__(self, part: slice | np.ndarray) -> "ViewDraw":
        return ViewDraw(*(getattr(self, f.name)[part] for f in fields(self)))


NUMBERS = (2 * CROP_TRIES, 2, 1, 1, 3, 1, 4, 1, 1, 1)
"""Uniform numbers per sample for crop, place, flip, jitter, factor, hue, order, gray, blur and
sigma, in this order. The numbers of the whole batch for one parameter follow each other."""


def draw_view(
    spec: ViewSpec, count: int, generator: torch.Generator, part: slice = slice(None)
) -> ViewDraw:
    """Draw the parameters of `count` views; the random numbers do not depend on the spec's values.

    This pairs arms: two runs that differ in `strength` see the same crops, and the larger
    distortion is a scaled version of the smaller one. Only a stronger view draws more numbers,
    after all others. Uses NumPy, whose overhead per operation is a third of PyTorch's.

    Args:
        spec: Parameters of the view.
        count: Size of the batch.
        generator: Source of the random numbers of this view.
        part: The samples to return: this rank's share.
    """
    # One call draws the same numbers as one call for each parameter.
    numbers = torch.rand(count * sum(NUMBERS), generator=generator).numpy()
    blocks = np.split(numbers, [count * end for end in accumulate(NUMBERS[:-1])])
    crop, place, flip, jitter, factor, hue, order, gray, blur, sigma = (
        block.reshape(count, -1)[part] for block in blocks
    )
    num_ops = spec.num_ops if spec.kind == "stronger" else 0
    ops = torch.randint(len(OPS), (count, num_ops), generator=generator).numpy()[part]
    backwards = torch.rand(count, num_ops, generator=generator).numpy()[part] < 0.5

    area = spec.crop_min + (spec.crop_max - spec.crop_min) * crop[:, ::2]
    low, high = (math.log(r) for r in CROP_RATIO)
    # PyTorch's exponential, which may round otherwise than NumPy's: earlier versions drew with it.
    ratio = torch.from_numpy(low + (high - low) * crop[:, 1::2]).exp_().numpy()
    reach = 0.8 * spec.strength
    least = max(0.0, 1 - reach)  # clipped at 0, as in torchvision
    width = BLUR_SIGMA[0] + (BLUR_SIGMA[1] - BLUR_SIGMA[0]) * sigma[:, 0]
    return ViewDraw(
        crop=np.stack((area, ratio), axis=-1),
        place=place,
        flip=flip[:, 0] < 0.5,
        jitter=jitter[:, 0] < spec.jitter_share,
        factor=least + (1 + reach - least) * factor,
        hue=0.2 * spec.strength * (2 * hue[:, 0] - 1),
        order=order.argsort(axis=1),
        gray=gray[:, 0] < spec.gray_share,
        sigma=width * (blur[:, 0] < spec.blur_share),
        ops=ops,
        backwards=backwards,
    )


def crop_boxes(crop: np.ndarray, place: np.ndarray, height: int, width: int) -> np.ndarray:
    """Convert draws to integer boxes (N, 4), as in RandomResizedCrop.

    The box is the first candidate that fits inside the image; if none fits, the largest centered
    box within the allowed aspect ratios. Uses NumPy, because loader workers process one image at a
    time, where PyTorch's overhead per operation would add up to half of the decoding time.

    Args:
        crop: `ViewDraw.crop`.
        place: `ViewDraw.place`.
        height: Height of the images.
        width: Width of the images.

    Returns:
        Top, left, height and width of each box.
    """
    ratio = crop[..., 1]
    area = crop[..., 0] * height * width
    w = np.sqrt(area * ratio).round().astype(np.int64)  # (N, tries)
    h = np.sqrt(area / ratio).round().astype(np.int64)
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = np.arange(len(crop)), fits.argmax(axis=1)
    h, w = h[first], w[first]
    # In float32, like the draws.
    top = (place[:, 0] * (height - h + 1).astype(np.float32)).astype(np.int64)
    left = (place[:, 1] * (width - w + 1).astype(np.float32)).astype(np.int64)
    whole_h, whole_w = height, width
    if width / height < CROP_RATIO[0]:
        whole_h = round(width / CROP_RATIO[0])
    elif width / height > CROP_RATIO[1]:
        whole_w = round(height * CROP_RATIO[1])
    whole = np.array([(height - whole_h) // 2, (width - whole_w) // 2, whole_h, whole_w])
    return np.where(fits[first][:, None], np.stack((top, left, h, w), axis=1), whole)
