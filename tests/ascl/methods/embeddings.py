"""Embeddings instead of images: with identity networks a loss is a plain formula."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ascl.distributed import plan_shuffle
from ascl.methods.base import Batch

AS_IT_IS = nn.Sequential(nn.Identity(), nn.Identity())
"""An encoder and a head that change nothing."""


def rows(count: int, seed: int, dim: int = 6) -> Tensor:
    """Embeddings that are not normalized, with a gradient."""
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def doubles(features: Tensor) -> Tensor:
    """Unit rows in float64, without a gradient: the input of a formula written as loops."""
    return normalize(features.detach().double(), dim=1)


def batch_of(*views: Tensor, classes: Tensor | None = None, diagnose: bool = False) -> Batch:
    """A batch whose views are embeddings; classes are unknown unless given."""
    count = len(views[0])
    return Batch(
        views,
        torch.full((count,), -1) if classes is None else classes,
        indices=torch.arange(count),
        shuffle=plan_shuffle(torch.arange(count), 0, 1),
        diagnose=diagnose,
        progress=0.0,
        draws=(),
    )
