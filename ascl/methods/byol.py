"""BYOL, and BYOL with relabelling among the samples of the batch (the paper's appendix).

No negatives and no bank: a predictor on the query meets the key of its own sample, and with
`relabel` also the keys of its likely neighbours in the batch.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import Cost, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, share, shuffled_keys
from ascl.encoders import ResNet, mlp
from ascl.faults import Fault
from ascl.losses import spread, unit, weighted_cosine
from ascl.methods import Batch, Method, Output, TrainingSet
from ascl.momentum import MomentumCopy
from ascl.relabel import RelabelConfig, soft_labels


class Config(RelabelConfig):
    name: Literal["byol"] = "byol"
    momentum: float = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=1, ema=True)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        if self.relabel != "none" and run.batch_size < 3:
            yield Fault(
                "batch_size",
                "relabelling in the batch needs at least 3 images, "
                f"got batch_size={run.batch_size}",
            )
        yield from self.neighbour_faults(run.batch_size - 1, "other images in the batch")


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    # Plain batch norm: there is no key to single out, and BYOL leans on whole-batch statistics.
    hidden, dim = (4096, 256) if dataset.streams else (1024, 128)
    return {
        "method": {"momentum": 0.999 if dataset.streams and preset == "code" else 0.99},
        "encoder": {"bn_splits": 1, "projector_hidden": hidden, "projector_dim": dim},
    }


class BYOL(Method):
    def __init__(self, config: Config, online: nn.Sequential, predictor: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.online = online
        self.predictor = predictor
        self.target = MomentumCopy(online)

    @property
    def encoder(self) -> nn.Module:
        return self.online[0]

    def forward(self, batch: Batch) -> Output:
        self.target.follow(self.online, self.config.momentum)
        query = unit(self.predictor(self.online(batch.views[0])))
        keys = unit(shuffled_keys(self.target, batch.views[1], batch.shuffle))  # of all ranks
        with torch.autocast(query.device.type, enabled=False):
            weights, diagnostics = self.weights(keys, batch)
            loss = weighted_cosine(query, keys, weights)
        if batch.diagnose:
            diagnostics = diagnostics | {"spread": spread(query)}
        return Output(loss, (), diagnostics)

    def weights(self, keys: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """What each of this rank's queries takes from each key of the batch, (N, global batch)."""
        mine = share(len(keys))
        own = torch.eye(len(keys), dtype=torch.bool, device=keys.device)[mine]
        if self.config.relabel == "none":
            return own.float(), {}
        similarity = (keys[mine] @ keys.T).masked_fill_(own, -math.inf)  # eq. 13
        labels, diagnostics = soft_labels(
            self.config,
            similarity,
            batch.labels,
            gather(batch.labels),
            diagnose=batch.diagnose,
        )
        return torch.where(own, labels[:, :1], labels[:, 1:]), diagnostics


def build(config: RunConfig, training: TrainingSet) -> BYOL:
    assert isinstance(config.method, Config)
    sizes, encoder = config.encoder, ResNet(config.encoder)
    hidden, dim, splits = sizes.projector_hidden, sizes.projector_dim, sizes.bn_splits
    projector = mlp(encoder.feature_dim, hidden, dim, bn_splits=splits)
    predictor = mlp(dim, hidden, dim, bn_splits=splits)
    return BYOL(config.method, nn.Sequential(encoder, projector), predictor)
