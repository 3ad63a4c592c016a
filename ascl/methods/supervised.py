"""Supervised learning: cross-entropy with a linear head, what the other methods are held against.

It trains on the labelled images only, on one weak view, and its own classifier is scored too.
"""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from ascl.config import Cost, MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.encoders import ResNet
from ascl.losses import spread, unit
from ascl.methods import Batch, Method, Output, TrainingSet


class Config(MethodConfig):
    name: Literal["supervised"] = "supervised"
    needs_labels: ClassVar[bool] = True

    def cost(self) -> Cost:
        return Cost(("query",), backprops=1, ema=False)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    return {
        "augment": {"query": "weak"},
        # Plain batch norm: there is no key to single out.
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
        return self.network

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
