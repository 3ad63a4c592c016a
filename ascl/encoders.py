"""Encoders: ResNets with a small-image stem and a width, split batch norm, and heads.

Blocks are torchvision's; what is ours is how they are stacked: torchvision fixes the width at 64.
"""

import itertools
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from ascl.config import EncoderConfig, uneven_micro_batches
from ascl.distributed import world_size

DEPTHS = {
    "resnet18": ("BasicBlock", (2, 2, 2, 2)),
    "resnet34": ("BasicBlock", (3, 4, 6, 3)),
    "resnet50": ("Bottleneck", (3, 4, 6, 3)),
}


class SplitBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm whose statistics are taken in `splits` groups of the batch, as on as many GPUs.

    Running statistics are the mean of the groups'. Works on (N, C) and (N, C, H, W).
    """

    def __init__(self, num_features: int, *, splits: int = 1, affine: bool = True) -> None:
        super().__init__(num_features, affine=affine)
        self.splits = splits

    def _check_input_dim(self, input: Tensor) -> None:  # the base class leaves this to us
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.splits == 1:
            return super().forward(input)
        if len(input) % self.splits:
            raise ValueError(
                "the batch must be a multiple of the BN groups, "
                f"got a batch of {len(input)}, {self.splits} groups"
            )
        mean, variance = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        means = mean.expand(self.splits, -1).clone()
        variances = variance.expand(self.splits, -1).clone()
        momentum = cast(float, self.momentum)
        # Group by group: slices of the batch stay contiguous in channels-last memory, where the
        # usual trick of viewing groups as more channels would need a copy.
        groups = [
            F.batch_norm(group, m, v, self.weight, self.bias, True, momentum, self.eps)
            for group, m, v in zip(input.chunk(self.splits), means, variances, strict=True)
        ]
        with torch.no_grad():
            mean.copy_(means.mean(dim=0))
            variance.copy_(variances.mean(dim=0))
            cast(Tensor, self.num_batches_tracked).add_(1)
        return torch.cat(groups)


def splits_per_rank(bn_splits: int) -> int:
    """BN groups on each rank, so that the groups of the global batch are the same on any number."""
    world = world_size()
    if bn_splits % world:
        raise ValueError(
            "the BN groups must divide evenly over the workers, for statistics never cross them, "
            f"got encoder.bn_splits={bn_splits}, workers={world}; "
            f"try {-(-bn_splits // world) * world}"
        )
    return bn_splits // world


def in_parts(net: nn.Module, x: Tensor, parts: int) -> Tensor:
    """What `net` makes of a training batch, with the activations of one part at a time in memory.

    For its gradient a part is computed once more. All start from the same running statistics, which
    then are the mean of what the parts make of them, and so of what all BN groups do.
    """
    outputs: list[Tensor] = []
    statistics: list[dict[str, Tensor]] = []
    for part in x.chunk(parts):
        # Copies of its own: what the second computation does to them is read by no one.
        own = {name: buffer.clone() for name, buffer in net.named_buffers()}
        run = partial(functional_call, net, own)
        if torch.is_grad_enabled():
            outputs.append(checkpoint(run, part, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(run(part))
        statistics.append(own)
    with torch.no_grad():
        for name, buffer in net.named_buffers():
            each = torch.stack([own[name] for own in statistics])
            # Batches are counted, and by every part alike.
            buffer.copy_(each.mean(dim=0) if buffer.is_floating_point() else each[0])
    return torch.cat(outputs)


class ResNet(nn.Module):
    """A ResNet without its classifier: images (N, 3, H, W) → features (N, feature_dim)."""

    micro_batches = 1

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        from torchvision.models import resnet  # slow to import, and not needed to check a config

        norm = partial(SplitBatchNorm, splits=splits_per_rank(config.bn_splits))
        block_name, depths = DEPTHS[config.name]
        block = getattr(resnet, block_name)
        width = config.width
        stem: list[nn.Module] = [
            nn.Conv2d(3, width, 3, padding=1, bias=False)
            if config.stem == "small"
            else nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            norm(width),
            nn.ReLU(inplace=True),
        ]
        if config.max_pool:
            stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*stem)
        stages: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            planes = width * 2**stage
            outputs = planes * block.expansion
            for i in range(depth):
                stride = 2 if i == 0 and stage > 0 else 1
                shortcut = (
                    nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
                    if stride != 1 or inputs != outputs
                    else None
                )
                stages.append(block(inputs, planes, stride, shortcut, norm_layer=norm))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.feature_dim = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def cut_batches(self, micro_batches: int) -> None:
        """Go through each training batch in so many parts, of whole BN groups: see `in_parts`."""
        for norm in self.modules():
            if isinstance(norm, SplitBatchNorm):
                if norm.splits % micro_batches:
                    workers = world_size()
                    raise ValueError(
                        uneven_micro_batches(norm.splits * workers, micro_batches, workers)
                    )
                norm.splits //= micro_batches
        self.micro_batches = micro_batches

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.micro_batches > 1:
            x = in_parts(nn.Sequential(self.stem, self.stages), x, self.micro_batches)
        else:
            x = self.stages(self.stem(x))
        return x.mean(dim=(2, 3))


def mlp(*sizes: int, bn_splits: int | None = None, last_norm: bool = False) -> nn.Sequential:
    """A head through layers of these sizes: linear, batch norm if `bn_splits` is given, ReLU, …

    It ends on a linear layer, or with `last_norm` on a batch norm without scale and shift.
    """

    def norm(size: int, *, affine: bool) -> list[nn.Module]:
        if bn_splits is None:
            return []
        return [SplitBatchNorm(size, splits=splits_per_rank(bn_splits), affine=affine)]

    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), *norm(outputs, affine=True), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(sizes[-2], sizes[-1]))
    return nn.Sequential(*layers, *(norm(sizes[-1], affine=False) if last_norm else []))


def projected(config: EncoderConfig, *, norm: bool = False) -> nn.Sequential:
    """An encoder and its projector with one hidden layer, of batch norm if `norm`."""
    encoder = ResNet(config)
    splits = config.bn_splits if norm else None
    sizes = (encoder.feature_dim, config.projector_hidden, config.projector_dim)
    return nn.Sequential(encoder, mlp(*sizes, bn_splits=splits))
