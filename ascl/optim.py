"""The optimiser and its learning rate: SGD, linear warm-up, cosine to 0, step by step."""

import math

import torch

from ascl.config import OptimConfig
from ascl.methods import Method


def make_optimiser(method: Method, config: OptimConfig, *, scaled: bool) -> torch.optim.SGD:
    """SGD over everything that takes a gradient; `scaled` if a GradScaler drives it.

    What a method wants at a fixed rate is a group of its own, marked `fixed`.
    """
    fixed = {id(p) for p in method.fixed_rate()}
    learns = [p for p in method.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learns if (id(p) in fixed) is held], "fixed": held}
        for held in (False, True)
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
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
