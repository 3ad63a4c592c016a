"""Colours of a batch of RGB pictures: what is grey in them, and a turn of their hue."""

import torch
from torch import Tensor

GREY = (0.2989, 0.587, 0.114)  # torchvision's luma weights


def grey_of(images: Tensor) -> Tensor:
    """Luma (N, 1, H, W)."""
    red, green, blue = images.unbind(dim=1)
    return (GREY[0] * red).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2]).unsqueeze(1)


def shift_hue_(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of RGB images in [0, 1] by `turns` (N,), in HSV space, in place."""
    red, green, blue = images.unbind(dim=1)
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - torch.minimum(torch.minimum(red, green), blue)
    per_chroma = torch.where(chroma == 0, 1.0, chroma).reciprocal_()
    # Hue in sixths of a turn, by which channel is the highest; ties as in torchvision.
    hue = torch.where(
        high == red,
        (green - blue).mul_(per_chroma),
        torch.where(
            high == green,
            (blue - red).mul_(per_chroma).add_(2),
            (red - green).mul_(per_chroma).add_(4),
        ),
    )
    hue.add_(6 * turns.view(-1, 1, 1))
    # HSV → RGB: a channel falls from high by chroma, the more the further its own hue is away:
    # high − chroma·clamp(2 − |x|, 0, 1), with x = hue + n − 2 wrapped into [−3, 3].
    for channel, n in zip((red, green, blue), (5, 3, 1), strict=True):
        x = hue + (n - 2)
        x.sub_((x / 6).round_(), alpha=6).abs_()
        fall = x.neg_().add_(2).clamp_(0, 1)
        torch.addcmul(high, chroma, fall, value=-1, out=channel)
    return images
