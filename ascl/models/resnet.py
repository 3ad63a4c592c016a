"""ResNets with a stem for small images, a variable width and split batch norm.

He et al., Deep Residual Learning for Image Recognition, 2015, https://arxiv.org/abs/1512.03385.
Blocks are torchvision's; the network is built here, because torchvision fixes the width at 64.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ascl.config import uneven_micro_batches
from ascl.distributed import world_size
from ascl.errors import RunError
from ascl.models.batch_norm import (
    GroupStatistics,
    SplitBatchNorm,
    splits_per_rank,
    update_statistics,
)
from ascl.sections import EncoderConfig

DEPTHS = {
    "resnet18": ("BasicBlock", (2, 2, 2, 2)),
    "resnet34": ("BasicBlock", (3, 4, 6, 3)),
    "resnet50": ("Bottleneck", (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A ResNet without its classifier: images (N, 3, H, W) → features (N, feature_dim)."""

    micro_batches = 1

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        from torchvision.models import resnet  # slow to import, not needed to validate a config

        split_norm = partial(SplitBatchNorm, splits=splits_per_rank(config.bn_splits))
        block_name, depths = DEPTHS[config.name]
        block = getattr(resnet, block_name)
        width = config.width
        stem: list[nn.Module] = [
            nn.Conv2d(3, width, 3, padding=1, bias=False)
            if config.stem == "small"
            else nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            split_norm(width),
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
                    nn.Sequential(
                        nn.Conv2d(inputs, outputs, 1, stride, bias=False), split_norm(outputs)
                    )
                    if stride != 1 or inputs != outputs
                    else None
                )
                stages.append(block(inputs, planes, stride, shortcut, norm_layer=split_norm))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.feature_dim = inputs
        self.norms = [part for part in self.modules() if isinstance(part, SplitBatchNorm)]
        for norm in self.norms:
            norm.deferred = True
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def cut_batches(self, micro_batches: int) -> None:
        """Process each training batch in this many parts, each of whole BN groups."""
        for norm in self.norms:
            if norm.splits % micro_batches:
                workers = world_size()
                raise RunError(uneven_micro_batches(norm.splits * workers, micro_batches, workers))
            norm.splits //= micro_batches
            norm.parts = micro_batches
        self.micro_batches = micro_batches

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self._features(x)
        outputs: list[Tensor] = []
        seen: list[list[GroupStatistics | None]] = []
        for part in x.chunk(self.micro_batches):
            if self.micro_batches > 1 and torch.is_grad_enabled():
                # The backward pass recomputes the part, so that the activations of only one part
                # are in memory. What its layers have seen then is not used.
                output = checkpoint(
                    self._features, part, use_reentrant=False, preserve_rng_state=False
                )
            else:
                output = self._features(part)
            outputs.append(output)
            seen.append([norm.seen for norm in self.norms])
        update_statistics(self.norms, seen)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _features(self, x: Tensor) -> Tensor:
        maps: Tensor = self.stages(self.stem(x))
        return maps.mean(dim=(2, 3))
