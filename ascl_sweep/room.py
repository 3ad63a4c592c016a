"""What fits on a cluster: machines, and how many runs of which kind they hold. No Ray, no clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascl_sweep.spec import Resources

ROUNDING = 1e-9  # thirds of a CPU must add up to one


class NoResources(RuntimeError):
    """What a sweep asks for is not there; one sentence with the way out."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, by what Ray may hand out of it."""

    node_id: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Kind:
    """Machines that an autoscaler may have, all alike."""

    count: int
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Later:
    """What an autoscaler may make of a cluster."""

    kinds: tuple[Kind, ...] = ()
    most: int = 0
    """Machines in all."""

    def best(self, resources: Resources) -> list[Kind]:
        """The most machines that there may be, those that hold most of a kind of run."""
        every = [kind for kind in self.kinds for _ in range(kind.count)]
        every.sort(key=lambda kind: _free(kind).fits(resources), reverse=True)
        return every[: self.most]


@dataclass(frozen=True)
class Cluster:
    """Where runs are started, as it is now."""

    nodes: tuple[Node, ...]
    scratch: Path
    """For what Ray writes and nobody reads; gone at the end."""
    private: bool
    """Whether it is this machine, and this process its only user."""
    later: Later = Later()
    """What an autoscaler may make of it; nothing without one."""

    def room(
        self,
        resources: Resources,
        avoid: Collection[str] = (),
        taken: Sequence[Resources] = (),
    ) -> int:
        """How many runs may be handed out beside those that are, some machines left out.

        An autoscaler adds machines for runs that wait for them, so its machines count before they
        are there.
        """
        here = [node for node in self.nodes if node.node_id not in avoid]
        later = self.later.best(resources)
        return max(_room(here, resources, taken), _room(later, resources, taken))

    def holding(self, resources: Resources) -> list[str]:
        """The machines on which a worker fits."""
        return [node.node_id for node in self.nodes if _free(node).fits(resources)]

    def check(self, resources: Resources) -> None:
        """Raise `NoResources` if no run can ever be started."""
        cpus, gpus = resources.cpus_per_worker, resources.gpus_per_worker
        every: list[Node | Kind] = [*self.nodes, *(kind for kind in self.later.kinds if kind.count)]
        most_gpus = max((node.gpus for node in every), default=0)
        most_cpus = max((node.cpus for node in every), default=0)
        if gpus > most_gpus:
            raise NoResources(
                f"a worker must fit on one machine, got resources.gpus_per_worker={gpus:g}, while "
                f"the largest has {most_gpus:g} GPUs; lower it (--set resources.gpus_per_worker=0 "
                "trains on the CPU), try --scale laptop, or give the --address of a cluster"
            )
        if cpus > most_cpus:
            raise NoResources(
                f"a worker must fit on one machine, got resources.cpus_per_worker={cpus:g}, while "
                f"the largest has {most_cpus:g} CPUs; lower it, e.g. "
                f"--set resources.cpus_per_worker={most_cpus:g}"
            )
        if not self.room(resources):
            alone = self.room(resources.model_copy(update={"workers": 1}))
            raise NoResources(
                f"a run's workers must fit on the cluster together, got "
                f"resources.workers={resources.workers}, while there is room for {alone}; lower "
                "it, or add nodes"
            )

    def total(self) -> tuple[float, float]:
        """CPUs and GPUs."""
        return sum(node.cpus for node in self.nodes), sum(node.gpus for node in self.nodes)


def later_of(cluster_file: Mapping[str, Any]) -> Later:
    """What an autoscaler may add, by the file that it goes by; raises ValueError if it is none."""
    try:
        most = int(cluster_file["max_workers"])
        head = cluster_file.get("head_node_type")
        kinds = tuple(
            Kind(
                min(most, int(each.get("max_workers", 0 if name == head else most))),
                float(each["resources"].get("CPU", 0)),
                float(each["resources"].get("GPU", 0)),
            )
            for name, each in cluster_file["available_node_types"].items()
        )
        return Later(kinds, most)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            "what an autoscaler may add must be given as max_workers, and as available_node_types "
            f"with their resources ({type(error).__name__}: {error})"
        ) from None


def _room(machines: Sequence[Node | Kind], resources: Resources, taken: Sequence[Resources]) -> int:
    """How many runs fit on machines beside others, as far as one can tell.

    Ray may have put the others less tightly; a run that then finds no place waits for one.
    """
    free = [_free(machine) for machine in machines]
    alike = sum(other == resources for other in taken)
    # The hungriest first, each as tightly as can be; those like ours are simply counted.
    others = [other for other in taken if other != resources]
    for other in sorted(others, key=lambda r: (r.gpus_per_worker, r.cpus_per_worker), reverse=True):
        for _ in range(other.workers):
            if not any(machine.take(other) for machine in free):
                return 0  # more is taken than is there: machines went away
    places = sum(machine.fits(resources) for machine in free)
    return max(0, places // resources.workers - alike)


def _free(machine: Node | Kind) -> _Free:
    return _Free(machine.cpus, [1.0] * int(machine.gpus))


@dataclass
class _Free:
    """What is left of a machine."""

    cpus: float
    gpus: list[float]
    """Of each GPU, for parts of one cannot be put together from two."""

    def fits(self, resources: Resources) -> int:
        """How many workers could be put there."""
        by_cpu = int(self.cpus / resources.cpus_per_worker + ROUNDING)
        if not (gpus := resources.gpus_per_worker):
            return by_cpu
        shares = sum(int(left / min(gpus, 1) + ROUNDING) for left in self.gpus)
        return min(by_cpu, shares // math.ceil(gpus))

    def take(self, resources: Resources) -> bool:
        """Put a worker there, if it fits."""
        if not self.fits(resources):
            return False
        self.cpus -= resources.cpus_per_worker
        share = min(resources.gpus_per_worker, 1)
        able = [i for i, left in enumerate(self.gpus) if left + ROUNDING >= share]
        for i in sorted(able, key=self.gpus.__getitem__)[: math.ceil(resources.gpus_per_worker)]:
            self.gpus[i] -= share
        return True
