"""SwAV: each view of an image predicts to which prototypes the other one is assigned.

No negatives, no momentum encoder: assignments share the batch evenly among the prototypes, so that
not all images go to one. A queue of earlier embeddings helps where the batch is small; small crops
are further views that predict the assignments of the two full ones.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ascl.bank import FeatureBank
from ascl.config import Cost, MethodConfig, RunConfig
from ascl.datasets import DatasetSpec, dataset_spec
from ascl.distributed import gather, share
from ascl.encoders import projected
from ascl.faults import Fault
from ascl.losses import spread, unit
from ascl.methods import Batch, Method, Output, TrainingSet
from ascl.views import ViewSpec, small_view


class Config(MethodConfig):
    name: Literal["swav"] = "swav"
    temperature: float = Field(0.1, gt=0)
    """τ of the predictions."""
    num_prototypes: int = Field(100, ge=2, le=2**20)
    """What images are assigned to; with too many of them the loss stays at their logarithm."""
    frozen_until: float = Field(0.01, ge=0, le=1)
    """Share of the training before which the prototypes stay as they were drawn."""
    sinkhorn_epsilon: float = Field(0.05, gt=0)
    """ε: how soft assignments are, as a temperature. Where the loss stays at the logarithm of
    `num_prototypes`, as with small nets and batches, 0.02 and fewer prototypes get it going."""
    sinkhorn_iterations: int = Field(3, ge=1, le=1000)
    queue_size: int = Field(0, ge=0, le=2**22)
    """How many earlier embeddings, of both views together, are assigned along with the batch."""
    queue_from: float = Field(0.075, ge=0, le=1)
    """Share of the training before which they are not: embeddings then change too fast. It should
    leave time to fill the queue, which starts with random ones; an epoch always does."""
    small_crops: int = Field(0, ge=0, le=32)
    """Small views beside the two full ones (multi-crop); published with 6."""

    def inert(self) -> frozenset[str]:
        return frozenset() if self.queue_size else frozenset({"queue_from"})

    def cost(self) -> Cost:
        views = ("query", "key") + ("small",) * self.small_crops
        return Cost(views, backprops=len(views), ema=False)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        if self.small_crops:
            try:
                small_view(ViewSpec("strong", dataset_spec(run.data.name).view_size))
            except ValueError as error:
                yield Fault("method.small_crops", f"{error} ({run.data.name}); set it to 0")


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "augment": {"query": "strong", "key": "strong"},
        # Plain batch norm: there is no key to single out, and it was published with whole batches.
        "encoder": {"bn_splits": 1, "projector_hidden": 2048, "projector_dim": 128},
        # 0.06 at batch 128.
        "optim": {"lr": 0.12, "lr_scaling": "linear", "weight_decay": 5e-4},
    }
    if dataset.streams:
        tree["method"] = {"num_prototypes": 3000}
        tree["augment"] |= {"strength": 1.0, "crop_min": 0.14}
        # 4.8 at batch 4096: a batch that 3000 prototypes can share without a queue.
        tree["batch_size"] = 4096
        tree["optim"] |= {"name": "lars", "lr": 0.3, "weight_decay": 1e-6, "warmup_epochs": 10}
    return tree


# Shapes: N = this rank's share of the batch, B = global batch, P = prototypes, D = feature.
def sinkhorn(scores: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """Assignments (B, P) after scores (B, P): rows sum to 1, and columns, nearly, to B/P.

    Prototypes and samples are scaled to their sums in turn, the samples last. In logarithms: no ε
    is too small for float32 then.
    """
    log_q = scores.float() / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(dim=0, keepdim=True)
        log_q = log_q - log_q.logsumexp(dim=1, keepdim=True)
    return log_q.exp()


def swapped_prediction(logits: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Cross-entropy of views' logits with assignments, (N, P) each; mean over pairs of views.

    The assignments are of the first views, and no view predicts its own.
    """
    pairs = [
        F.cross_entropy(predicted, label)
        for assigned, label in enumerate(labels)
        for view, predicted in enumerate(logits)
        if view != assigned
    ]
    return torch.stack(pairs).mean()


class SwAV(Method):
    def __init__(self, config: Config, online: nn.Sequential, dim: int) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.prototypes = nn.Parameter(unit(torch.randn(config.num_prototypes, dim)))
        self.bank = FeatureBank(config.queue_size, dim) if config.queue_size else None

    def forward(self, batch: Batch) -> Output:
        with torch.no_grad():
            self.prototypes.copy_(unit(self.prototypes))
        prototypes: Tensor = self.prototypes
        if batch.progress < self.config.frozen_until:
            # A gradient of 0 and not none: several ranks wait for every parameter's.
            prototypes = prototypes.detach() + 0 * prototypes
        # View by view, not as one batch: BN groups are then equal on any number of ranks.
        embeddings = [unit(self.online(view)) for view in batch.views]
        full = [gather(z.detach()) for z in embeddings[:2]]  # (B, D) each, of all ranks
        with torch.autocast(prototypes.device.type, enabled=False):
            logits = [z @ prototypes.T / self.config.temperature for z in embeddings]
            loss = swapped_prediction(logits, [self.assigned(z, batch.progress) for z in full])
        diagnostics = {"spread": spread(embeddings[0])} if batch.diagnose else {}
        remember: tuple[Tensor, ...] = ()
        if self.bank is not None:
            remember = (torch.cat(full), gather(batch.labels).repeat(2))
        return Output(loss, remember, diagnostics)

    @torch.no_grad()
    def assigned(self, embeddings: Tensor, progress: float) -> Tensor:
        """How this rank's samples (N, P) share in the prototypes, balanced over all ranks'.

        From the embeddings (B, D) rather than their scores: they are shorter, so less is sent.
        """
        config, rows = self.config, embeddings
        if self.bank is not None and progress >= config.queue_from:
            rows = torch.cat((embeddings, self.bank.features))
        scores = rows @ self.prototypes.T
        balanced = sinkhorn(
            scores, epsilon=config.sinkhorn_epsilon, iterations=config.sinkhorn_iterations
        )
        return balanced[share(len(embeddings))]

    def after_backward(self, output: Output) -> None:
        if self.bank is not None:
            self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> SwAV:
    assert isinstance(config.method, Config)
    online = projected(config.encoder, norm=True)
    return SwAV(config.method, online, config.encoder.projector_dim)
