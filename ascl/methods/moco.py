"""MoCo with a relabelling plug-in: `relabel` none is MoCo, ascl is ASCL, then Hard and AHCL.

A strong view is the query, a weak one the key; the bank holds the last keys as negatives, and
relabelling lets the likely neighbours among them share the key's label. With `symmetric` each view
is the query once; both passes see one bank, which takes keys only when both are over.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.bank import FeatureBank
from ascl.config import Cost, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, share, shuffled_keys
from ascl.encoders import projected
from ascl.faults import Fault
from ascl.losses import bank_logits, info_nce, spread, unit
from ascl.methods import Batch, Method, Output, TrainingSet, mean_of
from ascl.momentum import MomentumCopy
from ascl.relabel import RelabelConfig, soft_labels


class Config(RelabelConfig):
    name: Literal["moco"] = "moco"
    temperature: float = Field(0.1, gt=0)
    """τ of the loss."""
    queue_size: int = Field(4096, ge=2, le=2**22)
    """n: how many keys the bank holds."""
    momentum: float = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""
    symmetric: bool = False
    """Both views are query and key, and the loss is the mean of the two; at twice the cost."""

    def inert(self) -> frozenset[str]:
        # It came later: a run without it keeps the id that it has in older ledgers.
        return super().inert() | ({"symmetric"} if not self.symmetric else set())

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=2 if self.symmetric else 1, ema=True)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        yield from self.neighbour_faults(self.queue_size, "keys in the bank")


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
        # Before the keys are computed: the paper's text does not say; the released code does so.
        self.target.follow(self.online, self.config.momentum)
        orders = (batch.views, batch.views[::-1]) if self.config.symmetric else (batch.views,)
        # What the bank takes is of the first pass, keys of the key view: one kind of view in it.
        return mean_of([self.one_pass(query, key, batch) for query, key in orders])

    def one_pass(self, query_view: Tensor, key_view: Tensor, batch: Batch) -> Output:
        """The loss with one view as the query; remembers its keys, and leaves the bank as it is."""
        config, bank = self.config, self.bank.features
        query = unit(self.online(query_view))
        keys = unit(shuffled_keys(self.target, key_view, batch.shuffle))  # of all ranks
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
    return MoCo(config.method, projected(config.encoder), config.encoder.projector_dim)
