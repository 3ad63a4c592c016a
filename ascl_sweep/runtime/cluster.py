"""Capacity of a cluster: its nodes, the limits of its autoscaler, and how many runs fit."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascl_sweep.errors import ResourceError

if TYPE_CHECKING:
    from ascl_sweep.spec.sweep import Resources

ROUNDING = 1e-9  # three thirds of a CPU must add up to one CPU


@dataclass(frozen=True)
class Node:
    """Node of a cluster, with the resources that runs may use."""

    node_id: str
    cpus: float
    gpus: float
    drains_until: float | None = None
    """Unix time when a draining node ends, infinity if unknown; None if it is not draining."""


@dataclass(frozen=True)
class NodeType:
    """Type of node that an autoscaler may add, and how many of them."""

    count: int
    cpus: float
    gpus: float


@dataclass(frozen=True)
class AutoscalerLimits:
    """Node types that an autoscaler may add, and the maximum number of nodes in total."""

    types: tuple[NodeType, ...] = ()
    max_nodes: int = 0

    def best_nodes(self, resources: Resources) -> list[NodeType]:
        """Return the allowed nodes on which the most workers fit."""
        every = [type_ for type_ in self.types for _ in range(type_.count)]
        every.sort(key=lambda type_: _free(type_).fits(resources), reverse=True)
        return every[: self.max_nodes]


@dataclass(frozen=True)
class Cluster:
    """Nodes of a cluster now, and the nodes that an autoscaler may add."""

    nodes: tuple[Node, ...]
    limits: AutoscalerLimits = AutoscalerLimits()
    max_runs: int | None = None
    """Maximum number of parallel runs whatever their resources; None for as many as fit."""

    def count_slots(
        self,
        resources: Resources,
        avoid: Collection[str] = (),
        taken: Sequence[Resources] = (),
    ) -> int:
        """Return how many more runs fit on the cluster.

        An autoscaler adds nodes only for waiting runs, so its nodes count before they exist.

        Args:
            resources: Resources of each run.
            avoid: Ids of nodes that the runs must not use.
            taken: Resources of the runs that are already placed.
        """
        here = [node for node in self.lasting if node.node_id not in avoid]
        later = self.limits.best_nodes(resources)
        slots = max(_count_slots(here, resources, taken), _count_slots(later, resources, taken))
        return slots if self.max_runs is None else min(slots, max(0, self.max_runs - len(taken)))

    def nodes_that_fit(self, resources: Resources) -> list[str]:
        """Return the ids of the nodes on which a worker fits."""
        return [node.node_id for node in self.lasting if _free(node).fits(resources)]

    @property
    def lasting(self) -> list[Node]:
        """The nodes that are not draining; only these are capacity."""
        return [node for node in self.nodes if node.drains_until is None]

    def check(self, resources: Resources) -> None:
        """Raise ResourceError if a run with these resources can never start."""
        cpus, gpus = resources.cpus_per_worker, resources.gpus_per_worker
        added = [type_ for type_ in self.limits.types if type_.count]
        every: list[Node | NodeType] = [*self.lasting, *added]
        most_gpus = max((node.gpus for node in every), default=0)
        most_cpus = max((node.cpus for node in every), default=0)
        if gpus > most_gpus:
            raise ResourceError(
                f"a worker must fit on one node, got resources.gpus_per_worker={gpus:g}, but the "
                f"largest node has {most_gpus:g} GPUs; lower gpus_per_worker "
                "(--set resources.gpus_per_worker=0 trains on the CPU), try --scale laptop, or "
                "give the --address of a cluster"
            )
        if cpus > most_cpus:
            raise ResourceError(
                f"a worker must fit on one node, got resources.cpus_per_worker={cpus:g}, but the "
                f"largest node has {most_cpus:g} CPUs; lower cpus_per_worker, e.g. "
                f"--set resources.cpus_per_worker={most_cpus:g}"
            )
        if not self.count_slots(resources):
            alone = self.count_slots(resources.model_copy(update={"workers": 1}))
            raise ResourceError(
                "all workers of a run must fit on the cluster at the same time, got "
                f"resources.workers={resources.workers}, but the cluster has capacity for {alone}; "
                "lower workers or add nodes"
            )

    def total(self) -> tuple[float, float]:
        """Return the total numbers of CPUs and GPUs."""
        return sum(node.cpus for node in self.nodes), sum(node.gpus for node in self.nodes)


def parse_autoscaler_limits(cluster_file: Mapping[str, Any]) -> AutoscalerLimits:
    """Read the autoscaler limits of a cluster file; raises ValueError if they are missing."""
    try:
        most = int(cluster_file["max_workers"])
        head = cluster_file.get("head_node_type")
        types = tuple(
            NodeType(
                min(most, int(each.get("max_workers", 0 if name == head else most))),
                float(each["resources"].get("CPU", 0)),
                float(each["resources"].get("GPU", 0)),
            )
            for name, each in cluster_file["available_node_types"].items()
        )
        return AutoscalerLimits(types, most)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            "the autoscaler limits must be given as max_workers and available_node_types with "
            f"resources ({type(error).__name__}: {error})"
        ) from None


def _count_slots(
    nodes: Sequence[Node | NodeType], resources: Resources, taken: Sequence[Resources]
) -> int:
    """Return how many more runs fit on nodes.

    Assumes that the placed runs are packed tightly. If Ray has placed them differently, a run may
    have to wait for its slot.
    """
    free = [_free(node) for node in nodes]
    alike = sum(other == resources for other in taken)
    # Place the largest runs first. Runs with the same resources are only counted.
    others = [other for other in taken if other != resources]
    for other in sorted(others, key=lambda r: (r.gpus_per_worker, r.cpus_per_worker), reverse=True):
        for _ in range(other.workers):
            if not any(node.take(other) for node in free):
                return 0  # the placed runs do not fit: nodes were lost
    workers = sum(node.fits(resources) for node in free)
    return max(0, workers // resources.workers - alike)


def _free(node: Node | NodeType) -> _Free:
    return _Free(node.cpus, [1.0] * int(node.gpus))


@dataclass
class _Free:
    """Free resources of a node."""

    cpus: float
    gpus: list[float]
    """Free share of each GPU: fractions of two GPUs cannot be combined."""

    def fits(self, resources: Resources) -> int:
        """Return how many workers fit on the node."""
        by_cpu = int(self.cpus / resources.cpus_per_worker + ROUNDING)
        if not (gpus := resources.gpus_per_worker):
            return by_cpu
        shares = sum(int(left / min(gpus, 1) + ROUNDING) for left in self.gpus)
        return min(by_cpu, shares // math.ceil(gpus))

    def take(self, resources: Resources) -> bool:
        """Place a worker on the node if it fits; return whether it fits."""
        if not self.fits(resources):
            return False
        self.cpus -= resources.cpus_per_worker
        share = min(resources.gpus_per_worker, 1)
        able = [i for i, left in enumerate(self.gpus) if left + ROUNDING >= share]
        for i in sorted(able, key=self.gpus.__getitem__)[: math.ceil(resources.gpus_per_worker)]:
            self.gpus[i] -= share
        return True
