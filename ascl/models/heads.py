"""Heads of an encoder: projectors and predictors."""

import itertools

from torch import nn

from ascl.models.batch_norm import SplitBatchNorm, splits_per_rank
from ascl.models.resnet import ResNet
from ascl.sections import EncoderConfig


def build_mlp(*sizes: int, bn_splits: int | None = None, last_norm: bool = False) -> nn.Sequential:
    """Build an MLP: linear layers of these sizes, with batch norm (if `bn_splits`) and ReLU.

    The last layer is linear, followed by a batch norm without scale and shift if `last_norm`.
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


def build_online(config: EncoderConfig, *, norm: bool = False) -> nn.Sequential:
    """Build an encoder and a projector with one hidden layer, which has batch norm if `norm`."""
    encoder = ResNet(config)
    splits = config.bn_splits if norm else None
    sizes = (encoder.feature_dim, config.projector_hidden, config.projector_dim)
    return nn.Sequential(encoder, build_mlp(*sizes, bn_splits=splits))
