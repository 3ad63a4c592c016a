"""PCL (v2): MoCo, and each image must also find the prototype of its cluster.

Before each epoch k-means cuts what the momentum encoder makes of the training set into clusters, at
several granularities. Their centroids are prototypes; the tighter a cluster, the lower the
temperature at which its prototype attracts. The first epochs are MoCo's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.bank import FeatureBank
from ascl.config import Cost, MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, share, shuffled_keys
from ascl.encoders import projected
from ascl.faults import Fault
from ascl.kmeans import Clustering, kmeans, too_many_clusters
from ascl.losses import bank_logits, info_nce, spread, unit, without
from ascl.methods import Batch, EpochStart, Method, Output, TrainingSet
from ascl.momentum import MomentumCopy

Clusters = Annotated[int, Field(ge=2, le=2**22, strict=True)]


class Config(MethodConfig):
    name: Literal["pcl"] = "pcl"
    temperature: float = Field(0.1, gt=0)
    """τ of InfoNCE, and the mean temperature of the prototypes."""
    queue_size: int = Field(4096, ge=2, le=2**22)
    """n: how many keys the bank holds."""
    momentum: float = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""
    # Not strict: YAML has lists and no tuples.
    granularities: tuple[Clusters, ...] = Field((250, 500), min_length=1, strict=False)
    """Clusters of each k-means, one for each granularity."""
    negative_prototypes: int = Field(200, ge=1, le=2**22)
    """r: how many other prototypes are negatives of an image."""
    instance_epochs: int = Field(20, ge=0)
    """Epochs of MoCo's loss alone before the first clustering; fewer by default in short runs."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=1, ema=True)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        images, most, fewest = run.data.train_size, max(self.granularities), min(self.granularities)
        if images is not None and most >= images:
            yield Fault("method.granularities", too_many_clusters(most, images))
        if self.negative_prototypes >= fewest:
            yield Fault(
                "method.negative_prototypes",
                "must be below the smallest number of clusters, one of which is the own, "
                f"got negative_prototypes={self.negative_prototypes}, {fewest} clusters; "
                f"try {fewest - 1} or fewer",
            )
        if self.instance_epochs >= run.epochs:
            yield Fault(
                "method.instance_epochs",
                "must leave epochs with prototypes, "
                f"got instance_epochs={self.instance_epochs}, epochs={run.epochs}; "
                "train longer, or take method.name=moco",
            )


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {"method": {"instance_epochs": 20}, "augment": {"key": "strong"}}
    if dataset.streams:
        tree["method"] |= {
            **{"temperature": 0.2, "queue_size": 16384, "momentum": 0.999},
            **{"granularities": [25000, 50000, 100000], "negative_prototypes": 16384},
        }
        tree["optim"] = {"lr": 0.03}
    return tree


# Shapes: N = batch, M = images, K = clusters, R = negative prototypes, D = feature.
@dataclass(frozen=True, eq=False)
class Prototypes:
    """What an epoch's images are drawn to at one granularity."""

    scaled: Tensor  # (K, D) centroids over their temperatures
    assignment: Tensor  # (M,)


def temperatures(features: Tensor, clustering: Clustering, mean: float) -> Tensor:
    """φ (K,): the mean distance in a cluster, less for large ones, scaled to this mean.

    φ = Σ‖v − c‖ / (Z·log(Z + 10)) for Z members. A single one, at distance 0, takes the largest;
    what is outside of the 10th and 90th percentile is moved there, as published.
    """
    centroids, assignment = clustering.centroids, clustering.assignment
    distance = (features - centroids[assignment]).norm(dim=1)
    size = torch.bincount(assignment, minlength=len(centroids))
    phi = distance.new_zeros(len(centroids)).index_add_(0, assignment, distance)
    phi = phi / (size * (size + 10).log())
    phi = torch.where(size > 1, phi, phi.max())
    low, high = phi.quantile(phi.new_tensor([0.1, 0.9]))
    phi = phi.clamp(low, high).clamp(min=1e-12)  # all features one point: no distances at all
    return mean * phi / phi.mean()


def proto_nce(query: Tensor, prototypes: Prototypes, images: Tensor, drawn: Tensor) -> Tensor:
    """Cross-entropy of the own prototype among itself and R others, logits q·c/φ.

    `drawn` (R + 1,) is one too many: the own one is left out of it, or else the last.
    """
    own = prototypes.assignment[images]
    left_out = drawn == own.view(-1, 1)  # (N, R + 1)
    left_out[:, -1] |= ~left_out.any(dim=1)
    logits = bank_logits(query, prototypes.scaled[own], prototypes.scaled[drawn], 1.0)
    return info_nce(without(logits, left_out))


class PCL(Method):
    prototypes: tuple[Prototypes, ...] = ()  # of this epoch; made anew before each, and not saved

    def __init__(self, config: Config, online: nn.Sequential, dim: int) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.target = MomentumCopy(self.online)
        self.bank = FeatureBank(config.queue_size, dim)

    def begin_epoch(self, start: EpochStart) -> None:
        self.prototypes = ()
        if start.epoch >= self.config.instance_epochs:
            features = unit(start.features(self.target.module))
            self.prototypes = tuple(
                self.prototypes_of(features, kmeans(features, count, generator=start.generator))
                for count in self.config.granularities
            )

    def prototypes_of(self, features: Tensor, clustering: Clustering) -> Prototypes:
        phi = temperatures(features, clustering, self.config.temperature)
        return Prototypes(clustering.centroids / phi.unsqueeze(1), clustering.assignment)

    def forward(self, batch: Batch) -> Output:
        config = self.config
        self.target.follow(self.online, config.momentum)
        query = unit(self.online(batch.views[0]))
        keys = unit(shuffled_keys(self.target, batch.views[1], batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        with torch.autocast(query.device.type, enabled=False):
            loss = info_nce(bank_logits(query, key, self.bank.features, config.temperature))
            terms = [self.drawn_to(p, query, batch) for p in self.prototypes]
            loss = loss + torch.stack(terms).mean() if terms else loss
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def drawn_to(self, prototypes: Prototypes, query: Tensor, batch: Batch) -> Tensor:
        """ProtoNCE of one granularity, with negatives that are drawn for the whole batch."""
        order = torch.randperm(len(prototypes.scaled), generator=batch.generator)
        drawn = order[: self.config.negative_prototypes + 1].to(query.device)
        return proto_nce(query, prototypes, batch.indices, drawn)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> PCL:
    method, images = config.method, training.num_images
    assert isinstance(method, Config)
    if max(method.granularities) >= images:
        raise ValueError(too_many_clusters(max(method.granularities), images))
    return PCL(method, projected(config.encoder), config.encoder.projector_dim)
