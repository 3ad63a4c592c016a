"""Laws of the momentum copy."""

import torch
from torch import nn

from ascl.models.momentum_encoder import MomentumCopy


def test_the_average_follows_its_closed_form() -> None:
    online = nn.Linear(3, 2)
    copy = MomentumCopy(online)
    start = [p.clone() for p in copy.parameters()]
    nn.init.ones_(online.weight)
    nn.init.ones_(online.bias)
    for _ in range(7):
        copy.follow(online, 0.9)
    for parameter, first in zip(copy.parameters(), start, strict=True):
        torch.testing.assert_close(
            parameter, 0.9**7 * first + (1 - 0.9**7) * torch.ones_like(first)
        )


def test_momentum_encoder_has_no_gradient_and_passes_none() -> None:
    copy = MomentumCopy(nn.Linear(3, 2))
    assert not any(p.requires_grad for p in copy.parameters())
    assert not copy(torch.randn(2, 3, requires_grad=True)).requires_grad


def test_momentum_encoder_has_its_own_batch_norm_statistics() -> None:
    online = nn.Sequential(nn.BatchNorm1d(3))
    copy = MomentumCopy(online)
    online(torch.randn(8, 3) + 5)
    copy.follow(online, 0.0)
    assert copy.module[0].running_mean.eq(0).all()
