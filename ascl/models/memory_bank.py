"""Memory banks: a FIFO queue of the last n keys, or one slot for each training image.

Both also store the classes of the features, for diagnostics.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeatureBank(nn.Module):
    """FIFO queue of the last `size` features; contents and pointer are in the state dict."""

    features: Tensor  # (size, dim) unit rows
    classes: Tensor  # (size,) −1 where unknown
    pointer: Tensor  # () index of the next write

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        # Initialized with random unit rows, as in MoCo: there are negatives from the first step.
        self.register_buffer("features", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("classes", torch.full((size,), -1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, features: Tensor, classes: Tensor) -> None:
        """Add a batch of any size and drop the oldest features."""
        size, count = len(self.features), len(features)
        place = torch.arange(count, device=self.features.device).add_(self.pointer).remainder_(size)
        kept = slice(max(0, count - size), count)  # the last ones if the batch exceeds the bank
        self.features[place[kept]] = features[kept].to(self.features.dtype)
        self.classes[place[kept]] = classes[kept]
        self.pointer.add_(count).remainder_(size)


class SlotMemory(nn.Module):
    """One feature per training image: a moving average of the encoder's features of that image."""

    features: Tensor  # (images, dim) unit rows
    classes: Tensor  # (images,) −1 if unknown or not seen yet

    def __init__(self, num_images: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", F.normalize(torch.randn(num_images, dim), dim=1))
        self.register_buffer("classes", torch.full((num_images,), -1))

    @torch.no_grad()
    def update(
        self, indices: Tensor, features: Tensor, classes: Tensor, *, momentum: float
    ) -> None:
        """Update slots: slot ← unit(m·slot + (1 − m)·feature). Indices must be unique."""
        moved = torch.lerp(features.to(self.features.dtype), self.features[indices], momentum)
        self.features[indices] = F.normalize(moved, dim=1)
        self.classes[indices] = classes
