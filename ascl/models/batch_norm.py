"""Batch norm with the statistics of a fixed number of GPUs, on any number of GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ascl.distributed import world_size
from ascl.errors import RunError

_normalize_backward = torch.ops.aten.native_batch_norm_backward.default


def in_one_call(x: Tensor, groups: int) -> bool:
    """Return whether copying a batch, to normalize all groups in one call, costs less than calls.

    A CPU issues a call in a few microseconds and copies some gigabytes per second: break-even
    measured at 64 kB per group. A GPU waits up to 20 µs for the host to issue a call, and copies
    1.5 TB/s: break-even modeled at 4 MB. With three groups or fewer, copying takes more calls.
    """
    largest = 2**16 if x.device.type == "cpu" else 2**22
    return groups > 3 and x.nbytes <= groups * largest


# Shapes: G = groups, n = samples per group, C = channels.
@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of the groups of a batch, as computed by one forward pass of a layer."""

    mean: Tensor  # (G, C)
    invstd: Tensor  # (G, C) 1 / √(variance + ε)
    count: int  # number of values of each channel in a group


class SplitBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm with separate statistics for `splits` groups of the batch, as on `splits` GPUs.

    Running statistics are the mean over the groups. Works on (N, C) and (N, C, H, W).
    """

    parts = 1  # of a batch, normalized in separate forward passes
    deferred = False
    """Whether the network updates the running statistics of all its layers, from `seen`."""
    seen: GroupStatistics | None = None  # of the last forward pass; None if it updated them itself

    def __init__(self, num_features: int, *, splits: int = 1, affine: bool = True) -> None:
        super().__init__(num_features, affine=affine)
        self.splits = splits

    def _check_input_dim(self, input: Tensor) -> None:  # abstract in the base class
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        if self.splits == self.parts == 1:
            momentum = cast(float, self.momentum)
            running = self.running_mean, self.running_var
            output = F.batch_norm(input, *running, self.weight, self.bias, True, momentum, self.eps)
        else:
            output = self._normalize_groups(input)
        if not self.deferred:
            update_statistics([self], [[self.seen]])
        return output

    def _normalize_groups(self, input: Tensor) -> Tensor:
        if len(input) % self.splits:
            raise ValueError(
                "the batch size must be a multiple of the number of BN groups, "
                f"got a batch of {len(input)}, {self.splits} groups"
            )
        count = input.numel() // (self.splits * self.num_features)
        if count == 1:
            raise ValueError(
                "batch norm needs more than one value per channel in each BN group, "
                f"got a batch of {len(input)}, {self.splits} groups; use fewer groups"
            )
        weight, bias = self.weight, self.bias
        if not self.affine:
            # Explicit, because torch 2.15 on the CPU computes statistics in float32 for an input in
            # half precision only if there is a weight in float32.
            weight = cast(nn.Parameter, torch.ones_like(cast(Tensor, self.running_mean)))
            bias = cast(nn.Parameter, torch.zeros_like(weight))
        output, mean, invstd = _NormalizeGroups.apply(input, weight, bias, self.splits, self.eps)
        self.seen = GroupStatistics(mean, invstd, count)
        return cast(Tensor, output)


class _NormalizeGroups(torch.autograd.Function):
    """Normalize each group (n, C, …) of a batch (G·n, C, …).

    Returns the output, and mean and 1 / √(variance + ε) of each group and channel (G, C), which
    have no gradient. The result has no second derivative.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        one_call = in_one_call(x, groups)
        if one_call:
            x = _to_channels(x, groups)
            weight, bias = torch.cat([weight] * groups + [bias] * groups).view(2, -1).unbind()
            output, mean, invstd = torch.native_batch_norm(
                x, weight, bias, None, None, True, 0.0, eps
            )
            output = _to_batch(output, groups)
            mean, invstd = mean.view(groups, -1), invstd.view(groups, -1)
        else:
            x = x.contiguous(memory_format=_layout(x))
            output = torch.empty_like(x)  # written in place: nothing to concatenate
            kind = torch.promote_types(x.dtype, torch.float32)
            mean, invstd = x.new_empty((2, groups, x.shape[1]), dtype=kind).unbind()
            outputs = zip(output.chunk(groups), mean.unbind(), invstd.unbind(), strict=True)
            for group, out in zip(x.chunk(groups), outputs, strict=True):
                torch.native_batch_norm(group, weight, bias, None, None, True, 0.0, eps, out=out)
        ctx.one_call, ctx.groups, ctx.eps = one_call, groups, eps
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.mark_non_differentiable(mean, invstd)
        ctx.set_materialize_grads(False)  # not a tensor of zeros for each of the statistics
        return output, mean, invstd

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient, *_), groups, eps = gradients, ctx.groups, ctx.eps
        x, weight, mean, invstd = ctx.saved_tensors
        if ctx.one_call:
            gradient, mean, invstd = _to_channels(gradient, groups), mean.view(-1), invstd.view(-1)
            of_x, of_weight, of_bias = _normalize_backward(
                gradient, x, weight, None, None, mean, invstd, True, eps, (True, True, True)
            )
            of_x = _to_batch(of_x, groups)
            of_affine = [of_weight, of_bias]
        else:
            parts = gradient.chunk(groups), x.chunk(groups), mean.unbind(), invstd.unbind()
            of_groups = [
                _normalize_backward(dy, group, weight, None, None, m, i, True, eps, (True,) * 3)
                for dy, group, m, i in zip(*parts, strict=True)
            ]
            of_x = torch.cat([each[0] for each in of_groups])
            of_affine = [each[i] for i in (1, 2) for each in of_groups]
        of_weight, of_bias = torch.cat(of_affine).view(2, groups, -1).sum(dim=1).unbind()
        return of_x, of_weight, of_bias, None, None


def _layout(x: Tensor) -> torch.memory_format:
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _to_channels(x: Tensor, groups: int) -> Tensor:
    """Copy (G·n, C, …) to (n, G·C, …), so that each group has channels of its own."""
    (rows, channels), sides = x.shape[:2], x.shape[2:]
    count = rows // groups
    out = torch.empty(
        (count, groups * channels, *sides),
        dtype=x.dtype,
        device=x.device,
        memory_format=_layout(x),
    )
    by_group = x.view(groups, count, channels, *sides).transpose(0, 1)
    out.view(count, groups, channels, *sides).copy_(by_group)
    return out


def _to_batch(x: Tensor, groups: int) -> Tensor:
    """Copy (n, G·C, …) back to (G·n, C, …), the inverse of `_to_channels`."""
    (count, rows), sides = x.shape[:2], x.shape[2:]
    channels = rows // groups
    out = torch.empty(
        (groups * count, channels, *sides),
        dtype=x.dtype,
        device=x.device,
        memory_format=_layout(x),
    )
    by_group = out.view(groups, count, channels, *sides).transpose(0, 1)
    by_group.copy_(x.view(count, groups, channels, *sides))
    return out


@torch.no_grad()
def update_statistics(
    norms: Sequence[SplitBatchNorm], seen: Sequence[Sequence[GroupStatistics | None]]
) -> None:
    """Update the running statistics of layers, in a few operations for all of them.

    The running statistics move to the mean over the groups, whose variances are unbiased.

    Args:
        norms: Layers with equal ε and momentum.
        seen: Statistics of the layers in each part of the batch; None if a layer has updated its
            running statistics itself.
    """
    torch._foreach_add_([cast(Tensor, norm.num_batches_tracked) for norm in norms], 1)
    split = [i for i, each in enumerate(seen[0]) if each is not None]
    if not split:
        return
    columns = [[cast(GroupStatistics, part[i]) for part in seen] for i in split]
    means, invstds = (
        torch.cat([_stack([getattr(each, name) for each in column]) for column in columns], dim=1)
        for name in ("mean", "invstd")
    )
    first = norms[split[0]]
    sizes = [norms[i].num_features for i in split]
    variances = invstds.pow(-2).mean(dim=0).sub_(first.eps).split(sizes)
    counts = [column[0].count for column in columns]
    torch._foreach_mul_(variances, [count / (count - 1) for count in counts])
    running = [cast(Tensor, norms[i].running_mean) for i in split]
    running += [cast(Tensor, norms[i].running_var) for i in split]
    new = [*means.mean(dim=0).split(sizes), *variances]
    torch._foreach_lerp_(running, new, cast(float, first.momentum))


def _stack(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def splits_per_rank(bn_splits: int) -> int:
    """Return the BN groups of each rank; the groups of the global batch do not depend on ranks."""
    world = world_size()
    if bn_splits % world:
        raise RunError(
            "encoder.bn_splits must be a multiple of the number of workers, because BN statistics "
            f"are computed within a worker, got encoder.bn_splits={bn_splits}, workers={world}; "
            f"try {-(-bn_splits // world) * world}"
        )
    return bn_splits // world
