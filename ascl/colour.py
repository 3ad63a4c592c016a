"""Colours of a batch of RGB pictures: what is grey in them, and a turn of their hue."""

import torch
from torch import Tensor

GREY = (0.2989, 0.587, 0.114)  # torchvision's luma weights
NO_CHROMA = 1e-30  # instead of 0 to divide by, where a pixel is grey and any hue is as good


def grey_of(images: Tensor) -> Tensor:
    """Luma (N, 1, H, W)."""
    red, green, blue = images.unbind(dim=1)
    return (GREY[0] * red).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2]).unsqueeze(1)


def shift_hue_(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of RGB images in [0, 1] by `turns` (N,), in HSV space, in place."""
    red, green, blue = images.unbind(dim=1)
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - torch.minimum(torch.minimum(red, green), blue)
    # Which channel is the highest; ties as in torchvision. As ones and zeros to multiply by: it is
    # exact, and on the CPU torch.where takes longer than ten such passes.
    is_red, is_green = (torch.eq(high, x, out=torch.empty_like(high)) for x in (red, green))
    not_red = 1 - is_red
    is_green.mul_(not_red)
    is_blue = not_red.sub_(is_green)
    # Hue in sixths of a turn, counted from the highest channel, and then from red.
    hue = (green - blue).mul_(is_red)
    hue.add_((blue - red).mul_(is_green)).add_((red - green).mul_(is_blue))
    hue.mul_(chroma.clamp(min=NO_CHROMA).reciprocal_())
    hue.add_(is_green, alpha=2).add_(is_blue, alpha=4).add_(6 * turns.view(-1, 1, 1))
    # HSV → RGB: a channel falls from high by chroma, the more the further its own hue is away:
    # high − chroma·clamp(2 − |x|, 0, 1), with x = hue + n − 2 wrapped into [−3, 3].
    for channel, n in zip((red, green, blue), (5, 3, 1), strict=True):
        x = hue + (n - 2)
        x.sub_((x / 6).round_(), alpha=6)
        rise = x.abs_().clamp_(1, 2).sub_(2)
        torch.addcmul(high, chroma, rise, out=channel)
    return images
