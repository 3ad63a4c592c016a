"""Communication between ranks; with one process every function is a no-op or its local equivalent.

Rule: a batch is one global batch, split into contiguous shares by rank. Every rank draws the random
numbers of the whole batch from identical generators, so a step with b images on one rank equals
a step with b/2 images on each of two ranks.
"""

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
    """Return this rank's contiguous slice of `count` items; slices differ by at most one item."""
    return slice(rank() * count // world_size(), (rank() + 1) * count // world_size())


@torch.no_grad()
def gather(x: Tensor) -> Tensor:
    """Concatenate the equal-sized shares of all ranks, without a gradient."""
    if world_size() == 1:
        return x
    x = x.contiguous()
    out = x.new_empty(world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x)
    return out


class _Gather(torch.autograd.Function):
    """`gather` whose backward pass sums the gradients of all ranks for this rank's share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return gather(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = total(gradients[0])
        return summed[share(len(summed))]


def gather_with_gradient(x: Tensor) -> Tensor:
    """Gather shares like `gather`, and backpropagate every rank's loss into every share.

    If each rank's loss is the mean over its share and gradients are averaged over ranks, as DDP
    does, the gradient equals that of one rank with the whole batch.
    """
    if world_size() == 1:
        return x
    out: Tensor = _Gather.apply(x)
    return out


@torch.no_grad()
def broadcast_first(x: Tensor) -> Tensor:
    """Return rank 0's tensor on every rank, because results may differ by summation order.

    `x` has the same shape on all ranks.
    """
    if world_size() > 1:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(x, 0)
    return x


@torch.no_grad()
def gather_uneven(x: Tensor, total: int) -> Tensor:
    """Gather the shares of `share(total)`, whose lengths may differ by one."""
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


def broadcast_bytes(content: bytes | None) -> bytes | None:
    """Return rank 0's bytes on every rank: the other ranks may not have rank 0's files."""
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
    """Average the running statistics over all ranks, so that one checkpoint fits every rank."""
    if world_size() == 1:
        return
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            for buffer in (part.running_mean, part.running_var):
                if buffer is not None:
                    buffer.copy_(mean(buffer))


@dataclass(frozen=True)
class Shuffle:
    """A permutation of the rows of all ranks, and the exchange that this rank takes part in.

    Made on the host. Its tensors move to the device with the batch, so that no step waits.
    """

    sends: Tensor  # (N,) indices of its own rows, grouped by the rank that receives them
    places: Tensor  # (N,) index among the received rows of each row of its new share
    restores: Tensor  # (N of all ranks,) index after the permutation of each row
    sends_to: list[int]  # number of rows sent to each rank
    gets_from: list[int]  # number of rows received from each rank


def plan_shuffle(order: Tensor, rank: int, world: int) -> Shuffle:
    """Plan the exchange for `order`, where row `order[i]` moves to index i.

    Every rank has an equal share of the rows before and after.
    """
    size = len(order) // world
    own = slice(rank * size, (rank + 1) * size)
    restores = order.argsort()
    sources, targets = order[own] // size, restores[own] // size
    return Shuffle(
        sends=restores[own].argsort(),
        # Rows that one rank sends to another are sorted by their new index, and arrive sorted.
        places=sources.argsort(stable=True).argsort(),
        restores=restores,
        sends_to=targets.bincount(minlength=world).tolist(),
        gets_from=sources.bincount(minlength=world).tolist(),
    )


@torch.no_grad()
def reorder(images: Tensor, shuffle: Shuffle) -> Tensor:
    """Return this rank's share of the permuted images; each is sent only to the rank it is for.

    The images keep their memory layout. The shuffle is on their device.
    """
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    rows = images.permute(0, 2, 3, 1) if channels_last else images
    rows = rows.index_select(0, shuffle.sends)
    if world_size() > 1:
        arrived = torch.empty_like(rows)
        dist.all_to_all_single(arrived, rows, shuffle.gets_from, shuffle.sends_to)
        rows = arrived.index_select(0, shuffle.places)
    return rows.permute(0, 3, 1, 2) if channels_last else rows


@torch.no_grad()
def encode_shuffled(encoder: nn.Module, images: Tensor, shuffle: Shuffle) -> Tensor:
    """Encode the images of all ranks in shuffled order; return keys (global batch, D).

    A query and its key are then in different BN groups, so batch statistics do not reveal which
    key belongs to which query (MoCo's shuffled BN). The shuffle is on the device of the images.
    """
    keys = gather(encoder(reorder(images, shuffle)))
    return keys.index_select(0, shuffle.restores)
