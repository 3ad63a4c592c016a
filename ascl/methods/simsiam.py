"""SimSiam: each view predicts the projection of the other view, with a stopped gradient.

Chen and He, Exploring Simple Siamese Representation Learning, 2020,
https://arxiv.org/abs/2011.10566.

No negatives, no bank and no momentum encoder: the stopped gradient and a predictor with a constant
learning rate prevent collapse.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.losses import spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_mlp
from ascl.models.resnet import ResNet
from ascl.sections import Cost, MethodConfig

LABEL = "SimSiam"
PAPER = "arXiv:2011.10566"


class Config(MethodConfig):
    name: Literal["simsiam"] = "simsiam"
    predictor_hidden: int = Field(512, ge=1, le=2**16)
    """Width of the predictor's bottleneck; published as a quarter of `encoder.projector_dim`."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=2, ema=False)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    lr, weight_decay = (0.05, 1e-4) if dataset.streams else (0.06, 5e-4)
    return {
        # MoCo v2's views: jitter 0.4, 0.4, 0.4, 0.1.
        "augment": {"query": "strong", "key": "strong", "strength": 0.5},
        # Plain batch norm: published with statistics of the whole batch.
        "encoder": {"bn_splits": 1, "projector_hidden": 2048, "projector_dim": 2048},
        # No warm-up: the predictor has its full learning rate from the first step.
        "optim": {
            "lr": lr,
            "lr_scaling": "linear",
            "weight_decay": weight_decay,
            "warmup_epochs": 0,
        },
    }


class SimSiam(Method):
    def __init__(self, online: nn.Sequential, predictor: nn.Module) -> None:
        super().__init__()
        self.online = online
        self.predictor = predictor

    def fixed_rate(self) -> tuple[nn.Parameter, ...]:
        return tuple(self.predictor.parameters())

    def forward(self, batch: Batch) -> Output:
        z1, z2 = (self.online(view) for view in batch.views)
        p1, p2 = unit(self.predictor(z1)), unit(self.predictor(z2))
        with torch.autocast(p1.device.type, enabled=False):
            loss = -(cosine(p1, unit(z2.detach())) + cosine(p2, unit(z1.detach()))) / 2
        # Of the predictions: batch norm keeps projections centered even if they collapse.
        return Output(loss, (), {"spread": spread(p1)} if batch.diagnose else {})


def cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean cosine of corresponding unit rows (N, D)."""
    return (prediction * target).sum(dim=1).mean()


def build(config: RunConfig, training: TrainingSet) -> SimSiam:
    assert isinstance(config.method, Config)
    sizes, encoder = config.encoder, ResNet(config.encoder)
    hidden, dim, splits = sizes.projector_hidden, sizes.projector_dim, sizes.bn_splits
    widths = (encoder.feature_dim, hidden, hidden, dim)
    projector = build_mlp(*widths, bn_splits=splits, last_norm=True)
    predictor = build_mlp(dim, config.method.predictor_hidden, dim, bn_splits=splits)
    return SimSiam(nn.Sequential(encoder, projector), predictor)
