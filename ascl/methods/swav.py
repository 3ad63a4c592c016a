"""SwAV: each view of an image predicts the prototype assignment of the other view.

Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, 2020,
https://arxiv.org/abs/2006.09882.

No negatives, no momentum encoder: assignments distribute the batch evenly over the prototypes,
which prevents collapse. A queue of earlier embeddings helps if the batch is small. Small crops are
additional views that predict the assignments of the two full views.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ascl.augment.views import ViewSpec, small_view
from ascl.config import RunConfig
from ascl.data.base import DatasetSpec, dataset_spec
from ascl.distributed import gather, share
from ascl.errors import Issue
from ascl.losses import spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_online
from ascl.models.memory_bank import FeatureBank
from ascl.sections import Cost, Key, MethodConfig

LABEL = "SwAV"
PAPER = "arXiv:2006.09882"
# With the published ε, assignments stay uniform in a short run: the loss is log(prototypes).
SMOKE = {"method": {"num_prototypes": 30, "sinkhorn_epsilon": 0.02}}


class Config(MethodConfig):
    name: Literal["swav"] = "swav"
    temperature: Annotated[float, Key(label="τ")] = Field(0.1, gt=0)
    """τ of the predictions."""
    num_prototypes: int = Field(100, ge=2, le=2**20)
    """Number of prototypes; with too many the loss stays at the logarithm of this number."""
    frozen_until: float = Field(0.01, ge=0, le=1)
    """Fraction of training during which the prototypes are frozen at their initial values."""
    sinkhorn_epsilon: float = Field(0.05, gt=0)
    """ε: temperature of the assignments. If the loss stays at the logarithm of `num_prototypes`, as
    with small networks and batches, use 0.02 and fewer prototypes."""
    sinkhorn_iterations: int = Field(3, ge=1, le=1000)
    """Number of Sinkhorn iterations that compute the assignments."""
    queue_size: Annotated[int, Key(label="bank")] = Field(0, ge=0, le=2**22)
    """Number of earlier embeddings, of both views together, that are assigned with the batch."""
    queue_from: float = Field(0.075, ge=0, le=1)
    """Fraction of training before the queue is used, because early embeddings change too fast. It
    should leave time to fill the queue, which starts with random embeddings; an epoch is enough."""
    small_crops: int = Field(0, ge=0, le=32)
    """Number of small views in addition to the two full ones (multi-crop); published with 6."""

    def inert(self) -> frozenset[str]:
        return super().inert() | (set() if self.queue_size else {"queue_from"})

    def cost(self) -> Cost:
        views = ("query", "key") + ("small",) * self.small_crops
        return Cost(views, backprops=len(views), ema=False)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        if self.small_crops:
            try:
                small_view(ViewSpec("strong", dataset_spec(run.data.name).view_size))
            except ValueError as error:
                yield Issue("method.small_crops", f"{error} ({run.data.name}); set it to 0")


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "augment": {"query": "strong", "key": "strong"},
        # Plain batch norm: published with statistics of the whole batch.
        "encoder": {"bn_splits": 1, "projector_hidden": 2048, "projector_dim": 128},
        # 0.06 at batch 128.
        "optim": {"lr": 0.12, "lr_scaling": "linear", "weight_decay": 5e-4},
    }
    if dataset.streams:
        tree["method"] = {"num_prototypes": 3000}
        tree["augment"] |= {"strength": 1.0, "crop_min": 0.14}
        # 4.8 at batch 4096, which is large enough for 3000 prototypes without a queue.
        tree["batch_size"] = 4096
        tree["optim"] |= {"name": "lars", "lr": 0.3, "weight_decay": 1e-6, "warmup_epochs": 10}
    return tree


# Shapes: N = this rank's share of the batch, B = global batch, P = prototypes, D = feature.
def sinkhorn(scores: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """Compute assignments (B, P) from scores (B, P): rows sum to 1, columns nearly to B/P.

    The Sinkhorn-Knopp iteration of Cuturi, Sinkhorn Distances: Lightspeed Computation of Optimal
    Transport, 2013, https://arxiv.org/abs/1306.0895: normalize columns and rows in turn, rows last.
    Computed in logarithms, so that a small ε does not overflow float32.
    """
    log_q = scores.float() / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(dim=0, keepdim=True)
        log_q = log_q - log_q.logsumexp(dim=1, keepdim=True)
    return log_q.exp()


def swapped_prediction(logits: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Cross-entropy of the views' logits with assignments, (N, P) each; mean over pairs of views.

    `labels` are the assignments of the first views; no view predicts its own assignment.
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
            # A gradient of 0 instead of None: DDP waits for the gradient of every parameter.
            prototypes = prototypes.detach() + 0 * prototypes
        # Encode views separately, not as one batch, so that BN groups do not depend on the ranks.
        embeddings = [unit(self.online(view)) for view in batch.views]
        full = [gather(z.detach()) for z in embeddings[:2]]  # (B, D) each, of all ranks
        with torch.autocast(prototypes.device.type, enabled=False):
            logits = [z @ prototypes.T / self.config.temperature for z in embeddings]
            loss = swapped_prediction(logits, [self.assign(z, batch.progress) for z in full])
        diagnostics = {"spread": spread(embeddings[0])} if batch.diagnose else {}
        remember: tuple[Tensor, ...] = ()
        if self.bank is not None:
            remember = (torch.cat(full), gather(batch.labels).repeat(2))
        return Output(loss, remember, diagnostics)

    @torch.no_grad()
    def assign(self, embeddings: Tensor, progress: float) -> Tensor:
        """Return the assignments (N, P) of this rank's samples, balanced over all ranks.

        Takes the gathered embeddings (B, D) instead of scores, because they are smaller to send.
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
    online = build_online(config.encoder, norm=True)
    return SwAV(config.method, online, config.encoder.projector_dim)
