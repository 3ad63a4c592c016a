"""Shared by all tests: two cores are not to be oversubscribed, and a run small enough to train."""

from typing import Any

import pytest
import torch
from hypothesis import settings

from ascl.config import RunConfig, merge

torch.set_num_threads(1)
settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")

TINY: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "data": {"name": "shapes", "train_size": 80, "holdout": 0.2},  # 64 to train, 16 to score
    "encoder": {"width": 4, "bn_splits": 2, "projector_hidden": 16, "projector_dim": 8},
    "eval": {"knn_k": 10, "probe": "none"},
    "runtime": {"device": "cpu"},
}

SYSTEMS: dict[str, dict[str, Any]] = {
    "moco": {"name": "moco", "queue_size": 40},
    "hard": {"name": "moco", "queue_size": 40, "relabel": "hard", "num_neighbours": 2},
    "ahcl": {"name": "moco", "queue_size": 40, "relabel": "ahcl", "num_neighbours": 2},
    "ascl": {"name": "moco", "queue_size": 40, "relabel": "ascl"},
    "byol": {"name": "byol"},
    "byol_hard": {"name": "byol", "relabel": "hard"},
    "byol_ahcl": {"name": "byol", "relabel": "ahcl"},
    "byol_ascl": {"name": "byol", "relabel": "ascl"},
}
"""Every system of the paper's ablations."""


def tiny(system: str = "ascl", **changes: Any) -> RunConfig:
    """A run of a few seconds of one of the `SYSTEMS`; `changes` are sections or top-level keys."""
    return RunConfig.of(merge(merge(TINY, {"method": SYSTEMS[system]}), changes))


@pytest.fixture(params=sorted(SYSTEMS))
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)
