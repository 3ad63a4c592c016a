"""LocalAgg: InstDisc's memory slots, drawn together where several clusterings say that they belong.

Among the slots that are nearest to an image, its close neighbours are those that share a cluster
with its own slot in any of a few k-means; the loss moves the image towards these and away from the
rest. It begins as InstDisc, for clusters of random slots mean nothing.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.bank import SlotMemory
from ascl.config import Cost, MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather
from ascl.encoders import ResNet, mlp
from ascl.faults import Fault
from ascl.kmeans import kmeans, too_many_clusters
from ascl.losses import instance_softmax, spread, unit
from ascl.methods import Batch, EpochStart, Method, Output, TrainingSet


class Config(MethodConfig):
    name: Literal["localagg"] = "localagg"
    temperature: float = Field(0.1, gt=0)
    """τ of the loss."""
    slot_momentum: float = Field(0.5, ge=0, le=1)
    """How much of a slot's old value stays when its image is seen."""
    background: int = Field(512, ge=2, le=2**22)
    """|B|: how many of the nearest slots an image is compared with; all if there are fewer."""
    num_clusterings: int = Field(3, ge=1, le=1000)
    """How many k-means, from different seeds, are made of the slots before each epoch."""
    num_clusters: int = Field(500, ge=2, le=2**22)
    """Clusters in each of them."""
    instdisc_epochs: int = Field(10, ge=0)
    """Epochs with InstDisc's loss before the first clustering; fewer by default in short runs."""

    def cost(self) -> Cost:
        return Cost(("query",), backprops=1, ema=False)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        images = run.data.train_size
        if images is not None and self.num_clusters >= images:
            yield Fault("method.num_clusters", too_many_clusters(self.num_clusters, images))
        if self.instdisc_epochs >= run.epochs:
            yield Fault(
                "method.instdisc_epochs",
                "must leave epochs with clusters, "
                f"got instdisc_epochs={self.instdisc_epochs}, epochs={run.epochs}; "
                "train longer, or take method.name=instdisc",
            )


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "method": {"instdisc_epochs": 10},
        # Plain batch norm: there is no key to single out.
        "encoder": {"bn_splits": 1},
        "optim": {"lr": 0.03, "weight_decay": 1e-4 if dataset.streams else 5e-4},
    }
    if dataset.streams:
        clusters = {"num_clusterings": 10, "num_clusters": 30000}
        tree["method"] |= {"temperature": 0.07, "background": 4096, **clusters}
    return tree


# Shapes: N = batch, M = images, B = background, J = clusterings, D = feature.
@torch.no_grad()
def neighbourhood(
    query: Tensor, slots: Tensor, own: Tensor, clusters: Tensor, background: int
) -> tuple[Tensor, Tensor]:
    """The B slots nearest to each query (N, B), its own first, and which of them are close (N, B).

    `clusters` (J, M) are the clusterings of the slots. The own slot belongs to B even where others
    are nearer: it is close to itself, so that no sum over close ones is empty.
    """
    cosine = (query @ slots.T).scatter_(1, own.view(-1, 1), torch.inf)
    near = cosine.topk(min(background, len(slots)), dim=1).indices
    close = (clusters[:, near] == clusters[:, own].unsqueeze(2)).any(dim=0)
    return near, close


def aggregation(
    query: Tensor, slots: Tensor, near: Tensor, close: Tensor, temperature: float
) -> Tensor:
    """−log P(C∩B)/P(B), mean over the batch; P(j) ~ exp(cos/τ), whose normaliser cancels."""
    # Only the near slots are differentiated: a gradient of all M similarities would be mostly 0.
    logits = torch.bmm(slots[near], query.unsqueeze(2)).squeeze(2) / temperature  # (N, B)
    close_logits = logits.masked_fill(~close, -torch.inf)
    return (logits.logsumexp(dim=1) - close_logits.logsumexp(dim=1)).mean()


def purity(classes: Tensor, near_classes: Tensor, close: Tensor) -> Tensor:
    """Share of close slots but the own, which is first, that are of the image's class."""
    classes, near_classes = classes.view(-1, 1), near_classes[:, 1:]
    known = close[:, 1:] & (classes >= 0) & (near_classes >= 0)
    return (known & (classes == near_classes)).sum() / known.sum()


class LocalAgg(Method):
    clusters: Tensor | None = None  # (J, M), of this epoch; made anew before each, and not saved

    def __init__(self, config: Config, online: nn.Sequential, bank: SlotMemory) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.bank = bank

    def begin_epoch(self, start: EpochStart) -> None:
        config = self.config
        if start.epoch < config.instdisc_epochs:
            self.clusters = None
            return
        several = [
            kmeans(self.bank.features, config.num_clusters, generator=start.generator)
            for _ in range(config.num_clusterings)
        ]
        self.clusters = torch.stack([one.assignment for one in several])

    def forward(self, batch: Batch) -> Output:
        config, slots, own = self.config, self.bank.features, batch.indices
        query = unit(self.online(batch.views[0]))
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        with torch.autocast(query.device.type, enabled=False):
            if self.clusters is None:
                loss = instance_softmax(query, slots, own, config.temperature)
            else:
                near, close = neighbourhood(query, slots, own, self.clusters, config.background)
                loss = aggregation(query, slots, near, close, config.temperature)
                if batch.diagnose:
                    diagnostics["purity"] = purity(batch.labels, self.bank.classes[near], close)
        everyones = (gather(own), gather(query.detach()), gather(batch.labels))
        return Output(loss, everyones, diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.update(*output.remember, momentum=self.config.slot_momentum)


def build(config: RunConfig, training: TrainingSet) -> LocalAgg:
    method, images = config.method, training.num_images
    assert isinstance(method, Config)
    if method.num_clusters >= images:
        raise ValueError(too_many_clusters(method.num_clusters, images))
    encoder, dim = ResNet(config.encoder), config.encoder.projector_dim
    online = nn.Sequential(encoder, mlp(encoder.feature_dim, dim))
    return LocalAgg(method, online, SlotMemory(images, dim))
