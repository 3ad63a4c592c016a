"""Optimizers and learning rate: SGD or LARS, linear warm-up, then cosine decay to 0 per step."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ascl.methods.base import Method
from ascl.sections import OptimConfig

TRUST = 0.001
"""Trust coefficient η of LARS: size of a step at learning rate 1, relative to the weight's norm."""


def build_optimizer(method: Method, config: OptimConfig, *, scaled: bool) -> torch.optim.Optimizer:
    """Build the optimizer of all trainable parameters; `scaled` if a GradScaler is used.

    Parameters with a fixed learning rate form a separate group, marked `fixed`.
    """
    fixed = {id(p) for p in method.fixed_rate()}
    trainable = [p for p in method.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if (id(p) in fixed) is held], "fixed": held}
        for held in (False, True)
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "lars":
        return LARS(
            groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
    return torch.optim.SGD(
        groups,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        # torch 2.15: fused SGD on the CPU does not skip steps where the scaler found infinities.
        fused=not scaled,
    )


class LARS(torch.optim.Optimizer):
    """LARS: SGD whose step for each weight matrix is proportional to the norm of that matrix.

    You et al., Large Batch Training of Convolutional Networks, 2017,
    https://arxiv.org/abs/1708.03888.

    d = g + wd·w, v ← m·v + η·‖w‖/‖d‖·d, w ← w − lr·v. The ratio uses the norm of d, as public code
    of SimCLR and BYOL does; You et al. use ‖g‖ + wd·‖w‖. The learning rate multiplies v, as in
    torch's SGD. One-dimensional parameters (biases, batch norm) have no weight decay and no ratio.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # closures are not supported
        for group in self.param_groups:
            with_gradient = [p for p in group["params"] if p.grad is not None]
            for adapted in (False, True):
                params = [p for p in with_gradient if (p.ndim > 1) is adapted]
                if params:
                    self._step(params, group, adapted=adapted)

    def _step(self, params: list[Tensor], group: dict[str, Any], *, adapted: bool) -> None:
        updates = [p.grad for p in params if p.grad is not None]
        if adapted:
            updates = list(torch._foreach_add(updates, params, alpha=group["weight_decay"]))
            torch._foreach_mul_(updates, trust_ratios(params, updates))
        for p in params:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, updates)
        torch._foreach_add_(params, buffers, alpha=-group["lr"])


def trust_ratios(weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """Return η·‖w‖/‖d‖ for each; 1 if either norm is 0, so that zero weights can be trained."""
    size, length = (torch.stack(torch._foreach_norm(x)) for x in (weights, updates))
    ratios = torch.where((size > 0) & (length > 0), TRUST * size / length, 1.0)
    return list(ratios.unbind())


def rate_at(peak: float, epoch: float, *, warmup: int, epochs: int) -> float:
    """Return the learning rate after `epoch` epochs, which may be fractional."""
    if epoch < warmup:
        return peak * epoch / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup)))
