"""CLSA: MoCo plus a stronger view that is trained to match the query's similarity distribution.

Wang and Qi, Contrastive Learning with Stronger Augmentations, 2021,
https://arxiv.org/abs/2104.07713.

RandAugment may distort an image so much that matching its key directly would be too hard. The
stronger view therefore uses the query's similarities to the key and the bank as a soft label.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import encode_shuffled, gather, share
from ascl.losses import bank_logits, info_nce, spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_online
from ascl.models.memory_bank import FeatureBank
from ascl.models.momentum_encoder import MomentumCopy
from ascl.sections import Cost, Key, MethodConfig

LABEL = "CLSA"
PAPER = "arXiv:2104.07713"
# In short runs the momentum encoder must change slowly, or the keys in the small bank are stale.
SMOKE = {"method": {"momentum": 0.996}}


class Config(MethodConfig):
    name: Literal["clsa"] = "clsa"
    temperature: Annotated[float, Key(label="τ")] = Field(0.1, gt=0)
    """τ of InfoNCE and of both distributions in the stronger view's term."""
    stronger_weight: float = Field(1.0, ge=0)
    """α: weight of the stronger view's term relative to InfoNCE; 0 is MoCo."""
    queue_size: Annotated[int, Key(label="bank")] = Field(4096, ge=2, le=2**22)
    """n: number of keys in the bank."""
    momentum: Annotated[float, Key(label="m")] = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def cost(self) -> Cost:
        return Cost(("query", "key", "stronger"), backprops=2, ema=True)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    # The paper's weak views are MoCo v2's augmentation, which is called strong here.
    tree: dict[str, Any] = {"augment": {"query": "strong", "key": "strong"}}
    if dataset.streams:
        momentum = 0.999 if preset == "code" else 0.99  # as in MoCo
        tree["method"] = {"queue_size": 65536, "momentum": momentum, "temperature": 0.2}
    return tree


class CLSA(Method):
    def __init__(self, config: Config, online: nn.Sequential, dim: int) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.target = MomentumCopy(self.online)
        self.bank = FeatureBank(config.queue_size, dim)

    def forward(self, batch: Batch) -> Output:
        config, bank = self.config, self.bank.features
        self.target.follow(self.online, config.momentum)
        query_view, key_view, stronger_view = batch.views
        query, stronger = unit(self.online(query_view)), unit(self.online(stronger_view))
        keys = unit(encode_shuffled(self.target, key_view, batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        with torch.autocast(query.device.type, enabled=False):
            logits = bank_logits(query, key, bank, config.temperature)
            # Detached: the query is the target here and gets no gradient from this term.
            labels = logits.detach().softmax(dim=1)
            follows = info_nce(bank_logits(stronger, key, bank, config.temperature), labels)
            loss = info_nce(logits) + config.stronger_weight * follows
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> CLSA:
    assert isinstance(config.method, Config)
    return CLSA(config.method, build_online(config.encoder), config.encoder.projector_dim)
