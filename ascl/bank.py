"""Memory banks: the last n keys, first in first out, or a slot for each image of the training set.

Both hold classes along with the features, for diagnostics.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeatureBank(nn.Module):
    """Holds exactly the last `size` features; contents and pointer are in the state dict."""

    features: Tensor  # (size, dim) unit rows
    classes: Tensor  # (size,) −1 where unknown
    pointer: Tensor  # () where the next feature goes

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        # Random unit rows until keys replace them, as in MoCo: negatives from the first step on.
        self.register_buffer("features", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("classes", torch.full((size,), -1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, features: Tensor, classes: Tensor) -> None:
        """Add a batch of any size; the oldest features leave."""
        size, count = len(self.features), len(features)
        place = torch.arange(count, device=self.features.device).add_(self.pointer).remainder_(size)
        kept = slice(max(0, count - size), count)  # of a batch larger than the bank, the last
        self.features[place[kept]] = features[kept].to(self.features.dtype)
        self.classes[place[kept]] = classes[kept]
        self.pointer.add_(count).remainder_(size)


class SlotMemory(nn.Module):
    """A feature for each training image, which follows what the encoder makes of that image."""

    features: Tensor  # (images, dim) unit rows
    classes: Tensor  # (images,) −1 until the image was seen, and where unknown

    def __init__(self, num_images: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", F.normalize(torch.randn(num_images, dim), dim=1))
        self.register_buffer("classes", torch.full((num_images,), -1))

    @torch.no_grad()
    def update(
        self, indices: Tensor, features: Tensor, classes: Tensor, *, momentum: float
    ) -> None:
        """slot ← unit(m·slot + (1 − m)·feature) at these images' places, each of which is there
        once. The momentum weighs the old value."""
        moved = torch.lerp(features.to(self.features.dtype), self.features[indices], momentum)
        self.features[indices] = F.normalize(moved, dim=1)
        self.classes[indices] = classes
