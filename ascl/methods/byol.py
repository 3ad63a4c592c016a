"""BYOL, and BYOL with relabeling among the samples of the batch (appendix of the ASCL paper).

Grill et al., Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning, 2020,
https://arxiv.org/abs/2006.07733.

No negatives and no bank: the prediction from the query is trained to match the key of the same
image and, with `relabel`, the keys of its likely neighbors in the batch. BYOL was published with
`symmetric` and `momentum_rises`. The defaults follow the ASCL paper: one pass and constant
momentum.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ascl.config import RunConfig
from ascl.data.base import DatasetSpec
from ascl.distributed import encode_shuffled, gather, share
from ascl.errors import Issue
from ascl.losses import spread, unit, weighted_cosine
from ascl.methods.base import Batch, Method, Output, TrainingSet, average_outputs
from ascl.models.heads import build_mlp, build_online
from ascl.models.momentum_encoder import MomentumCopy, raise_momentum
from ascl.relabel import RelabelConfig, soft_labels_in_batch
from ascl.sections import Cost, Key

LABEL = "BYOL"
PAPER = "arXiv:2006.07733"


class Config(RelabelConfig):
    name: Literal["byol"] = "byol"
    momentum: Annotated[float, Key(label="m")] = Field(0.99, ge=0, le=1)
    """m of the momentum encoder."""
    momentum_rises: Annotated[bool, Key(label="m rises")] = False
    """Whether m rises along a cosine from `momentum` to 1 at the end of training, as published."""
    symmetric: Annotated[bool, Key(label="symmetric")] = False
    """Use each view once as query and once as key, at twice the cost. The loss is the mean of both
    passes (published: the sum, at half the rate). With `relabel` each pass uses its own keys."""

    def inert(self) -> frozenset[str]:
        # These keys are newer than the first stores: runs without them keep their ids.
        later = {"momentum_rises": self.momentum_rises, "symmetric": self.symmetric}
        return super().inert() | {name for name, value in later.items() if not value}

    def cost(self) -> Cost:
        return Cost(("query", "key"), backprops=2 if self.symmetric else 1, ema=True)

    def issues(self, run: RunConfig) -> Iterator[Issue]:
        yield from self.in_batch_issues(run)


def defaults(preset: object, dataset: DatasetSpec) -> dict[str, Any]:
    # Plain batch norm: without negatives, statistics cannot leak the positive, and BYOL benefits
    # from whole-batch statistics.
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
            momentum = raise_momentum(momentum, batch.progress)
        self.target.follow(self.online, momentum)
        orders = (batch.views, batch.views[::-1]) if config.symmetric else (batch.views,)
        return average_outputs([self.one_pass(query, key, batch) for query, key in orders])

    def one_pass(self, query_view: Tensor, key_view: Tensor, batch: Batch) -> Output:
        """Compute the loss with one view as the query and the other as the key."""
        query = unit(self.predictor(self.online(query_view)))
        keys = unit(encode_shuffled(self.target, key_view, batch.shuffle))  # of all ranks
        with torch.autocast(query.device.type, enabled=False):
            weights, diagnostics = self.weights(keys, batch)
            loss = weighted_cosine(query, keys, weights)
        if batch.diagnose:
            diagnostics = diagnostics | {"spread": spread(query)}
        return Output(loss, (), diagnostics)

    def weights(self, keys: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weight (N, global batch) of each key in the loss of this rank's queries."""
        mine = share(len(keys))
        own = torch.eye(len(keys), dtype=torch.bool, device=keys.device)[mine]
        return soft_labels_in_batch(
            self.config,
            keys[mine] @ keys.T,  # eq. 13
            own,
            batch.labels,
            gather(batch.labels),
            diagnose=batch.diagnose,
        )


def build(config: RunConfig, training: TrainingSet) -> BYOL:
    assert isinstance(config.method, Config)
    sizes, online = config.encoder, build_online(config.encoder, norm=True)
    dim = sizes.projector_dim
    predictor = build_mlp(dim, sizes.projector_hidden, dim, bn_splits=sizes.bn_splits)
    return BYOL(config.method, online, predictor)
