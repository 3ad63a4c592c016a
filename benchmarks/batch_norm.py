"""All batch norms of a ResNet-18, against a loop over their groups that concatenates the outputs.

With a gradient (forward and backward, as the online encoder) and without (as the momentum encoder).
CPU time of one thread, because the difference is smaller than what other processes cost.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ascl.memory import keep_freed
from ascl.models.batch_norm import SplitBatchNorm, update_statistics
from benchmarks.timing import Measure, Ratio, alternate

Shape = tuple[int, int, int, int]


def looped(norm: SplitBatchNorm, x: Tensor) -> Tensor:
    """Normalize one group after the other, as SplitBatchNorm did before."""
    assert norm.running_mean is not None and norm.running_var is not None
    means = norm.running_mean.expand(norm.splits, -1).clone()
    variances = norm.running_var.expand(norm.splits, -1).clone()
    groups = [
        F.batch_norm(group, mean, variance, norm.weight, norm.bias, True, 0.1, norm.eps)
        for group, mean, variance in zip(x.chunk(norm.splits), means, variances, strict=True)
    ]
    with torch.no_grad():
        norm.running_mean.copy_(means.mean(dim=0))
        norm.running_var.copy_(variances.mean(dim=0))
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
    return torch.cat(groups)


def layers(width: int, batch: int, side: int) -> list[Shape]:
    """Return the shapes of the activations that the 20 batch norms of a ResNet-18 normalize."""
    return [(batch, width * 2**i, side // 2**i, side // 2**i) for i in range(4) for _ in range(5)]


def passes(shapes: Sequence[Shape], groups: int, *, backward: bool) -> tuple[Measure, Measure]:
    """Make measures of our layers and of the loop, on the same activations."""
    torch.set_num_threads(1)
    distinct = {shape: torch.randn(shape) for shape in shapes}
    values = {
        shape: x.contiguous(memory_format=torch.channels_last) for shape, x in distinct.items()
    }
    norms = [SplitBatchNorm(shape[1], splits=groups) for shape in shapes]
    for norm in norms:
        norm.deferred = True

    def run(normalize: Callable[[SplitBatchNorm, Tensor], Tensor]) -> None:
        for norm, shape in zip(norms, shapes, strict=True):
            x = values[shape].detach().requires_grad_(backward)
            out = normalize(norm, x)
            if backward:
                torch.autograd.grad(out, [x, *norm.parameters()], values[shape])

    @torch.set_grad_enabled(backward)
    def ours() -> float:
        start = time.process_time()
        run(lambda norm, x: norm(x))
        update_statistics(norms, [[norm.seen for norm in norms]])
        return time.process_time() - start

    @torch.set_grad_enabled(backward)
    def loop() -> float:
        start = time.process_time()
        run(looped)
        return time.process_time() - start

    ours(), loop()
    return ours, loop


def run() -> Iterator[Ratio]:
    keep_freed()
    for width, batch, side, groups in ((8, 32, 16, 4), (16, 256, 32, 8), (64, 64, 32, 8)):
        for backward in (True, False):
            a, b = alternate(
                *passes(layers(width, batch, side), groups, backward=backward), rounds=31
            )
            kind = "forward and backward" if backward else "without gradient"
            name = f"batch norms of a {width}-wide ResNet-18, batch {batch}, {groups} groups"
            yield Ratio(f"{name}, {kind}: loop", a, b, "≥ 1.2" if not backward else "≥ 1")
