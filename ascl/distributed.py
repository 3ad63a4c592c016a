"""What a method needs of other ranks; with one process every function is the plain thing.

Rule: a batch is one global batch, cut into contiguous shares by rank. What is drawn at random is
drawn for the whole batch on every rank from equal generators, so that b images on one rank and
b/2 on each of two are the same step.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def share(count: int) -> slice:
    """This rank's contiguous part of `count` things; parts differ by at most one."""
    return slice(rank() * count // world_size(), (rank() + 1) * count // world_size())


@torch.no_grad()
def gather(x: Tensor) -> Tensor:
    """The equal-sized shares of all ranks, one after the other; carries no gradient."""
    if world_size() == 1:
        return x
    x = x.contiguous()
    out = x.new_empty(world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x)
    return out


class _Gather(torch.autograd.Function):
    """As `gather`; what other ranks' losses say of this rank's share comes back to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return gather(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        everyones = total(gradients[0])
        return everyones[share(len(everyones))]


def gather_with_gradient(x: Tensor) -> Tensor:
    """As `gather`, but a loss of any rank reaches what each has put in.

    With each rank's loss a mean over its share, and gradients averaged over ranks as DDP does, the
    gradient is that of one rank with the whole batch.
    """
    if world_size() == 1:
        return x
    out: Tensor = _Gather.apply(x)
    return out


@torch.no_grad()
def agreed(x: Tensor) -> Tensor:
    """What rank 0 has computed, on every rank: sums in another order could have made them differ.

    `x` has the same shape on all of them.
    """
    if world_size() > 1:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(x, 0)
    return x


@torch.no_grad()
def gather_uneven(x: Tensor, total: int) -> Tensor:
    """As `gather` for the shares that `share(total)` cuts, which may differ in length by one."""
    if world_size() == 1:
        return x
    longest = -(-total // world_size())
    padded = x.new_zeros(longest, *x.shape[1:])
    padded[: len(x)] = x
    parts = gather(padded).view(world_size(), longest, *x.shape[1:])
    lengths = [
        (r + 1) * total // world_size() - r * total // world_size() for r in range(world_size())
    ]
    return torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])


@torch.no_grad()
def mean(x: Tensor) -> Tensor:
    """The mean over ranks."""
    return total(x) / world_size()


@torch.no_grad()
def total(x: Tensor) -> Tensor:
    """The sum over ranks."""
    if world_size() > 1:
        x = x.clone()
        dist.all_reduce(x)
    return x


def from_first(content: bytes | None) -> bytes | None:
    """What rank 0 has, on every rank: files on its disk need not be on theirs."""
    if world_size() == 1:
        return content
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    length = torch.tensor(-1 if content is None else len(content), device=device)
    dist.broadcast(length, 0)
    if length < 0:
        return None
    if rank() == 0 and content is not None:
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    else:
        buffer = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(buffer, 0)
    return buffer.cpu().numpy().tobytes()


@torch.no_grad()
def average_batch_norm(module: nn.Module) -> None:
    """Give every rank the mean of all ranks' running statistics: one checkpoint then fits all."""
    if world_size() == 1:
        return
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            for buffer in (part.running_mean, part.running_var):
                if buffer is not None:
                    buffer.copy_(mean(buffer))


@torch.no_grad()
def shuffled_keys(encoder: nn.Module, images: Tensor, permutation: Tensor) -> Tensor:
    """Keys (global batch, D) of every rank's images, encoded in shuffled order.

    A query and its key then sit in different BN groups, so that batch statistics cannot tell which
    key belongs to which query (MoCo's shuffled BN). `permutation` is of the global batch.
    """
    images = gather(images)
    keys = gather(encoder(images[permutation[share(len(images))]]))
    ordered = torch.empty_like(keys)
    ordered[permutation] = keys
    return ordered
