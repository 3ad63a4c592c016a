"""What a method needs of other ranks; with one process every function is the plain thing.

Rule: a batch is one global batch, cut into contiguous shares by rank. What is drawn at random is
drawn for the whole batch on every rank from equal generators, so that b images on one rank and
b/2 on each of two are the same step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    if total % world_size() == 0:
        return gather(x)
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


@dataclass(frozen=True)
class Route:
    """Which rows a rank sends and gets when those of all ranks are put in a new order."""

    sends: list[int]  # of its own rows, by the rank that wants them
    sends_to: list[int]  # how many to each rank
    gets_from: list[int]  # how many from each rank
    places: list[int]  # of what it gets, rank after rank: the place in its share of the new order


def route(order: Sequence[int], rank: int, world: int) -> Route:
    """`order[i]` is the row that goes to place i; rows and places are in equal shares by rank."""
    size = len(order) // world
    wanted = [row // size for row in order[rank * size : (rank + 1) * size]]  # from which rank
    mine = [place for place, row in enumerate(order) if row // size == rank]
    targets = [place // size for place in mine]
    return Route(
        sends=[order[place] - rank * size for place in mine],
        sends_to=[targets.count(r) for r in range(world)],
        gets_from=[wanted.count(r) for r in range(world)],
        # What a rank sends to another is in the order of its places; so is what arrives from it.
        places=sorted(range(size), key=lambda place: wanted[place]),
    )


@torch.no_grad()
def reordered(x: Tensor, order: Tensor) -> Tensor:
    """This rank's share of `gather(x)[order]`, each row sent only to the rank that wants it.

    `order` is best on the CPU: the host must know it, and would wait for a device to tell.
    """
    if world_size() == 1:
        return x[_moved(order, x.device)]
    own = route(order.tolist(), rank(), world_size())
    arrived = x.new_empty(x.shape)
    sends = x[_moved(torch.tensor(own.sends), x.device)].contiguous()
    dist.all_to_all_single(arrived, sends, own.gets_from, own.sends_to)
    out = torch.empty_like(arrived)
    out[_moved(torch.tensor(own.places), x.device)] = arrived
    return out


def _moved(index: Tensor, device: torch.device) -> Tensor:
    # Or else the host would wait until the device has done all that it was given before.
    return index.to(device, non_blocking=True)


@torch.no_grad()
def shuffled_keys(encoder: nn.Module, images: Tensor, permutation: Tensor) -> Tensor:
    """Keys (global batch, D) of every rank's images, encoded in shuffled order.

    A query and its key then sit in different BN groups, so that batch statistics cannot tell which
    key belongs to which query (MoCo's shuffled BN). `permutation` is of the global batch, on the
    CPU.
    """
    keys = gather(encoder(reordered(images, permutation)))
    ordered = torch.empty_like(keys)
    ordered[_moved(permutation, keys.device)] = keys
    return ordered
