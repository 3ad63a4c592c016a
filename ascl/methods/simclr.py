"""SimCLR, and SimCLR with relabeling among the samples of the batch.

Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
https://arxiv.org/abs/2002.05709.

No momentum encoder and no bank: each view must identify the other view of its image among all views
of the batch (NT-Xent). With `relabel` the other view shares its label with its likely neighbors.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import gather, gather_with_gradient, share
from ascl.errors import Issue
from ascl.losses import spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_online
from ascl.relabel import RelabelConfig, soft_labels_in_batch
from ascl.sections import Cost, Key

LABEL = "SimCLR"
PAPER = "arXiv:2002.05709"


class Config(RelabelConfig):
    name: Literal["simclr"] = "simclr"
    temperature: Annotated[float, Key(label="τ")] = Field(0.5, gt=0)
    """τ of the loss."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=2, ema=False)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        yield from self.in_batch_issues(run)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "augment": {"query": "strong", "key": "strong", "crop_min": 0.08, "strength": 1.0},
        # Plain batch norm: published with statistics of the whole batch, which reveal no pairs.
        "encoder": {"bn_splits": 1, "projector_hidden": 512, "projector_dim": 128},
        # 0.06 at batch 128.
        "optim": {"lr": 0.12, "lr_scaling": "linear", "weight_decay": 5e-4},
    }
    if dataset.streams:
        tree["method"] = {"temperature": 0.1}
        tree["encoder"]["projector_hidden"] = 2048
        # 4.8 at batch 4096. The negatives come from the batch, so it is large and needs LARS.
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
        # Encode views separately, not as one batch, so that BN groups do not depend on the ranks.
        first, second = (unit(self.online(view)) for view in batch.views)
        gathered = gather_with_gradient(torch.stack((first, second), dim=1))  # (B, 2, D)
        firsts, seconds = gathered.unbind(dim=1)
        own = torch.eye(len(gathered), dtype=torch.bool, device=first.device)
        own = own[share(len(gathered))].repeat(2, 1)  # (2N, B): anchors of both views
        with torch.autocast(first.device.type, enabled=False):
            across = torch.cat((first @ seconds.T, second @ firsts.T))
            within = torch.cat((first @ firsts.T, second @ seconds.T))
            labels, diagnostics = soft_labels_in_batch(
                self.config,
                # The key of an anchor is the other view, whose rows are in the other half.
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
    """Cross-entropy of each anchor over all views but itself.

    Args:
        across: Cosines (N, B) of the anchors with the other view.
        within: Cosines (N, B) of the anchors with their own view, whose labels are 0.
        own: Mask (N, B) of the anchor itself in `within`.
        labels: Labels (N, B) of `across`.
        temperature: τ.
    """
    candidates = torch.cat((across, within.masked_fill(own, -torch.inf)), dim=1) / temperature
    found = (labels * across).sum(dim=1) / temperature
    return (candidates.logsumexp(dim=1) - found).mean()


def build(config: RunConfig, training: TrainingSet) -> SimCLR:
    assert isinstance(config.method, Config)
    return SimCLR(config.method, build_online(config.encoder))
