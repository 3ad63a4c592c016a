"""BYOL, and BYOL with relabelling among the samples of the batch (the paper's appendix).

No negatives and no bank: a predictor on the query meets the key of its own sample, and with
`relabel` also the keys of its likely neighbours in the batch. BYOL as first published is
`symmetric` and its `momentum_rises`; the appendix has one pass, and the paper one momentum for all
of the training: the default here.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import Cost, RunConfig
from ascl.datasets import DatasetSpec
from ascl.distributed import gather, share, shuffled_keys
from ascl.encoders import mlp, projected
from ascl.faults import Fault
from ascl.losses import spread, unit, weighted_cosine
from ascl.methods import Batch, Method, Output, TrainingSet, mean_of
from ascl.momentum import MomentumCopy, rising
from ascl.relabel import RelabelConfig, labels_in_batch


class Config(RelabelConfig):
    name: Literal["byol"] = "byol"
    momentum: float = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""
    momentum_rises: bool = False
    """From `momentum` at the start to 1 at the end, along a cosine, as published."""
    symmetric: bool = False
    """Both views are query and key, and the loss is the mean of the two (the sum, as published, at
    half the rate); at twice the cost. With `relabel` each pass goes by its own keys."""

    def inert(self) -> frozenset[str]:
        # They came later: a run without them keeps the id that it has in older ledgers.
        later = {"momentum_rises": self.momentum_rises, "symmetric": self.symmetric}
        return super().inert() | {name for name, value in later.items() if not value}

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=2 if self.symmetric else 1, ema=True)

    def faults(self, run: RunConfig) -> Iterator[Fault]:
        yield from self.in_batch_faults(run)


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

    def forward(self, batch: Batch) -> Output:
        config, momentum = self.config, self.config.momentum
        if config.momentum_rises:
            momentum = rising(momentum, batch.progress)
        self.target.follow(self.online, momentum)
        orders = (batch.views, batch.views[::-1]) if config.symmetric else (batch.views,)
        return mean_of([self.one_pass(query, key, batch) for query, key in orders])

    def one_pass(self, query_view: Tensor, key_view: Tensor, batch: Batch) -> Output:
        """The loss with one view as the query and the other as the key."""
        query = unit(self.predictor(self.online(query_view)))
        keys = unit(shuffled_keys(self.target, key_view, batch.shuffle))  # of all ranks
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
        return labels_in_batch(
            self.config,
            keys[mine] @ keys.T,  # eq. 13
            own,
            batch.labels,
            gather(batch.labels),
            diagnose=batch.diagnose,
        )


def build(config: RunConfig, training: TrainingSet) -> BYOL:
    assert isinstance(config.method, Config)
    sizes, online = config.encoder, projected(config.encoder, norm=True)
    dim = sizes.projector_dim
    predictor = mlp(dim, sizes.projector_hidden, dim, bn_splits=sizes.bn_splits)
    return BYOL(config.method, online, predictor)
