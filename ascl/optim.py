"""The optimiser and its learning rate: SGD, linear warm-up, cosine to 0, step by step."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from ascl.config import OptimConfig


def make_optimiser(
    parameters: Iterable[nn.Parameter], config: OptimConfig, *, scaled: bool
) -> torch.optim.SGD:
    """SGD over everything that takes a gradient; `scaled` if a GradScaler drives it."""
    return torch.optim.SGD(
        [p for p in parameters if p.requires_grad],
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        # Fused SGD on the CPU takes a step that the scaler found infinite (torch 2.15).
        fused=not scaled,
    )


def rate_at(peak: float, epoch: float, *, warmup: int, epochs: int) -> float:
    """The learning rate after `epoch` epochs, a fraction within an epoch."""
    if epoch < warmup:
        return peak * epoch / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup)))
