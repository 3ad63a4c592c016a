"""CO2: MoCo plus a consistency term between the two views' similarities to the bank.

Wei et al., CO2: Consistent Contrast for Unsupervised Visual Representation Learning, 2020,
https://arxiv.org/abs/2010.02217.

InfoNCE treats every bank feature as an equal negative. The consistency term makes the query's
distribution over the bank match that of its key.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import encode_shuffled, gather, share
from ascl.losses import bank_logits, info_nce, spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_online
from ascl.models.memory_bank import FeatureBank
from ascl.models.momentum_encoder import MomentumCopy
from ascl.sections import Cost, Key, MethodConfig

LABEL = "CO2"
PAPER = "arXiv:2010.02217"
# In short runs the momentum encoder must change slowly, or the keys in the small bank are stale.
SMOKE = {"method": {"momentum": 0.996}}


class Config(MethodConfig):
    name: Literal["co2"] = "co2"
    temperature: Annotated[float, Key(label="τ")] = Field(0.1, gt=0)
    """τ of InfoNCE."""
    consistency_weight: float = Field(1.0, ge=0)
    """α: weight of the consistency term relative to InfoNCE; 0 is MoCo."""
    consistency_temperature: float = Field(0.05, gt=0)
    """τ_con of both views' distributions over the bank in the consistency term."""
    queue_size: Annotated[int, Key(label="bank")] = Field(4096, ge=2, le=2**22)
    """n: number of keys in the bank."""
    momentum: Annotated[float, Key(label="m")] = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def inert(self) -> frozenset[str]:
        unused = {"consistency_temperature"} if self.consistency_weight == 0 else set()
        return super().inert() | unused

    def cost(self) -> Cost:
        # The ASCL paper's table lists CO2 without a momentum encoder, but CO2 is built on MoCo.
        return Cost(("query", "key"), backprops=1, ema=True)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {"augment": {"key": "strong"}}
    if dataset.streams:
        momentum = 0.999 if preset == "code" else 0.99  # as in MoCo
        tree["method"] = {"queue_size": 65536, "momentum": momentum, "consistency_weight": 10.0}
    return tree


# Shapes: N = batch, B = bank.
def consistency(query: Tensor, key: Tensor, temperature: float) -> Tensor:
    """½(KL(P‖Q) + KL(Q‖P)) of two views' similarities (N, B) to the bank, mean over the batch."""
    log_q = torch.log_softmax(query / temperature, dim=1)
    log_p = torch.log_softmax(key / temperature, dim=1)
    # Both divergences in one sum: Σ p(log p − log q) + Σ q(log q − log p).
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
        keys = unit(encode_shuffled(self.target, batch.views[1], batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        with torch.autocast(query.device.type, enabled=False):
            cosines = bank_logits(query, key, bank, 1.0)
            loss = info_nce(cosines / config.temperature)
            # Over the bank only: the key has no counterpart to the query's similarity to its key.
            alike = consistency(cosines[:, 1:], key @ bank.T, config.consistency_temperature)
            loss = loss + config.consistency_weight * alike
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> CO2:
    assert isinstance(config.method, Config)
    return CO2(config.method, build_online(config.encoder), config.encoder.projector_dim)
