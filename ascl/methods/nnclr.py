"""NNCLR, and NNCLR with relabeling within its support set.

Dwibedi et al., With a Little Help from My Friends: Nearest-Neighbor Contrastive Learning of Visual
Representations, 2021, https://arxiv.org/abs/2104.14548.

The positive is the nearest neighbor of the other view in a support set of recent embeddings; the
negatives are the predictions of the batch. With `relabel` the positive is a weighted mean of the
nearest neighbor and the next nearest ones.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import gather, gather_with_gradient, share
from ascl.errors import Issue
from ascl.losses import spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_mlp
from ascl.models.memory_bank import FeatureBank
from ascl.models.resnet import ResNet
from ascl.relabel import RelabelConfig, soft_labels
from ascl.sections import Cost, Key

LABEL = "NNCLR"
PAPER = "arXiv:2104.14548"


class Config(RelabelConfig):
    name: Literal["nnclr"] = "nnclr"
    temperature: Annotated[float, Key(label="τ")] = Field(0.2, gt=0)
    """τ of the loss."""
    queue_size: Annotated[int, Key(label="bank")] = Field(4096, ge=3, le=2**22)
    """Number of embeddings in the support set."""
    predictor_hidden: int = Field(4096, ge=1, le=2**16)
    """Width of the predictor's hidden layer."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=2, ema=False)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        yield from self.neighbor_issues(
            self.queue_size - 1, "embeddings in the support set without the nearest"
        )


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "augment": {"query": "strong", "key": "strong", "crop_min": 0.08, "strength": 0.5},
        # Plain batch norm: published with statistics of the whole batch.
        "encoder": {"bn_splits": 1, "projector_hidden": 2048, "projector_dim": 256},
        # No learning rate is published for small images with SGD; this is SimCLR's, 0.06 at batch
        # 128.
        "optim": {"lr": 0.12, "lr_scaling": "linear", "weight_decay": 5e-4},
    }
    if dataset.streams:
        # Published with 98,304 embeddings, which need 50% more memory.
        tree["method"] = {"temperature": 0.1, "queue_size": 65536}
        # As SimCLR, 4.8 at batch 4096: the negatives come from the batch.
        tree["batch_size"] = 4096
        tree["optim"] |= {"name": "lars", "lr": 0.3, "weight_decay": 1e-6, "warmup_epochs": 10}
    return tree


# Shapes: N = this rank's share of the batch, B = global batch, S = support set, D = feature.
class NNCLR(Method):
    def __init__(
        self, config: Config, online: nn.Sequential, predictor: nn.Module, dim: int
    ) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.predictor = predictor
        self.bank = FeatureBank(config.queue_size, dim)

    def forward(self, batch: Batch) -> Output:
        z1, z2 = (self.online(view) for view in batch.views)
        p1, p2 = unit(self.predictor(z1)), unit(self.predictor(z2))
        everyone = gather_with_gradient(torch.stack((p1, p2), dim=1))  # (B, 2, D)
        all1, all2 = everyone.unbind(dim=1)
        # The search for neighbors has no gradient: embeddings get one only through the predictor.
        z1, z2 = unit(z1.detach()), unit(z2.detach())
        own = torch.arange(len(everyone), device=p1.device)[share(len(everyone))]
        with torch.autocast(p1.device.type, enabled=False):
            positives, diagnostics = self.positives(
                torch.cat((z1, z2)), batch.labels.repeat(2), diagnose=batch.diagnose
            )
            of1, of2 = positives.chunk(2)
            logits = torch.cat((of1 @ all2.T, of2 @ all1.T)) / self.config.temperature  # (2N, B)
            loss = F.cross_entropy(logits, own.repeat(2))
        if batch.diagnose:
            # Of the predictions: batch norm keeps embeddings centered even if they collapse.
            diagnostics = diagnostics | {"spread": spread(p1)}
        return Output(loss, (gather(z1), gather(batch.labels)), diagnostics)

    def positives(
        self, z: Tensor, classes: Tensor, *, diagnose: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the positive (N, D) of each embedding, unit rows computed from the support set."""
        config, support = self.config, self.bank.features
        similarity = z @ support.T  # (N, S)
        nearest = similarity.argmax(dim=1)
        positive, diagnostics = support[nearest], dict[str, Tensor]()
        if config.relabel != "none" and config.num_neighbours > 0:
            # Column 0 stands for the nearest entry, so exclude it from its own neighbors.
            similarity.scatter_(1, nearest[:, None], -torch.inf)
            labels, diagnostics = soft_labels(
                config, similarity, classes, self.bank.classes, diagnose=diagnose
            )
            positive = unit(labels[:, :1] * positive + labels[:, 1:] @ support)
        if diagnose:
            theirs = self.bank.classes[nearest]
            known = (classes >= 0) & (theirs >= 0)
            same = known & (classes == theirs)
            diagnostics = diagnostics | {"neighbour_top1": same.sum() / known.sum()}
        return positive, diagnostics

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> NNCLR:
    assert isinstance(config.method, Config)
    sizes, encoder = config.encoder, ResNet(config.encoder)
    hidden, dim, splits = sizes.projector_hidden, sizes.projector_dim, sizes.bn_splits
    widths = (encoder.feature_dim, hidden, hidden, dim)
    projector = build_mlp(*widths, bn_splits=splits, last_norm=True)
    predictor = build_mlp(dim, config.method.predictor_hidden, dim, bn_splits=splits)
    return NNCLR(config.method, nn.Sequential(encoder, projector), predictor, dim)
