"""The momentum encoder: a copy that follows the online one as a moving average."""

import copy
import math

import torch
from torch import Tensor, nn


class MomentumCopy(nn.Module):
    """A copy of a module that gets no gradient and moves by `follow`."""

    def __init__(self, online: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(online).requires_grad_(False)

    @torch.no_grad()
    def follow(self, online: nn.Module, momentum: float) -> None:
        """copy ← m·copy + (1 − m)·online, all parameters at once; buffers are the copy's own."""
        ema_(list(self.module.parameters()), list(online.parameters()), momentum)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


def ema_(averages: list[Tensor], values: list[Tensor], momentum: float) -> None:
    """averages ← m·averages + (1 − m)·values, in place."""
    torch._foreach_lerp_(averages, values, 1 - momentum)


def rising(momentum: float, progress: float) -> float:
    """The momentum after a share of the training: from its value to 1 along a cosine (BYOL)."""
    return 1 - (1 - momentum) * (math.cos(math.pi * progress) + 1) / 2
