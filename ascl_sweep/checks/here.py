"""This machine, from its packages to a private Ray."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascl_sweep.checks import Check
from ascl_sweep.checks.dashboard import dashboard_here, of_dashboard
from ascl_sweep.checks.machine import Wants, gpus_of_system, look, of_machine
from ascl_sweep.checks.packages import PACKAGES, of_versions
from ascl_sweep.checks.stores import of_store, store_fault
from ascl_sweep.checks.sweeps import of_sweeps
from ascl_sweep.cluster import connected
from ascl_sweep.room import Cluster, Node, NoResources

if TYPE_CHECKING:
    from ascl_sweep.spec import SweepSpec


def check_here(
    specs: Sequence["SweepSpec"], wants: Wants, *, store: str, start_ray: bool
) -> Iterator[Check]:
    """This machine; `store` is where results would go, `wants.store` is tried out."""
    facts = look(Wants(wants.datasets, store))
    yield from of_versions({"here": facts.versions}, {"here": facts.faults})
    yield from of_machine(facts, gpus_of_system())
    if not facts.usable(*PACKAGES):
        return  # the rest needs them
    if wants.store is not None:
        yield of_store(wants.store, store_fault(wants.store))
    here = Cluster((Node("here", facts.cpus, len(facts.gpus)),), Path(), private=True)
    yield from of_sweeps(specs, here)
    if start_ray:
        try:
            with connected(None, dashboard=True) as cluster:
                cpus, devices = cluster.total()
                yield Check("Ray", f"starts, with {cpus:g} CPUs and {devices:g} GPUs")
                yield from of_dashboard(dashboard_here())
        except NoResources as error:
            yield Check("Ray", str(error), False)
