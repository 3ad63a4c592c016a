"""MeanShift: BYOL whose query is drawn to the mean of its own key and the key's nearest in a bank.

A strong view is the query, a weak one the key. With one target, the own key, it is BYOL.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.bank import FeatureBank
from ascl.config import Cost, MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, share, shuffled_keys
from ascl.encoders import mlp, projected
from ascl.faults import Fault
from ascl.losses import spread, unit
from ascl.methods import Batch, Method, Output, TrainingSet
from ascl.momentum import MomentumCopy


class Config(MethodConfig):
    name: Literal["meanshift"] = "meanshift"
    num_targets: int = Field(5, ge=1)
    """k: the own key and its k − 1 nearest in the bank; 1 is BYOL."""
    queue_size: int = Field(4096, ge=2, le=2**22)
    """n: how many keys the bank holds."""
    momentum: float = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=1, ema=True)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        if self.num_targets - 1 > self.queue_size:
            yield Fault(
                "method.num_targets",
                "all targets but the own key come from the bank, "
                f"got num_targets={self.num_targets}, queue_size={self.queue_size}; "
                f"try {self.queue_size + 1} or fewer",
            )


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    # Plain batch norm, as BYOL: it leans on whole-batch statistics.
    if not dataset.streams:
        return {"encoder": {"bn_splits": 1, "projector_hidden": 1024, "projector_dim": 128}}
    return {
        "method": {"num_targets": 10, "queue_size": 131072},
        "encoder": {"bn_splits": 1, "projector_hidden": 4096, "projector_dim": 256},
    }


# Shapes: N = batch, B = bank, K = targets, D = feature.
def mean_shift(query: Tensor, key: Tensor, bank: Tensor, num_targets: int) -> Tensor:
    """Mean of 2 − 2·cos between a query and its own key with the key's nearest in the bank."""
    nearest = (key @ bank.T).topk(num_targets - 1, dim=1).indices  # (N, K − 1)
    targets = torch.cat((key.unsqueeze(1), bank[nearest]), dim=1)  # (N, K, D)
    return 2 - 2 * (query * targets.mean(dim=1)).sum(dim=1).mean()


class MeanShift(Method):
    def __init__(
        self, config: Config, online: nn.Sequential, predictor: nn.Module, dim: int
    ) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.predictor = predictor
        self.target = MomentumCopy(online)
        self.bank = FeatureBank(config.queue_size, dim)

    def forward(self, batch: Batch) -> Output:
        self.target.follow(self.online, self.config.momentum)
        query = unit(self.predictor(self.online(batch.views[0])))
        keys = unit(shuffled_keys(self.target, batch.views[1], batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        with torch.autocast(query.device.type, enabled=False):
            loss = mean_shift(query, key, self.bank.features, self.config.num_targets)
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> MeanShift:
    assert isinstance(config.method, Config)
    sizes, online = config.encoder, projected(config.encoder, norm=True)
    dim = sizes.projector_dim
    predictor = mlp(dim, sizes.projector_hidden, dim, bn_splits=sizes.bn_splits)
    return MeanShift(config.method, online, predictor, dim)
