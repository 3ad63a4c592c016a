"""SimCLR, and SimCLR with relabelling among the samples of the batch.

No momentum encoder and no bank: each view of a sample must find the other one among all views of
the batch (NT-Xent). With `relabel` the other view shares its label with its likely neighbours.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import Cost, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, gather_with_gradient, share
from ascl.encoders import projected
from ascl.faults import Fault
from ascl.losses import spread, unit
from ascl.methods import Batch, Method, Output, TrainingSet
from ascl.relabel import RelabelConfig, labels_in_batch


class Config(RelabelConfig):
    name: Literal["simclr"] = "simclr"
    temperature: float = Field(0.5, gt=0)
    """τ of the loss."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=2, ema=False)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        yield from self.in_batch_faults(run)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "augment": {"query": "strong", "key": "strong", "crop_min": 0.08, "strength": 1.0},
        # Plain batch norm: published with statistics of the whole batch, lest they tell the pairs.
        "encoder": {"bn_splits": 1, "projector_hidden": 512, "projector_dim": 128},
        # 0.06 at batch 128.
        "optim": {"lr": 0.12, "lr_scaling": "linear", "weight_decay": 5e-4},
    }
    if dataset.streams:
        tree["method"] = {"temperature": 0.1}
        tree["encoder"]["projector_hidden"] = 2048
        # 4.8 at batch 4096. The negatives are the batch, so it is large, and LARS stands that.
        tree["batch_size"] = 4096
        tree["optim"] |= {"name": "lars", "lr": 0.3, "weight_decay": 1e-6, "warmup_epochs": 10}
    return tree


# Shapes: N = this rank's share of the batch, B = global batch, D = feature.
class SimCLR(Method):
    def __init__(self, config: Config, online: nn.Sequential) -> None:
        super().__init__()
        self.config = config
        self.online = online

    def forward(self, batch: Batch) -> Output:
        # View by view, not both as one batch: BN groups are then equal on any number of ranks.
        first, second = (unit(self.online(view)) for view in batch.views)
        everyone = gather_with_gradient(torch.stack((first, second), dim=1))  # (B, 2, D)
        firsts, seconds = everyone.unbind(dim=1)
        own = torch.eye(len(everyone), dtype=torch.bool, device=first.device)
        own = own[share(len(everyone))].repeat(2, 1)  # (2N, B): anchors of both views
        with torch.autocast(first.device.type, enabled=False):
            across = torch.cat((first @ seconds.T, second @ firsts.T))
            within = torch.cat((first @ firsts.T, second @ seconds.T))
            labels, diagnostics = labels_in_batch(
                self.config,
                # An anchor's key is the other view, whose rows are the other half.
                within.detach().roll(len(first), dims=0),
                own,
                batch.labels.repeat(2),
                gather(batch.labels),
                diagnose=batch.diagnose,
            )
            loss = nt_xent(across, within, own, labels, self.config.temperature)
        if batch.diagnose:
            diagnostics = diagnostics | {"spread": spread(first)}
        return Output(loss, (), diagnostics)


def nt_xent(
    across: Tensor, within: Tensor, own: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Cross-entropy of anchors over all views but themselves; cosines and labels are (N, B).

    `across` are the cosines with the other view, which the labels are about; those `within` the
    anchor's own view have label 0, and `own` marks the anchor itself among them.
    """
    candidates = torch.cat((across, within.masked_fill(own, -torch.inf)), dim=1) / temperature
    found = (labels * across).sum(dim=1) / temperature
    return (candidates.logsumexp(dim=1) - found).mean()


def build(config: RunConfig, training: TrainingSet) -> SimCLR:
    assert isinstance(config.method, Config)
    return SimCLR(config.method, projected(config.encoder))
