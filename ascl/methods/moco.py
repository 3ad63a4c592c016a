"""MoCo (`relabel: none`), and ASCL, AHCL and Hard: MoCo with relabeling of the bank.

He et al., Momentum Contrast for Unsupervised Visual Representation Learning, 2019,
https://arxiv.org/abs/1911.05722.
Chen et al., Improved Baselines with Momentum Contrastive Learning (MoCo v2), 2020,
https://arxiv.org/abs/2003.04297.
Feng and Patras, Adaptive Soft Contrastive Learning (ASCL, AHCL, Hard), ICPR 2022,
https://arxiv.org/abs/2207.11163.

The query is a strong view, the key a weak view. The bank holds the most recent keys as negatives;
with relabeling, likely neighbors among them share the key's label. With `symmetric` each view is
the query once, and the bank is updated after both passes.
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
from ascl.losses import bank_logits, info_nce, spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet, average_outputs
from ascl.models.heads import build_online
from ascl.models.memory_bank import FeatureBank
from ascl.models.momentum_encoder import MomentumCopy
from ascl.relabel import RelabelConfig, soft_labels
from ascl.sections import Cost, Key

LABEL = "MoCo"
PAPER = "arXiv:1911.05722"
# In short runs the momentum encoder must change slowly, or the keys in the small bank are stale.
SMOKE = {"method": {"momentum": 0.996}}


class Config(RelabelConfig):
    name: Literal["moco"] = "moco"
    temperature: Annotated[float, Key(label="τ")] = Field(0.1, gt=0)
    """τ of the loss."""
    queue_size: Annotated[int, Key(label="bank")] = Field(4096, ge=2, le=2**22)
    """n: number of keys in the bank."""
    momentum: Annotated[float, Key(label="m")] = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""
    symmetric: Annotated[bool, Key(label="symmetric")] = False
    """Use each view once as query and once as key, at twice the cost; the loss is the mean."""

    def inert(self) -> frozenset[str]:
        # This key is newer than the first stores: runs without it keep their ids.
        return super().inert() | ({"symmetric"} if not self.symmetric else set())

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=2 if self.symmetric else 1, ema=True)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        yield from self.neighbor_issues(self.queue_size, "keys in the bank")


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    if not dataset.streams:
        return {}
    momentum = 0.999 if preset == "code" else 0.99
    return {"method": {"queue_size": 65536, "momentum": momentum}}


class MoCo(Method):
    def __init__(self, config: Config, online: nn.Sequential, dim: int) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.target = MomentumCopy(self.online)
        self.bank = FeatureBank(config.queue_size, dim)

    def forward(self, batch: Batch) -> Output:
        # Before the keys are computed, as in the released code; the paper does not specify it.
        self.target.follow(self.online, self.config.momentum)
        orders = (batch.views, batch.views[::-1]) if self.config.symmetric else (batch.views,)
        # The bank is filled from the first pass only, so that it holds one kind of view.
        return average_outputs([self.one_pass(query, key, batch) for query, key in orders])

    def one_pass(self, query_view: Tensor, key_view: Tensor, batch: Batch) -> Output:
        """Compute the loss with one view as the query; return its keys, do not change the bank."""
        config, bank = self.config, self.bank.features
        query = unit(self.online(query_view))
        keys = unit(encode_shuffled(self.target, key_view, batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        labels, diagnostics = None, {"spread": spread(query)} if batch.diagnose else {}
        with torch.autocast(query.device.type, enabled=False):
            if config.relabel != "none":
                labels, seen = soft_labels(
                    config,
                    key @ bank.T,  # eq. 5
                    batch.labels,
                    self.bank.classes,
                    diagnose=batch.diagnose,
                )
                diagnostics |= seen
            loss = info_nce(bank_logits(query, key, bank, config.temperature), labels)
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> MoCo:
    assert isinstance(config.method, Config)
    return MoCo(config.method, build_online(config.encoder), config.encoder.projector_dim)
