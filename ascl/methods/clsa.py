"""CLSA: MoCo, and a stronger view must see key and bank as the query does.

RandAugment may leave so little of a picture that its key is too much to ask for. So the third view
is not matched with the key itself: it follows the query's similarities as a soft label.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from ascl.bank import FeatureBank
from ascl.config import Cost, MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, share, shuffled_keys
from ascl.encoders import projected
from ascl.losses import bank_logits, info_nce, spread, unit
from ascl.methods import Batch, Method, Output, TrainingSet
from ascl.momentum import MomentumCopy


class Config(MethodConfig):
    name: Literal["clsa"] = "clsa"
    temperature: float = Field(0.1, gt=0)
    """τ of InfoNCE and of both similarities in the stronger view's term."""
    stronger_weight: float = Field(1.0, ge=0)
    """α: what the stronger view's term counts beside InfoNCE; 0 is MoCo."""
    queue_size: int = Field(4096, ge=2, le=2**22)
    """n: how many keys the bank holds."""
    momentum: float = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def cost(self) -> Cost:
        return Cost(("query", "key", "stronger"), backprops=2, ema=True)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    # What the paper calls weak is MoCo v2's view of both encoders, which is strong here.
    tree: dict[str, Any] = {"augment": {"query": "strong", "key": "strong"}}
    if dataset.streams:
        momentum = 0.999 if preset == "code" else 0.99  # as MoCo's
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
        keys = unit(shuffled_keys(self.target, key_view, batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        with torch.autocast(query.device.type, enabled=False):
            logits = bank_logits(query, key, bank, config.temperature)
            # The query is a label here and learns nothing from the stronger view.
            labels = logits.detach().softmax(dim=1)
            follows = info_nce(bank_logits(stronger, key, bank, config.temperature), labels)
            loss = info_nce(logits) + config.stronger_weight * follows
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> CLSA:
    assert isinstance(config.method, Config)
    return CLSA(config.method, projected(config.encoder), config.encoder.projector_dim)
