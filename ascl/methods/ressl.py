"""ReSSL: a query keeps the relations of its key to the bank, and `relabel` is a prior on them.

A strong view is the query, a weak one the key. The key's similarities to the bank, made sharp, are
the target of the query's; there is no positive logit, and no feature of the bank is a negative.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ascl.bank import FeatureBank
from ascl.config import Cost, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, share, shuffled_keys
from ascl.encoders import projected
from ascl.faults import Fault
from ascl.losses import spread, unit
from ascl.methods import Batch, Method, Output, TrainingSet
from ascl.momentum import MomentumCopy
from ascl.relabel import RelabelConfig, soft_labels


class Config(RelabelConfig):
    name: Literal["ressl"] = "ressl"
    temperature: float = Field(0.1, gt=0)
    """τ of the query's similarities to the bank."""
    key_temperature: float = Field(0.04, gt=0)
    """τ of the key's, which are the target: below the query's, so that the target is sharper."""
    queue_size: int = Field(4096, ge=2, le=2**22)
    """n: how many keys the bank holds."""
    momentum: float = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=1, ema=True)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        yield from self.neighbour_faults(self.queue_size, "keys in the bank")


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    optim = {"lr": 0.06, "lr_scaling": "linear", "weight_decay": 5e-4, "warmup_epochs": 5}
    if not dataset.streams:
        return {"optim": optim}
    return {
        "method": {"queue_size": 131072, "momentum": 0.999},
        "optim": {**optim, "lr": 0.05, "weight_decay": 1e-4},
    }


# Shapes: N = batch, B = bank.
def with_prior(target: Tensor, labels: Tensor) -> Tensor:
    """The target (N, B), weighed anew by pseudo labels (N, 1 + B): t_j ∝ p_j · (y_0 + y_j).

    The key's own share y_0 has no column here and stands under all of them, so that labels which
    name no neighbour leave the target as it is.
    """
    weighed = target * (labels[:, :1] + labels[:, 1:])
    return weighed / weighed.sum(dim=1, keepdim=True)


class ReSSL(Method):
    def __init__(self, config: Config, online: nn.Sequential, dim: int) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.target = MomentumCopy(self.online)
        self.bank = FeatureBank(config.queue_size, dim)

    def forward(self, batch: Batch) -> Output:
        config, bank = self.config, self.bank.features
        self.target.follow(self.online, config.momentum)
        query = unit(self.online(batch.views[0]))
        keys = unit(shuffled_keys(self.target, batch.views[1], batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        with torch.autocast(query.device.type, enabled=False):
            similarity = key @ bank.T
            target = torch.softmax(similarity / config.key_temperature, dim=1)
            if config.relabel != "none":
                labels, seen = soft_labels(
                    config,
                    similarity,
                    batch.labels,
                    self.bank.classes,
                    diagnose=batch.diagnose,
                )
                target = with_prior(target, labels)
                diagnostics |= seen
            loss = F.cross_entropy(query @ bank.T / config.temperature, target)
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> ReSSL:
    assert isinstance(config.method, Config)
    return ReSSL(config.method, projected(config.encoder), config.encoder.projector_dim)
