"""Shared by all tests: two cores are not to be oversubscribed, and a run small enough to train."""

import os
import signal
from typing import Any

import pytest
import torch
from hypothesis import settings

from ascl.config import RunConfig, merge

# Processes inherit ignored signals: `nohup` ignores SIGHUP, and a shell ignores SIGINT of its
# background jobs. Tests send these signals.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        )
torch.set_num_threads(1)
# Ray's processes give way to all others (15 by default): beside another test they would starve.
os.environ.setdefault("RAY_worker_niceness", "0")
settings.register_profile("default", deadline=None, print_blob=True, max_examples=50)
settings.load_profile("default")

TINY: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "data": {"name": "shapes", "train_size": 80, "holdout": 0.2},  # 64 to train, 16 to score
    "encoder": {"width": 4, "bn_splits": 2, "projector_hidden": 16, "projector_dim": 8},
    "eval": {"knn_k": 10, "probe": "none"},
    "runtime": {"device": "cpu"},
}

# Its ε and τ, five times as large as published, have smaller gradients: see `steady`.
_SWAV = {"name": "swav", "num_prototypes": 12, "temperature": 0.5, "sinkhorn_epsilon": 0.25}

SYSTEMS: dict[str, dict[str, Any]] = {
    "moco": {"name": "moco", "queue_size": 40},
    "hard": {"name": "moco", "queue_size": 40, "relabel": "hard", "num_neighbours": 2},
    "ahcl": {"name": "moco", "queue_size": 40, "relabel": "ahcl", "num_neighbours": 2},
    "ascl": {"name": "moco", "queue_size": 40, "relabel": "ascl"},
    "byol": {"name": "byol"},
    "byol_hard": {"name": "byol", "relabel": "hard"},
    "byol_ahcl": {"name": "byol", "relabel": "ahcl"},
    "byol_ascl": {"name": "byol", "relabel": "ascl"},
    "supervised": {"name": "supervised"},
    "ressl": {"name": "ressl", "queue_size": 40},
    "ressl_ascl": {"name": "ressl", "queue_size": 40, "relabel": "ascl"},
    "co2": {"name": "co2", "queue_size": 40},
    "meanshift": {"name": "meanshift", "queue_size": 40},
    "moco_symmetric": {"name": "moco", "queue_size": 40, "symmetric": True},
    "byol_full": {"name": "byol", "symmetric": True, "momentum_rises": True},
    "simclr": {"name": "simclr"},
    "simclr_ascl": {"name": "simclr", "relabel": "ascl", "num_neighbours": 2},
    "simsiam": {"name": "simsiam", "predictor_hidden": 4},
    # τ 1 has smaller gradients: see `steady`.
    "nnclr": {"name": "nnclr", "queue_size": 40, "predictor_hidden": 16, "temperature": 1.0},
    "nnclr_ascl": {
        **{"name": "nnclr", "queue_size": 40, "predictor_hidden": 16, "temperature": 1.0},
        **{"relabel": "ascl"},
    },
    "clsa": {"name": "clsa", "queue_size": 40},
    "swav": _SWAV,
    "instdisc": {"name": "instdisc"},
    "instdisc_sampled": {"name": "instdisc", "negatives": 20},
    "localagg": {
        **{"name": "localagg", "background": 24, "num_clusterings": 2, "num_clusters": 6},
        **{"instdisc_epochs": 0},
    },
    "pcl": {
        **{"name": "pcl", "queue_size": 40, "granularities": [5, 9], "negative_prototypes": 4},
        **{"instance_epochs": 0},
    },
    "swav_full": {**_SWAV, "small_crops": 2, "queue_size": 40, "queue_from": 0.3},
}
"""Every system of the paper's tables, and the forms that go another way through a method's code."""

ONE_EACH = {str(method["name"]): name for name, method in reversed(SYSTEMS.items())}.values()
"""Of each method the system that stands first."""


def tiny(system: str = "ascl", **changes: Any) -> RunConfig:
    """A run of a few seconds of one of the `SYSTEMS`; `changes` are sections or top-level keys."""
    return RunConfig.of(merge(merge(TINY, {"method": SYSTEMS[system]}), changes))


def steady(system: str, **changes: Any) -> RunConfig:
    """As `tiny`, where steps are compared: rounding then stays rounding over a few of them.

    Where a projector ends on batch norm over a handful of samples, it grows a hundredfold with each
    step until it swaps nearest neighbours, unless the steps are small.
    """
    rate = {"lr": 0.003} if SYSTEMS[system]["name"] in ("simsiam", "nnclr", "byol") else {}
    return tiny(system, **merge({"optim": rate}, changes))


@pytest.fixture(params=sorted(SYSTEMS))
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    params=[
        name if name in ONE_EACH else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(SYSTEMS)
    ]
)
def trained_system(request: pytest.FixtureRequest) -> str:
    """As `system`, for laws that train for a while: a method's other forms are left to CI."""
    return str(request.param)
