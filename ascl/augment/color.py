"""Color operations on a batch of RGB images, with separate parameters for each image.

Shapes: N = images, P = pixels of an image.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

GREY = (0.2989, 0.587, 0.114)  # torchvision's luma weights
PEAKS = (0, 2, 4)  # hue in sixths of a turn of red, green and blue


def blend_(images: Tensor, factor: Tensor, pixel: Tensor, mean: Tensor) -> None:
    """Compute f·x + (1 − f)·reference, clamped to [0, 1], in place.

    The reference is black (brightness), the gray image (saturation) or its mean (contrast).

    Args:
        images: Floats (N, 3, P) in [0, 1].
        factor: f (N, 1, 1).
        pixel: (1 − f)·GREY (N, 1, 3) for images whose reference is the gray image, 0 for others.
        mean: (1 − f)·GREY (N, 1, 3) for images whose reference is the mean gray, 0 for others.
    """
    mean = torch.bmm(mean, images.mean(dim=2, keepdim=True))
    reference = torch.baddbmm(mean, pixel, images)
    torch.addcmul(reference, images, factor, out=images).clamp_(0, 1)


def blend_weights(
    factor: np.ndarray, on_pixel: np.ndarray, on_mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arguments of `blend_` for factors (...,) and masks (...,) of the references."""
    rest = (1 - factor)[..., None, None] * np.array([GREY], dtype=np.float32)
    return (
        factor[..., None, None],
        rest * on_pixel[..., None, None],
        rest * on_mean[..., None, None],
    )


def hue_shifts(turns: np.ndarray) -> np.ndarray:
    """Return the shifts (N, 3, 1) of `shift_hue_` for hue shifts (N,) in turns."""
    shift = 6 * turns[:, None].astype(np.float32) - np.array(PEAKS, dtype=np.float32)
    return np.asarray(shift - 6 * np.round(shift / 6))[:, :, None]


def shift_hue_(images: Tensor, shifts: Tensor) -> None:
    """Shift the hue of RGB images in HSV space, in place.

    With high, low and chroma c = high − low of a pixel and its signed hue h in sixths of a turn,
    a channel with its peak at hue p is high − c·clamp(|h − p| − 1, 0, 1), where h − p is wrapped
    into [−3, 3]; and |h| = (green + blue − red + high − 2·low) / c with the sign of green − blue.
    Everything here is multiplied by c, so nothing is divided by the chroma, 0 for gray pixels.

    Args:
        images: Floats (N, 3, P) in [0, 1].
        shifts: Hue shift minus the peak of each channel (N, 3, 1), in sixths within [−3, 3].
    """
    red, green, blue = images.split(1, dim=1)
    high, low = images.amax(dim=1, keepdim=True), images.amin(dim=1, keepdim=True)
    chroma = high - low
    floor = low - chroma  # high − 2·chroma
    hue = (green + blue).sub_(red).sub_(floor).copysign_(green - blue)
    # |x| for x = hue + shift within [−6, 6], wrapped into [−3, 3], is 3 − ||x| − 3|.
    x = torch.addcmul(hue, chroma, shifts).abs_().sub_(chroma, alpha=3).abs_()
    torch.clamp(x.add_(floor), low, high, out=images)


def jitter_(
    images: Tensor, starts: Sequence[int], blends: Sequence[tuple[Tensor, ...]], shifts: Tensor
) -> None:
    """Apply brightness, contrast, saturation and hue in each image's own order, in place.

    Images are sorted by the number of blends before their hue shift. Each of the three blends is
    then two calls on contiguous parts, before and after one hue shift for all images.

    Args:
        images: Floats (N, 3, P) in [0, 1].
        starts: Index of the first image with more than 0, 1 and 2 blends before its hue shift.
        blends: Arguments of `blend_` for each of the three blends in each image's order.
        shifts: Argument of `shift_hue_`.
    """
    for start, blend in zip(starts, blends, strict=True):
        blend_(images[start:], *(x[start:] for x in blend))
    shift_hue_(images, shifts)
    for start, blend in zip(starts, blends, strict=True):
        blend_(images[:start], *(x[:start] for x in blend))


def normalize_(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Compute (x − mean) / std per channel, in place, in either memory layout."""
    if images.is_contiguous():
        return images.sub_(mean.view(1, -1, 1, 1)).div_(std.view(1, -1, 1, 1))
    # Channels last: whole lines at once, because broadcasting 3 channels is ten times as slow on
    # the CPU.
    lines, width = images.permute(0, 2, 3, 1).flatten(2), images.shape[-1]
    lines.sub_(mean.repeat(width)).div_(std.repeat(width))
    return images
