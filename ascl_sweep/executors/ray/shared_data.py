"""Datasets in Ray's object store: loaded once per cluster, one copy per node."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ascl.data.base import DATASETS
from ascl_sweep.runtime.cluster import Cluster, Node

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from ray import ObjectRef

    from ascl.data.subset import Data


class DataKey(NamedTuple):
    """Settings that determine a run's images."""

    name: str
    root: str
    train_size: int | None
    holdout: float


@dataclass(frozen=True)
class PackedData:
    """Images of a run as arrays, which all processes of a node share."""

    name: str
    scored: str
    parts: Mapping[str, tuple["NDArray[np.uint8]", "NDArray[np.int64]"]]
    """Images and labels of `train`, `test` and `reference` (if it differs from `train`)."""


@dataclass
class SharedData:
    """Loads each dataset once for all runs of a session."""

    read_cluster: Callable[[], Cluster]
    private: bool
    """Whether Ray is private, i.e. on this machine."""
    _references: dict[DataKey, "ObjectRef[PackedData]"] = field(default_factory=dict)

    def get(self, key: DataKey) -> "ObjectRef[PackedData] | None":
        """Return a reference to a run's images; None if the run must load them itself."""
        if DATASETS[key.name].streams:
            return None
        if key not in self._references:
            nodes = [node for node in self.read_cluster().nodes if node.cpus]
            if not nodes:  # before an autoscaler has added nodes, runs load their own images
                return None
            try:
                self._references[key] = (
                    self._load_here(key) if self.private else self._load_there(nodes, key)
                )
            except (ValueError, OSError):
                return None  # the worker raises the same error, and its run reports it
        return self._references[key]

    def _load_here(self, key: DataKey) -> "ObjectRef[PackedData]":
        """Load the data in this process, which has already imported PyTorch."""
        import ray

        return ray.put(load_packed(key))

    def _load_there(self, nodes: Sequence[Node], key: DataKey) -> "ObjectRef[PackedData]":
        """Load the data with a task on the cluster: this machine may not have them."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        best = max(nodes, key=lambda node: (node.gpus, node.cpus))
        there = NodeAffinitySchedulingStrategy(best.node_id, soft=True)
        # The task requests no CPU, because the runs that wait for it may hold all CPUs. Ray repeats
        # the task if its result is lost with its node.
        load = ray.remote(load_packed).options(
            num_cpus=0, scheduling_strategy=there, max_retries=-1
        )
        reference: ObjectRef[PackedData] = load.remote(key)
        return reference


def load_packed(key: DataKey) -> PackedData:
    """Load a dataset from disk."""
    from ascl.data.subset import load_data

    return pack(load_data(key.name, key.root, train_size=key.train_size, holdout=key.holdout))


def pack(data: "Data") -> PackedData:
    """Convert a run's images to arrays."""
    from ascl.data.base import Images

    parts = {"train": data.train, "test": data.test}
    if data.reference is not data.train:
        parts["reference"] = data.reference
    arrays = {}
    for name, part in parts.items():
        assert isinstance(part, Images)
        arrays[name] = part.images.numpy(), part.labels.numpy()
    return PackedData(data.spec.name, data.scored, arrays)


def unpack(packed: PackedData) -> "Data":
    """Convert packed images back, without a copy."""
    import torch

    from ascl.data.base import Images, dataset_spec
    from ascl.data.subset import Data

    def part(name: str) -> Images:
        with warnings.catch_warnings():  # the arrays are read-only; training never writes to them
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return Images(*map(torch.from_numpy, packed.parts[name]))

    train = part("train")
    reference = part("reference") if "reference" in packed.parts else train
    return Data(dataset_spec(packed.name), train, reference, part("test"), packed.scored)
