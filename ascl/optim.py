"""The optimiser and its learning rate: SGD or LARS, linear warm-up, cosine to 0, step by step."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ascl.config import OptimConfig
from ascl.methods import Method

TRUST = 0.001
"""η of LARS: how far a weight goes at rate 1, as a share of its own norm."""


def make_optimiser(method: Method, config: OptimConfig, *, scaled: bool) -> torch.optim.Optimizer:
    """The optimiser of everything that takes a gradient; `scaled` if a GradScaler drives it.

    What a method wants at a fixed rate is a group of its own, marked `fixed`.
    """
    fixed = {id(p) for p in method.fixed_rate()}
    learns = [p for p in method.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learns if (id(p) in fixed) is held], "fixed": held}
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
        # Fused SGD on the CPU takes a step that the scaler found infinite (torch 2.15).
        fused=not scaled,
    )


class LARS(torch.optim.Optimizer):
    """SGD whose every weight matrix takes a step in proportion to its own norm (You et al. 2017).

    d = g + wd·w, v ← m·v + η·‖w‖/‖d‖·d, w ← w − lr·v. The norm is that of d, as in public code of
    SimCLR and BYOL, where You et al. add up those of g and wd·w; the rate stands outside of v, as
    in torch's SGD. Biases and batch norms, of one dimension, are neither decayed nor rescaled.
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
    def step(self) -> None:  # type: ignore[override]  # without a closure, which nobody here has
        for group in self.param_groups:
            learns = [p for p in group["params"] if p.grad is not None]
            for adapted in (False, True):
                params = [p for p in learns if (p.ndim > 1) is adapted]
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
    """η·‖w‖/‖d‖ of each; 1 where either is zero, so that what starts at zero can leave it."""
    size, length = (torch.stack(torch._foreach_norm(x)) for x in (weights, updates))
    ratios = torch.where((size > 0) & (length > 0), TRUST * size / length, 1.0)
    return list(ratios.unbind())


def rate_at(peak: float, epoch: float, *, warmup: int, epochs: int) -> float:
    """The learning rate after `epoch` epochs, a fraction within an epoch."""
    if epoch < warmup:
        return peak * epoch / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup)))
