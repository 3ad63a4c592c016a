"""CO2: MoCo, and the two views of an image must see the bank alike.

InfoNCE takes every feature of the bank for a plain negative; the consistency term lets the key say
which of them are near, as a soft label that the query's similarities follow.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.bank import FeatureBank
from ascl.config import Cost, MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, share, shuffled_keys
from ascl.encoders import projected
from ascl.losses import bank_logits, info_nce, spread, unit
from ascl.methods import Batch, Method, Output, TrainingSet
from ascl.momentum import MomentumCopy


class Config(MethodConfig):
    name: Literal["co2"] = "co2"
    temperature: float = Field(0.1, gt=0)
    """τ of InfoNCE."""
    consistency_weight: float = Field(1.0, ge=0)
    """α: what the consistency term counts beside InfoNCE; 0 is MoCo."""
    consistency_temperature: float = Field(0.05, gt=0)
    """τ_con of both views' similarities to the bank in that term."""
    queue_size: int = Field(4096, ge=2, le=2**22)
    """n: how many keys the bank holds."""
    momentum: float = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def inert(self) -> frozenset[str]:
        return frozenset({"consistency_temperature"} if self.consistency_weight == 0 else {})

    def cost(self) -> Cost:
        # The paper's table says that CO2 has no momentum encoder; it is built on MoCo, with one.
        return Cost(("query", "key"), backprops=1, ema=True)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {"augment": {"key": "strong"}}
    if dataset.streams:
        momentum = 0.999 if preset == "code" else 0.99  # as MoCo's
        tree["method"] = {"queue_size": 65536, "momentum": momentum, "consistency_weight": 10.0}
    return tree


# Shapes: N = batch, B = bank.
def consistency(query: Tensor, key: Tensor, temperature: float) -> Tensor:
    """½(KL(P‖Q) + KL(Q‖P)) of two views' similarities (N, B) to the bank, mean over the batch."""
    log_q = torch.log_softmax(query / temperature, dim=1)
    log_p = torch.log_softmax(key / temperature, dim=1)
    # The two sums in one: Σ p(log p − log q) + Σ q(log q − log p).
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1).mean() / 2


class CO2(Method):
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
        with torch.autocast(query.device.type, enabled=False):
            cosines = bank_logits(query, key, bank, 1.0)
            loss = info_nce(cosines / config.temperature)
            # Over the bank only: the own key has no counterpart among the key's similarities.
            alike = consistency(cosines[:, 1:], key @ bank.T, config.consistency_temperature)
            loss = loss + config.consistency_weight * alike
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> CO2:
    assert isinstance(config.method, Config)
    return CO2(config.method, projected(config.encoder), config.encoder.projector_dim)
