"""Supervised learning: cross-entropy with a linear head, a reference for the other methods.

He et al., Deep Residual Learning for Image Recognition, 2015, https://arxiv.org/abs/1512.03385.

It trains on one weak view of the labeled images only; its own classifier is evaluated too.
"""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.losses import spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.resnet import ResNet
from ascl.sections import Cost, MethodConfig

LABEL = "Supervised"


class Config(MethodConfig):
    name: Literal["supervised"] = "supervised"
    needs_labels: ClassVar[bool] = True

    def cost(self) -> Cost:
        return Cost(("query",), backprops=1, ema=False)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    return {
        "augment": {"query": "weak"},
        # Plain batch norm: there is no key that batch statistics could reveal.
        "encoder": {"bn_splits": 1},
        "optim": {
            "lr": 0.1,
            "lr_scaling": "linear",
            "weight_decay": 1e-4 if dataset.streams else 5e-4,
            "warmup_epochs": 0,
        },
    }


class Supervised(Method):
    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(encoder, head)

    @property
    def encoder(self) -> nn.Module:
        return self.network[0]

    @property
    def classifier(self) -> nn.Module:
        return self.network[1]

    def forward(self, batch: Batch) -> Output:
        encoder, head = self.network
        features = encoder(batch.views[0])
        logits = head(features)
        with torch.autocast(logits.device.type, enabled=False):
            loss = F.cross_entropy(logits.float(), batch.labels)
        return Output(loss, (), {"spread": spread(unit(features))} if batch.diagnose else {})


def build(config: RunConfig, training: TrainingSet) -> Supervised:
    encoder = ResNet(config.encoder)
    return Supervised(encoder, nn.Linear(encoder.feature_dim, training.num_classes))
