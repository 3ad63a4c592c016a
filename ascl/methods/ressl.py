"""ReSSL: the query's similarities to the bank are trained to match its key's.

Zheng et al., ReSSL: Relational Self-Supervised Learning with Weak Augmentation, 2021,
https://arxiv.org/abs/2107.09282.

The query is a strong view, the key a weak view. The key's sharpened similarities to the bank are
the target of the query's; there is no positive logit and no negative. `relabel` multiplies the
target by a prior.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import encode_shuffled, gather, share
from ascl.errors import Issue
from ascl.losses import spread, unit
from ascl.methods.base import Batch, Method, Output, TrainingSet
from ascl.models.heads import build_online
from ascl.models.memory_bank import FeatureBank
from ascl.models.momentum_encoder import MomentumCopy
from ascl.relabel import RelabelConfig, soft_labels
from ascl.sections import Cost, Key

LABEL = "ReSSL"
PAPER = "arXiv:2107.09282"
# With the published key temperature, the target stays uniform in a short run and the encoder learns
# nothing. The momentum encoder must change slowly, or the keys in the bank are stale.
SMOKE = {
    "method": {"momentum": 0.996, "key_temperature": 0.02},
    "optim": {"weight_decay": 1e-4},
}


class Config(RelabelConfig):
    name: Literal["ressl"] = "ressl"
    temperature: Annotated[float, Key(label="τ")] = Field(0.1, gt=0)
    """τ of the query's similarities to the bank."""
    key_temperature: float = Field(0.04, gt=0)
    """τ of the key's similarities, the target; lower than the query's for a sharper target."""
    queue_size: Annotated[int, Key(label="bank")] = Field(4096, ge=2, le=2**22)
    """n: number of keys in the bank."""
    momentum: Annotated[float, Key(label="m")] = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=1, ema=True)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        yield from self.neighbor_issues(self.queue_size, "keys in the bank")


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    optim = {"lr": 0.06, "lr_scaling": "linear", "weight_decay": 5e-4, "warmup_epochs": 5}
    if not dataset.streams:
        return {"optim": optim}
    return {
        "method": {"queue_size": 131072, "momentum": 0.999},
        "optim": {**optim, "lr": 0.05, "weight_decay": 1e-4},
    }


# Shapes: N = batch, B = bank.
def apply_prior(target: Tensor, labels: Tensor) -> Tensor:
    """Reweight the target (N, B) by pseudo labels (N, 1 + B): t_j ∝ p_j · (y_0 + y_j).

    The label y_0 of the key itself has no column here and is added to all columns, so labels
    without neighbors leave the target unchanged.
    """
    weighed = target * (labels[:, :1] + labels[:, 1:])
    return weighed / weighed.sum(dim=1, keepdim=True)


class ReSSL(Method):
    def __init__(self, config: Config, online: nn.Sequential, dim: int) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.target = MomentumCopy(self.online)
        self.bank = FeatureBank(config.queue_size, dim)

    def forward(self, batch: Batch) -> Output:
        config, bank = self.config, self.bank.features
        self.target.follow(self.online, config.momentum)
        query = unit(self.online(batch.views[0]))
        keys = unit(encode_shuffled(self.target, batch.views[1], batch.shuffle))  # of all ranks
        key = keys[share(len(keys))]
        diagnostics = {"spread": spread(query)} if batch.diagnose else {}
        with torch.autocast(query.device.type, enabled=False):
            similarity = key @ bank.T
            target = torch.softmax(similarity / config.key_temperature, dim=1)
            if config.relabel != "none":
                labels, seen = soft_labels(
                    config,
                    similarity,
                    batch.labels,
                    self.bank.classes,
                    diagnose=batch.diagnose,
                )
                target = apply_prior(target, labels)
                diagnostics |= seen
            loss = F.cross_entropy(query @ bank.T / config.temperature, target)
        return Output(loss, (keys, gather(batch.labels)), diagnostics)

    def after_backward(self, output: Output) -> None:
        self.bank.enqueue(*output.remember)


def build(config: RunConfig, training: TrainingSet) -> ReSSL:
    assert isinstance(config.method, Config)
    return ReSSL(config.method, build_online(config.encoder), config.encoder.projector_dim)
