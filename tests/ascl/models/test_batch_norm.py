"""Laws of split batch norm and of key shuffling."""

from math import prod

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from ascl.distributed import encode_shuffled, plan_shuffle
from ascl.models import batch_norm
from ascl.models.batch_norm import SplitBatchNorm
from ascl.models.heads import build_mlp


class LoopedBatchNorm(SplitBatchNorm):
    """The plain formula: PyTorch's batch norm of one group after the other."""

    def forward(self, input: Tensor) -> Tensor:
        outputs, means, variances = [], [], []
        for group in input.chunk(self.splits):
            mean, variance = self.running_mean.clone(), self.running_var.clone()
            outputs.append(
                F.batch_norm(group, mean, variance, self.weight, self.bias, True, 0.1, self.eps)
            )
            means.append(mean)
            variances.append(variance)
        self.running_mean = torch.stack(means).mean(dim=0)
        self.running_var = torch.stack(variances).mean(dim=0)
        self.num_batches_tracked += 1
        return torch.cat(outputs)


@given(
    groups=st.integers(1, 9),
    size=st.integers(1, 4),
    channels=st.integers(1, 9),
    sides=st.sampled_from([(), (1, 1), (3, 2), (4, 4), (7, 1)]),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last, None]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    affine=st.booleans(),
    in_one_call=st.booleans(),
    parts=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_split_batch_norm_is_plain_batch_norm_of_each_group(
    groups: int,
    size: int,
    channels: int,
    sides: tuple[int, ...],
    layout: torch.memory_format | None,
    dtype: torch.dtype,
    affine: bool,
    in_one_call: bool,
    parts: int,
    seed: int,
) -> None:
    """In value, gradients and running statistics, for one call or a call per group."""
    generator = torch.Generator().manual_seed(seed)
    shape = (groups * size, channels, *sides)
    assume(size * prod(sides) > 1)

    def draw(*shape: int) -> Tensor:
        return 3 * torch.randn(shape, generator=generator, dtype=torch.float64) + 1

    x, gradient = draw(*shape), draw(*shape)
    if len(shape) == 4 and layout is not None:
        x = x.contiguous(memory_format=layout)
    if len(shape) == 4 and layout is None:
        x, gradient = x.transpose(2, 3), gradient.expand(2, *shape)[1].transpose(2, 3)
    seen = []
    weights = draw(2, channels)
    for kind in (SplitBatchNorm, LoopedBatchNorm):
        norm = kind(channels, splits=groups, affine=affine)
        norm.parts = parts  # groups of the whole batch: no shortcut for one group
        if affine:
            for parameter, value in zip(norm.parameters(), weights, strict=True):
                parameter.data.copy_(value)
        if dtype == torch.float64:
            norm.double()
        # The formula in half precision is less exact than ours, so it gets the values in float32.
        exact = kind is LoopedBatchNorm and dtype != torch.float64
        used = torch.float32 if exact else dtype
        leaf = x.to(dtype).to(used).requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch_norm, "in_one_call", lambda x, groups: in_one_call)
            out = norm(leaf)
            out.backward(gradient.to(dtype).to(used))
        assert out.dtype == used
        gradients = [leaf.grad, *(parameter.grad for parameter in norm.parameters())]
        seen.append([out, *gradients, *norm.buffers()])
        if len(shape) == 4 and layout is torch.channels_last:
            assert out.is_contiguous(memory_format=layout)
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 0.2)
    for ours, plain in zip(*seen, strict=True):
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize("shape", [(12, 5), (12, 5, 4, 3)])
def test_one_group_is_plain_batch_norm(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    ours, plain = SplitBatchNorm(5), (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(5)
    assert ours(x).equal(plain(x))
    for buffer, theirs in zip(ours.buffers(), plain.buffers(), strict=True):
        assert buffer.equal(theirs)
    assert list(ours.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("in_one_call", [False, True])
def test_statistics_in_half_precision_are_those_of_float32(
    in_one_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a weight."""
    monkeypatch.setattr(batch_norm, "in_one_call", lambda x, groups: in_one_call)
    x = (torch.randn(64, 5) + 2).bfloat16()
    half, full = (SplitBatchNorm(5, splits=4, affine=False) for _ in range(2))
    half(x), full(x.float())
    for buffer, exact in zip(half.buffers(), full.buffers(), strict=True):
        torch.testing.assert_close(buffer, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_one_call", [False, True])
def test_a_group_needs_more_than_one_value_per_channel(
    in_one_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_norm, "in_one_call", lambda x, groups: in_one_call)
    norm = SplitBatchNorm(5, splits=4)
    assert norm(torch.ones(8, 5)).shape == (8, 5)
    with pytest.raises(ValueError, match="a batch of 4, 4 groups; use fewer groups"):
        norm(torch.ones(4, 5))


def test_split_batch_norm_in_evaluation_is_plain() -> None:
    split, plain = SplitBatchNorm(5, splits=4), nn.BatchNorm2d(5)
    for bn in (split, plain):
        nn.init.constant_(bn.running_mean, 0.3)
    x = torch.randn(3, 5, 2, 2)
    torch.testing.assert_close(split.eval()(x), plain.eval()(x))


def test_batch_not_divisible_by_the_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 10, 8 groups"):
        SplitBatchNorm(5, splits=8)(torch.randn(10, 5))


def test_channels_last_memory_survives_split_batch_norm() -> None:
    x = torch.randn(8, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    assert SplitBatchNorm(4, splits=2)(x).is_contiguous(memory_format=torch.channels_last)


def test_shuffle_then_unshuffle_is_the_identity() -> None:
    x = torch.randn(10, 4)
    assert encode_shuffled(nn.Identity(), x, plan_shuffle(torch.randperm(10), 0, 1)).equal(x)


def test_shuffling_moves_keys_between_groups() -> None:
    x, bn = torch.randn(8, 3), SplitBatchNorm(3, splits=2)
    swap = plan_shuffle(torch.tensor([4, 1, 2, 3, 0, 5, 6, 7]), 0, 1)
    assert not torch.allclose(encode_shuffled(bn, x, swap), bn(x))


def test_head_has_batch_norm_only_if_configured() -> None:
    assert not any(isinstance(m, SplitBatchNorm) for m in build_mlp(4, 8, 2))
    assert any(isinstance(m, SplitBatchNorm) for m in build_mlp(4, 8, 2, bn_splits=1))


# -- micro-batches
