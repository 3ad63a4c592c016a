"""Views: random crops and colour distortions of a whole batch at once, on the batch's device.

Every sample has its own random parameters. They are drawn on the CPU from a generator of the
caller's (`draw_view`), as plain numbers, before any image is touched; applying them (`make_view`)
is a pure function. So the same seed gives the same views on any device, in any arm of an ablation
and on any number of ranks: each rank draws for the whole batch and keeps its share.

Shapes: N = batch, C = 3, H × W = stored image, S = side of the view.
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from ascl.colour import grey_of, shift_hue_
from ascl.randaugment import OPS, rand_augment_

BLUR_SIGMA = (0.1, 2.0)
BLUR_RADIUS = 6  # three sigmas of the widest blur
BLUR_BLOCK = 32  # lines blurred at once; fewer do less in vain, more make better products
CROP_RATIO = (3 / 4, 4 / 3)
CROP_TRIES = 10  # candidates per crop before the whole picture is taken, as in torchvision
SMALL_SIDE = 3 / 7  # of a full view's, as SwAV's 96 of 224
SMALL_LEAST = 12  # pixels; below, a network that halves the side three times sees next to nothing
# Least area of a small crop as a share of `crop_min`, which is its largest: SwAV's small crops take
# 0.05–0.14 of an ImageNet picture where the full ones take 0.14–1.
SMALL_AREA = 5 / 14


@dataclass(frozen=True)
class ViewSpec:
    """What a view is: `weak` is crop and flip, `strong` adds jitter, grey and blur to it, and
    `stronger` RandAugment, as CLSA has it."""

    kind: str
    size: int
    crop_min: float = 0.2
    crop_max: float = 1.0
    strength: float = 0.8
    """Colour distortion: brightness, contrast, saturation 0.8·s and hue 0.2·s, as in SimCLR."""
    jitter_share: float = 0.8
    grey_share: float = 0.2
    blur_share: float = 0.5
    num_ops: int = 5
    """Operations of a stronger view; CLSA's RandAugment is 5 at magnitude 10."""
    magnitude: int = 10


def small_view(spec: ViewSpec) -> ViewSpec:
    """The same view, small and of a small part of the picture: SwAV's multi-crop."""
    size = round(SMALL_SIDE * spec.size)
    if size < SMALL_LEAST:
        least = math.ceil((SMALL_LEAST - 0.5) / SMALL_SIDE)
        raise ValueError(
            f"a small view needs a full one of at least {least} pixels, got {spec.size}"
        )
    return replace(spec, size=size, crop_min=SMALL_AREA * spec.crop_min, crop_max=spec.crop_min)


@dataclass(frozen=True)
class ViewDraw:
    """The random numbers behind a batch of views, all on the CPU; row i belongs to sample i."""

    crop: Tensor  # (N, CROP_TRIES, 2) area share and aspect ratio of each candidate
    place: Tensor  # (N, 2) where the crop sits, in [0, 1)
    flip: Tensor  # (N,) bool
    jitter: Tensor  # (N,) bool
    factor: Tensor  # (N, 3) brightness, contrast, saturation
    hue: Tensor  # (N,) shift in turns
    order: Tensor  # (N, 4) a permutation of 0 brightness, 1 contrast, 2 saturation, 3 hue
    grey: Tensor  # (N,) bool
    sigma: Tensor  # (N,) blur width in pixels; 0 = not blurred
    ops: Tensor  # (N, num_ops) places in RandAugment's OPS, in the order they are taken
    backwards: Tensor  # (N, num_ops) bool: the operation goes the other way

    def __getitem__(self, part: slice | Tensor) -> "ViewDraw":
        return ViewDraw(*(getattr(self, f.name)[part] for f in fields(self)))


def draw_view(spec: ViewSpec, count: int, generator: torch.Generator) -> ViewDraw:
    """Draw the parameters of `count` views; the numbers drawn do not depend on the spec's values.

    That is what pairs arms: two runs that differ in `strength` see the same crops, and the larger
    distortion is the smaller one scaled. Only a stronger view draws more, after all the others.
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator)

    crop = uniform(CROP_TRIES, 2)
    area = spec.crop_min + (spec.crop_max - spec.crop_min) * crop[..., 0]
    low, high = (math.log(r) for r in CROP_RATIO)
    log_ratio = low + (high - low) * crop[..., 1]
    place, flip, jitter = uniform(2), uniform() < 0.5, uniform() < spec.jitter_share
    reach = 0.8 * spec.strength
    least = max(0.0, 1 - reach)  # torchvision cuts the range at 0, it does not mirror it
    factor = least + (1 + reach - least) * uniform(3)
    hue = 0.2 * spec.strength * (2 * uniform() - 1)
    order = uniform(4).argsort(dim=1)
    grey, blur = uniform() < spec.grey_share, uniform() < spec.blur_share
    sigma = (BLUR_SIGMA[0] + (BLUR_SIGMA[1] - BLUR_SIGMA[0]) * uniform()) * blur
    num_ops = spec.num_ops if spec.kind == "stronger" else 0
    ops = torch.randint(len(OPS), (count, num_ops), generator=generator)
    backwards = uniform(num_ops) < 0.5
    crops = torch.stack((area, log_ratio.exp()), dim=-1)
    return ViewDraw(crops, place, flip, jitter, factor, hue, order, grey, sigma, ops, backwards)


def crop_boxes(crop: np.ndarray, place: np.ndarray, height: int, width: int) -> np.ndarray:
    """Turn draws into integer boxes (N, 4): top, left, height, width, as RandomResizedCrop does.

    The first candidate that fits inside the picture is taken; if none does, the largest centred
    box within the allowed aspect ratios. In NumPy, since a loader's worker does so for one picture
    at a time, where what PyTorch takes for each small step adds up to half of the decoding.
    """
    ratio = crop[..., 1]
    area = crop[..., 0] * height * width
    w = np.sqrt(area * ratio).round().astype(np.int64)  # (N, tries)
    h = np.sqrt(area / ratio).round().astype(np.int64)
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = np.arange(len(crop)), fits.argmax(axis=1)
    h, w = h[first], w[first]
    # In 32 bits, like all that was drawn.
    top = (place[:, 0] * (height - h + 1).astype(np.float32)).astype(np.int64)
    left = (place[:, 1] * (width - w + 1).astype(np.float32)).astype(np.int64)
    whole_h, whole_w = height, width
    if width / height < CROP_RATIO[0]:
        whole_h = round(width / CROP_RATIO[0])
    elif width / height > CROP_RATIO[1]:
        whole_w = round(height * CROP_RATIO[1])
    whole = np.array([(height - whole_h) // 2, (width - whole_w) // 2, whole_h, whole_w])
    return np.where(fits[first][:, None], np.stack((top, left, h, w), axis=1), whole)


def resize_weights(start: Tensor, length: Tensor, source: int, size: int) -> Tensor:
    """Matrices (N, size, source) that resample [start, start + length) of a line to `size` points.

    Bilinear with anti-aliasing: a triangle filter, widened where the crop is larger than the view.
    As a matrix product the resize is exact, needs no gather, and takes the flip for free.
    """
    scale = (length / size).view(-1, 1, 1)
    support = scale.clamp(min=1.0)
    out = torch.arange(size, device=start.device).view(1, -1, 1)
    points = torch.arange(source, device=start.device).view(1, 1, -1)
    begin, end = start.view(-1, 1, 1), (start + length).view(-1, 1, 1)
    centre = begin + (out + 0.5) * scale
    weight = (1 - ((points + 0.5 - centre) / support).abs()).clamp(min=0)
    # What lies outside the crop has no say, even where the picture goes on: the crop comes first.
    weight = weight * ((points >= begin) & (points < end))
    return weight / weight.sum(dim=2, keepdim=True)


def blur_weights(sigma: Tensor, size: int) -> Tensor:
    """Matrices (N, size, size) of a Gaussian blur with mirrored borders."""
    if size <= BLUR_RADIUS:
        raise ValueError(f"a blurred view must be larger than {BLUR_RADIUS} pixels, got {size}")
    offset = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=sigma.device)
    kernel = torch.softmax(-0.5 * (offset / sigma.view(-1, 1)) ** 2, dim=1)  # (N, taps)
    target = torch.arange(size, device=sigma.device).view(-1, 1) + offset
    target = target.abs()  # mirror at the left edge
    target = torch.where(target >= size, 2 * (size - 1) - target, target)  # and at the right
    weights = sigma.new_zeros(sigma.shape[0], size, size)
    index = target.expand(sigma.shape[0], -1, -1)
    return weights.scatter_add_(2, index, kernel.unsqueeze(1).expand_as(index))


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows @ image @ columnsᵀ for every channel of every image."""
    n, c, h, w = images.shape
    size_h, size_w = rows.shape[1], columns.shape[1]
    # One product each way for all channels: a product per channel takes twice as long. Swapping
    # channels and rows in between keeps lines whole, so those copies are cheap.
    wide = torch.bmm(images.reshape(n, c * h, w), columns.mT).view(n, c, h, size_w)
    lines = wide.transpose(1, 2).reshape(n, h, c * size_w)
    return torch.bmm(rows, lines).view(n, size_h, c, size_w).transpose(1, 2).contiguous()


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of every image by its own sigma (N,), with mirrored borders.

    Each way it is a product with a matrix that is zero far from its diagonal, so it is taken in
    blocks of lines with only what is near them: at 224 pixels a fifth of the work.
    """
    n, c, _, size = images.shape
    weights = blur_weights(sigma, size)
    blocks = []
    for start in range(0, size, BLUR_BLOCK):
        near = slice(max(0, start - BLUR_RADIUS), start + BLUR_BLOCK + BLUR_RADIUS)
        blocks.append((near, weights[:, start : start + BLUR_BLOCK, near]))
    # As in `resample`: all channels at once, swapped with the rows in between.
    flat = images.reshape(n, c * size, size)
    wide = torch.cat([torch.bmm(flat[:, :, near], w.mT) for near, w in blocks], dim=2)
    lines = wide.view(n, c, size, size).transpose(1, 2).reshape(n, size, c * size)
    tall = torch.cat([torch.bmm(w, lines[:, near]) for near, w in blocks], dim=1)
    return tall.view(n, size, c, size).transpose(1, 2)


def put_(images: Tensor, at: Tensor, changed: Tensor) -> None:
    """images[at] = changed, for `at` on the CPU; of large pictures in a fifth of the time there."""
    rows = images.unbind()
    torch._foreach_copy_([rows[i] for i in at.tolist()], changed.unbind())


def distort_(images: Tensor, at: Tensor, draw: ViewDraw) -> None:
    """Colour jitter of images[at]: brightness, contrast, saturation and hue, in each one's order.

    Brightness, contrast and saturation are one formula, f·x + (1 − f)·reference, with the reference
    black, the mean grey and the grey itself; so each of three rounds is one pass over the batch,
    whatever op each sample is at. The samples are sorted by when their hue is due, which makes
    the hue a pass over four contiguous quarters.
    """
    due = draw.order.eq(3).long().argmax(dim=1)  # (N,) the hue's place among the four
    by_due = due.argsort()
    bounds = [0, *torch.bincount(due, minlength=4).cumsum(0).tolist()]
    order = draw.order[by_due]
    blends = order[order != 3].view(-1, 3)  # the other three in their order
    factors = draw.factor[by_due].gather(1, blends)
    device = images.device
    hue, factors, blends = draw.hue[by_due].to(device), factors.to(device), blends.to(device)
    whole, at = images, at[by_due]
    images = whole.index_select(0, at.to(device))  # on the CPU faster than whole[at]
    for turn in range(4):
        now = slice(bounds[turn], bounds[turn + 1])
        if now.start < now.stop:
            shift_hue_(images[now], hue[now])
        if turn == 3:
            break
        op = blends[:, turn].view(-1, 1, 1, 1)
        f = factors[:, turn].view(-1, 1, 1, 1)
        grey = grey_of(images)
        mean = grey.mean(dim=(2, 3), keepdim=True)
        # By factors of 0 where they have no say: torch.where takes half of the round on the CPU.
        reference = grey.mul_((1 - f) * (op == 2)).add_(mean.mul_((1 - f) * (op == 1)))
        images.mul_(f).add_(reference).clamp_(0, 1)
    put_(whole, at, images)


def crop_views(images: Tensor, draw: ViewDraw, spec: ViewSpec) -> Tensor:
    """Crop, resize and flip uint8 images (N, 3, H, W) to floats (N, 3, S, S) in [0, 1]."""
    height, width = images.shape[-2:]
    boxes = crop_boxes(draw.crop.numpy(), draw.place.numpy(), height, width)
    top, left, h, w = torch.from_numpy(boxes).to(images.device).unbind(dim=1)
    rows = resize_weights(top, h, height, spec.size)
    columns = resize_weights(left, w, width, spec.size) / 255
    columns = torch.where(draw.flip.to(images.device).view(-1, 1, 1), columns.flip(1), columns)
    return resample(images.float(), rows, columns)


def colour_views(images: Tensor, draw: ViewDraw) -> Tensor:
    """Jitter, grey and blur floats in [0, 1]; the crop is done before, here or on a worker."""
    device = images.device
    jittered = draw.jitter.nonzero().squeeze(1)
    if len(jittered):
        distort_(images, jittered, draw[jittered])
    greyed = draw.grey.nonzero().squeeze(1)
    if len(greyed):
        grey = grey_of(images.index_select(0, greyed.to(device)))
        put_(images, greyed, grey.expand(-1, 3, -1, -1))
    blurred = draw.sigma.nonzero().squeeze(1)
    if len(blurred):
        at = blurred.to(device)
        soft = blur(images.index_select(0, at), draw.sigma[blurred].to(device))
        put_(images, blurred, soft)
    return images


def normalise_(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(x − mean) / std per channel, in place, in either layout."""
    if images.is_contiguous():
        return images.sub_(mean.view(1, -1, 1, 1)).div_(std.view(1, -1, 1, 1))
    # Channels last, a line at a time: loops over three channels take ten times as long on the CPU.
    lines, width = images.permute(0, 2, 3, 1).flatten(2), images.shape[-1]
    lines.sub_(mean.repeat(width)).div_(std.repeat(width))
    return images


def finish_view(
    images: Tensor, draw: ViewDraw, spec: ViewSpec, mean: Tensor, std: Tensor
) -> Tensor:
    """Colour and normalise views that are cropped already, in either layout; may overwrite them."""
    if spec.kind == "strong":
        images = colour_views(images.contiguous(), draw)
    elif spec.kind == "stronger":
        images = rand_augment_(images.contiguous(), draw.ops, draw.backwards, spec.magnitude)
    return normalise_(images, mean, std)


def make_view(images: Tensor, draw: ViewDraw, spec: ViewSpec, mean: Tensor, std: Tensor) -> Tensor:
    """The view (N, 3, S, S) of uint8 images (N, 3, H, W) that `draw` describes, normalised."""
    return finish_view(crop_views(images, draw, spec), draw, spec, mean, std)
