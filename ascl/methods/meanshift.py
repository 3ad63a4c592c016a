"""MeanShift: BYOL with the mean of the key and its nearest neighbors in a bank as the target.

Koohpayegani, Tejankar and Pirsiavash, Mean Shift for Self-Supervised Learning, 2021,
https://arxiv.org/abs/2105.07269.

The query is a strong view, the key a weak view. With the key as the only target, this is BYOL.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import encode_shuffled, gather, share
from ascl.errors import Issue
from ascl.losses import spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_mlp, build_online
from ascl.models.memory_bank import FeatureBank
from ascl.models.momentum_encoder import MomentumCopy
from ascl.sections import Cost, Key, MethodConfig

LABEL = "MeanShift"
PAPER = "arXiv:2105.07269"
# Without negatives, a run of 750 steps needs a target that changes quickly: with momentum 0.996 and
# a weak key view, kNN reached 19% instead of 24% (seed 0).
SMOKE = {"method": {"momentum": 0.9}, "augment": {"key": "strong"}}


class Config(MethodConfig):
    name: Literal["meanshift"] = "meanshift"
    num_targets: int = Field(5, ge=1)
    """k: number of targets, the query's key and its k − 1 nearest in the bank; 1 is BYOL."""
    queue_size: Annotated[int, Key(label="bank")] = Field(4096, ge=2, le=2**22)
    """n: number of keys in the bank."""
    momentum: Annotated[float, Key(label="m")] = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=1, ema=True)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        if self.num_targets - 1 > self.queue_size:
            yield Issue(
                "method.num_targets",
                "must be at most queue_size + 1, because all targets but one are from the bank, "
                f"got num_targets={self.num_targets}, queue_size={self.queue_size}; "
                f"try {self.queue_size + 1} or fewer",
            )


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    # Plain batch norm: like BYOL, MeanShift benefits from whole-batch statistics.
    if not dataset.streams:
        return {"encoder": {"bn_splits": 1, "projector_hidden": 1024, "projector_dim": 128}}
    return {
        "method": {"num_targets": 10, "queue_size": 131072},
        "encoder": {"bn_splits": 1, "projector_hidden": 4096, "projector_dim": 256},
    }


# Shapes: N = batch, B = bank, K = targets, D = feature.
def mean_shift(query: Tensor, key: Tensor, bank: Tensor, num_targets: int) -> Tensor:
    """Mean of 2 − 2·cos between a query and its targets: its key and the key's neighbors."""
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
        keys = unit(encode_shuffled(self.target, batch.views[1], batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        with torch.autocast(query.device.type, enabled=False):
            loss = mean_shift(query, key, self.bank.features, self.config.num_targets)
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> MeanShift:
    assert isinstance(config.method, Config)
    sizes, online = config.encoder, build_online(config.encoder, norm=True)
    dim = sizes.projector_dim
    predictor = build_mlp(dim, sizes.projector_hidden, dim, bn_splits=sizes.bn_splits)
    return MeanShift(config.method, online, predictor, dim)
