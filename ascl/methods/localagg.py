"""LocalAgg: InstDisc's memory slots, aggregated within clusters.

Zhuang, Zhai and Yamins, Local Aggregation for Unsupervised Learning of Visual Embeddings, 2019,
https://arxiv.org/abs/1903.12355.

Among the slots nearest to an image (its background neighbors), its close neighbors are those that
share a cluster with its own slot in any of several k-means clusterings. The loss attracts the image
to its close neighbors and repels it from the rest. The first epochs use InstDisc's loss, because
clusters of randomly initialized slots carry no information.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import gather
from ascl.errors import Issue, RunError
from ascl.eval.clustering import kmeans, too_many_clusters
from ascl.losses import instance_softmax, spread, unit
from ascl.methods.base import Batch, EpochStart, Method, Output, TrainingSet
from ascl.models.heads import build_mlp
from ascl.models.memory_bank import SlotMemory
from ascl.models.resnet import ResNet
from ascl.sections import Cost, Key, MethodConfig, Tree, cap_default

LABEL = "LocalAgg"
PAPER = "arXiv:1903.12355"


class Config(MethodConfig):
    name: Literal["localagg"] = "localagg"
    temperature: Annotated[float, Key(label="τ")] = Field(0.1, gt=0)
    """τ of the loss."""
    slot_momentum: float = Field(0.5, ge=0, le=1)
    """Weight of a slot's old value when it is updated with a new feature of its image."""
    background: Annotated[int, Key(smoke_max=512)] = Field(512, ge=2, le=2**22)
    """|B|: number of background neighbors, the slots nearest to an image; at most all slots."""
    num_clusterings: int = Field(3, ge=1, le=1000)
    """Number of k-means clusterings of the slots, with different seeds, before each epoch."""
    num_clusters: Annotated[int, Key(smoke_max=500)] = Field(500, ge=2, le=2**22)
    """Number of clusters in each clustering."""
    instdisc_epochs: Annotated[int, Key(smoke_share=0.5)] = Field(10, ge=0)
    """Epochs with InstDisc's loss before the first clustering; the default is lower for short
    runs."""

    @classmethod
    def for_short_run(cls, defaults: Tree, epochs: int) -> Tree:
        # Slots start at random and each epoch halves the weight of that start, so early clusters
        # carry no information.
        defaults = super().for_short_run(defaults, epochs)
        return cap_default(defaults, "method", "instdisc_epochs", epochs // 2)

    def cost(self) -> Cost:
        return Cost(("query",), backprops=1, ema=False)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        images = run.data.train_size
        if images is not None and self.num_clusters >= images:
            yield Issue("method.num_clusters", too_many_clusters(self.num_clusters, images))
        if self.instdisc_epochs >= run.epochs:
            yield Issue(
                "method.instdisc_epochs",
                "must be less than epochs, "
                f"got instdisc_epochs={self.instdisc_epochs}, epochs={run.epochs}; "
                "train longer, or use method.name=instdisc",
            )


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "method": {"instdisc_epochs": 10},
        # Plain batch norm: there is no key that batch statistics could reveal.
        "encoder": {"bn_splits": 1},
        "optim": {"lr": 0.03, "weight_decay": 1e-4 if dataset.streams else 5e-4},
    }
    if dataset.streams:
        clusters = {"num_clusterings": 10, "num_clusters": 30000}
        tree["method"] |= {"temperature": 0.07, "background": 4096, **clusters}
    return tree


# Shapes: N = batch, M = images, B = background, J = clusterings, D = feature.
@torch.no_grad()
def find_neighborhood(
    query: Tensor, slots: Tensor, own: Tensor, clusters: Tensor, background: int
) -> tuple[Tensor, Tensor]:
    """Find the background neighbors of each query, and which of them are close neighbors.

    A query's own slot is always included, even if other slots are nearer, so that no query is
    without a close neighbor.

    Args:
        query: Unit features (N, D).
        slots: Slots (M, D) of all images.
        own: Index (N,) of each query's own slot.
        clusters: Cluster (J, M) of each slot in each clustering.
        background: Number B of background neighbors.

    Returns:
        Indices (N, B) of the nearest slots, the own slot first, and a mask (N, B) of close ones.
    """
    cosine = (query @ slots.T).scatter_(1, own.view(-1, 1), torch.inf)
    near = cosine.topk(min(background, len(slots)), dim=1).indices
    close = (clusters[:, near] == clusters[:, own].unsqueeze(2)).any(dim=0)
    return near, close


def aggregation_loss(
    query: Tensor, slots: Tensor, near: Tensor, close: Tensor, temperature: float
) -> Tensor:
    """−log P(C∩B)/P(B), mean over the batch; P(j) ∝ exp(cos/τ), whose normalizer cancels."""
    # Recompute similarities for near slots only: a gradient of all M would be mostly 0.
    logits = torch.bmm(slots[near], query.unsqueeze(2)).squeeze(2) / temperature  # (N, B)
    close_logits = logits.masked_fill(~close, -torch.inf)
    return (logits.logsumexp(dim=1) - close_logits.logsumexp(dim=1)).mean()


def purity(classes: Tensor, near_classes: Tensor, close: Tensor) -> Tensor:
    """Return the fraction of close slots, without the own slot (first), of the image's class."""
    classes, near_classes = classes.view(-1, 1), near_classes[:, 1:]
    known = close[:, 1:] & (classes >= 0) & (near_classes >= 0)
    return (known & (classes == near_classes)).sum() / known.sum()


class LocalAgg(Method):
    clusters: Tensor | None = None  # (J, M); recomputed before each epoch, not saved

    def __init__(self, config: Config, online: nn.Sequential, bank: SlotMemory) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.bank = bank

    def begin_epoch(self, start: EpochStart) -> None:
        config, features = self.config, self.bank.features
        if start.epoch < config.instdisc_epochs:
            self.clusters = None
            return
        several = [
            kmeans(features, config.num_clusters, generator=start.generator, report=start.report)
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
                near, close = find_neighborhood(query, slots, own, self.clusters, config.background)
                loss = aggregation_loss(query, slots, near, close, config.temperature)
                if batch.diagnose:
                    diagnostics["purity"] = purity(batch.labels, self.bank.classes[near], close)
        remember = (gather(own), gather(query.detach()), gather(batch.labels))
        return Output(loss, remember, diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.update(*output.remember, momentum=self.config.slot_momentum)


def build(config: RunConfig, training: TrainingSet) -> LocalAgg:
    method, images = config.method, training.num_images
    assert isinstance(method, Config)
    if method.num_clusters >= images:
        raise RunError(too_many_clusters(method.num_clusters, images))
    encoder, dim = ResNet(config.encoder), config.encoder.projector_dim
    online = nn.Sequential(encoder, build_mlp(encoder.feature_dim, dim))
    return LocalAgg(method, online, SlotMemory(images, dim))
