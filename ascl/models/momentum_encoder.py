"""The momentum encoder: an exponential moving average of the online encoder."""

import copy
import math

import torch
from torch import Tensor, nn


class MomentumCopy(nn.Module):
    """A copy of a module without gradients, updated by `follow`."""

    def __init__(self, online: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(online).requires_grad_(False)

    @torch.no_grad()
    def follow(self, online: nn.Module, momentum: float) -> None:
        """copy ← m·copy + (1 − m)·online for all parameters; buffers are not averaged."""
        ema_(list(self.module.parameters()), list(online.parameters()), momentum)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


def ema_(averages: list[Tensor], values: list[Tensor], momentum: float) -> None:
    """averages ← m·averages + (1 − m)·values, in place."""
    torch._foreach_lerp_(averages, values, 1 - momentum)


def raise_momentum(momentum: float, progress: float) -> float:
    """Return BYOL's momentum at a fraction of training: rises to 1 along a cosine."""
    return 1 - (1 - momentum) * (math.cos(math.pi * progress) + 1) / 2
