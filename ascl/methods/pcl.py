"""PCL (v2): MoCo plus a contrastive loss between each image and the prototype of its cluster.

Li et al., Prototypical Contrastive Learning of Unsupervised Representations, 2020,
https://arxiv.org/abs/2005.04966.

Before each epoch, k-means clusters the momentum encoder's features of the training set at several
granularities. The centroids are the prototypes; a tighter cluster has a lower temperature. The
first epochs use MoCo's loss only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import encode_shuffled, gather, share
from ascl.errors import Issue, RunError
from ascl.eval.clustering import Clustering, kmeans, too_many_clusters
from ascl.losses import bank_logits, info_nce, mask_logits, spread, unit
from ascl.methods.base import Batch, EpochStart, Method, Output, TrainingSet
from ascl.models.heads import build_online
from ascl.models.memory_bank import FeatureBank
from ascl.models.momentum_encoder import MomentumCopy
from ascl.sections import Cost, Key, MethodConfig, Tree, cap_default

LABEL = "PCL"
PAPER = "arXiv:2005.04966"
# In short runs the momentum encoder must change slowly, or the keys in the small bank are stale.
SMOKE = {"method": {"momentum": 0.996}}

Clusters = Annotated[int, Field(ge=2, le=2**22, strict=True)]


class Config(MethodConfig):
    name: Literal["pcl"] = "pcl"
    temperature: Annotated[float, Key(label="τ")] = Field(0.1, gt=0)
    """τ of InfoNCE, and the mean temperature of the prototypes."""
    queue_size: Annotated[int, Key(label="bank")] = Field(4096, ge=2, le=2**22)
    """n: number of keys in the bank."""
    momentum: Annotated[float, Key(label="m")] = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""
    # Not strict, because YAML has lists but no tuples.
    granularities: Annotated[tuple[Clusters, ...], Key(smoke_max=500)] = Field(
        (250, 500), min_length=1, strict=False
    )
    """Number of clusters of each k-means clustering."""
    negative_prototypes: Annotated[int, Key(smoke_max=200)] = Field(200, ge=1, le=2**22)
    """r: number of other prototypes that are negatives of an image."""
    instance_epochs: Annotated[int, Key(smoke_max=1, smoke_share=0.5)] = Field(20, ge=0)
    """Epochs with MoCo's loss only before the first clustering; the default is lower for short
    runs."""

    @classmethod
    def for_short_run(cls, defaults: Tree, epochs: int) -> Tree:
        most = min(max(1, epochs // 10), epochs - 1)
        defaults = super().for_short_run(defaults, epochs)
        return cap_default(defaults, "method", "instance_epochs", most)

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=1, ema=True)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        images, most, fewest = run.data.train_size, max(self.granularities), min(self.granularities)
        if images is not None and most >= images:
            yield Issue("method.granularities", too_many_clusters(most, images))
        if self.negative_prototypes >= fewest:
            yield Issue(
                "method.negative_prototypes",
                "must be less than the smallest of method.granularities, "
                f"got negative_prototypes={self.negative_prototypes}, {fewest} clusters; "
                f"try {fewest - 1} or fewer",
            )
        if self.instance_epochs >= run.epochs:
            yield Issue(
                "method.instance_epochs",
                "must be less than epochs, "
                f"got instance_epochs={self.instance_epochs}, epochs={run.epochs}; "
                "train longer, or use method.name=moco",
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
    """Prototypes of an epoch at one granularity."""

    scaled: Tensor  # (K, D) centroids divided by their temperatures
    assignment: Tensor  # (M,) cluster of each image


def temperatures(features: Tensor, clustering: Clustering, mean: float) -> Tensor:
    """Return the temperature φ (K,) of each cluster, scaled so that the mean is `mean`.

    φ = Σ‖v − c‖ / (Z·log(Z + 10)) for Z members. A cluster with one member, whose distance is 0,
    gets the largest φ. Values are clipped to the 10th and 90th percentile, as published.
    """
    centroids, assignment = clustering.centroids, clustering.assignment
    distance = (features - centroids[assignment]).norm(dim=1)
    size = torch.bincount(assignment, minlength=len(centroids))
    phi = distance.new_zeros(len(centroids)).index_add_(0, assignment, distance)
    phi = phi / (size * (size + 10).log())
    phi = torch.where(size > 1, phi, phi.max())
    low, high = phi.quantile(phi.new_tensor([0.1, 0.9]))
    phi = phi.clamp(low, high).clamp(min=1e-12)  # all distances are 0 if features collapse
    return mean * phi / phi.mean()


def proto_nce(query: Tensor, prototypes: Prototypes, images: Tensor, drawn: Tensor) -> Tensor:
    """Cross-entropy over each image's own prototype and R negative ones, with logits q·c/φ.

    `drawn` has R + 1 prototypes: an image ignores its own prototype if drawn, otherwise the last.

    Args:
        query: Unit features (N, D).
        prototypes: Prototypes of one granularity.
        images: Indices (N,) of the images in the training set.
        drawn: Indices (R + 1,) of the sampled prototypes.
    """
    own = prototypes.assignment[images]
    excluded = drawn == own.view(-1, 1)  # (N, R + 1)
    excluded[:, -1] |= ~excluded.any(dim=1)
    logits = bank_logits(query, prototypes.scaled[own], prototypes.scaled[drawn], 1.0)
    return info_nce(mask_logits(logits, excluded))


class PCL(Method):
    prototypes: tuple[Prototypes, ...] = ()  # recomputed before each epoch, not saved

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
                self.build_prototypes(
                    features,
                    kmeans(features, count, generator=start.generator, report=start.report),
                )
                for count in self.config.granularities
            )

    def build_prototypes(self, features: Tensor, clustering: Clustering) -> Prototypes:
        phi = temperatures(features, clustering, self.config.temperature)
        return Prototypes(clustering.centroids / phi.unsqueeze(1), clustering.assignment)

    def draws(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw the negative prototypes of each granularity, the same for the whole batch."""
        return tuple(
            torch.randperm(len(prototypes.scaled), generator=generator)[
                : self.config.negative_prototypes + 1
            ]
            for prototypes in self.prototypes
        )

    def forward(self, batch: Batch) -> Output:
        config = self.config
        self.target.follow(self.online, config.momentum)
        query = unit(self.online(batch.views[0]))
        keys = unit(encode_shuffled(self.target, batch.views[1], batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        with torch.autocast(query.device.type, enabled=False):
            loss = info_nce(bank_logits(query, key, self.bank.features, config.temperature))
            terms = [
                proto_nce(query, prototypes, batch.indices, drawn)
                for prototypes, drawn in zip(self.prototypes, batch.draws, strict=True)
            ]
            loss = loss + torch.stack(terms).mean() if terms else loss
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> PCL:
    method, images = config.method, training.num_images
    assert isinstance(method, Config)
    if max(method.granularities) >= images:
        raise RunError(too_many_clusters(max(method.granularities), images))
    return PCL(method, build_online(config.encoder), config.encoder.projector_dim)
