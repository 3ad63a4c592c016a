"""Checks of every node of a Ray cluster, from its packages to its access to the store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ascl_sweep.doctor.checks import (
    Check,
    Wants,
    check_capacity,
    check_dashboard,
    check_store,
    delete_probe,
    write_probe,
)
from ascl_sweep.doctor.machine import INSTALL, check_machine, check_packages, installed_versions
from ascl_sweep.errors import ClusterError, ResourceError
from ascl_sweep.executors.ray.cluster import connect_ray, read_cluster
from ascl_sweep.executors.ray.probes import (
    ask_nodes,
    dashboard_authentication,
    dashboard_url,
    list_nodes,
)

if TYPE_CHECKING:
    from ascl_sweep.runtime.cluster import Cluster
    from ascl_sweep.spec.sweep import SweepSpec

ANSWER_SECONDS = 60.0  # limit for starting a process on a node
LOOK_SECONDS = 600.0  # limit for loading PyTorch and checking a dataset on a node
HERE = "this machine"


def check_cluster(
    address: str, specs: Sequence["SweepSpec"], wants: Wants, say: Callable[[str], None]
) -> Iterator[Check]:
    """Check every node of the Ray cluster at an address.

    Args:
        address: Address of the cluster.
        specs: Sweeps whose runs must fit.
        wants: Datasets and store that each node must have.
        say: Called with a message before each slow step.
    """
    say(f"connecting to Ray at {address} …")
    try:
        with connect_ray(address, dashboard=False):
            yield from _check_nodes(read_cluster(private=False), specs, wants, say)
    except (ResourceError, ClusterError) as error:  # the message includes the fix
        yield Check("Ray", str(error), False)
    except ImportError as error:
        yield Check("Ray", f"cannot be imported here: {error}", False, INSTALL)


def _check_nodes(
    cluster: "Cluster", specs: Sequence["SweepSpec"], wants: Wants, say: Callable[[str], None]
) -> Iterator[Check]:
    nodes = list_nodes()
    say(f"checking {len(nodes)} nodes …")
    yield Check("Ray", f"responds; nodes: {len(nodes)}")
    questions = {node.name: installed_versions for node in nodes}
    versions, silent = ask_nodes(nodes, questions, seconds=ANSWER_SECONDS)
    yield from _check_silent(silent)
    ours = {package: installed_versions()[package] for package in ("Python", "ray", "ascl-sweep")}
    yield from compare_versions(versions | {HERE: ours})

    probe = None
    if wants.store is not None:  # shared by the driver and all workers
        here = check_store(wants.store)
        yield here
        probe = write_probe(wants.store) if here.ok else None
    resources = {node.node_id: node for node in cluster.nodes}
    nodes = [node for node in nodes if node.name in versions and node.node_id in resources]
    looks = {}
    for node in nodes:
        has = resources[node.node_id]
        needs = wants if has.cpus else replace(wants, datasets=())  # runs need a CPU
        url = dashboard_url() if node.is_head else None
        looks[node.name] = partial(_check_node, needs, has.gpus, probe, url)
    found, silent = ask_nodes(nodes, looks, seconds=LOOK_SECONDS)
    if wants.store is not None and probe is not None:
        delete_probe(wants.store, probe)
    yield from _check_silent(silent)
    for name, checks in found.items():
        yield from (replace(check, what=f"{name} {check.what}") for check in checks)
    if not any(node.is_head for node in nodes):
        yield Check("head", "the head node does not respond", False, "see `ray status`")
    yield from check_capacity(specs, cluster)


def _check_node(wants: Wants, gpus: float, probe: str | None, url: str | None) -> list[Check]:
    """Check the node that this runs on; if packages are broken, return only those checks."""
    broken = [check for check in check_packages() if not check.ok]
    if broken:
        return broken
    checks = list(check_machine(wants, gpus))
    if wants.store is not None:
        checks.append(check_store(wants.store, probe))
    if url is not None:
        checks += check_dashboard(dashboard_authentication(url))
    return checks


def compare_versions(found: Mapping[str, Mapping[str, str]]) -> Iterator[Check]:
    """Check that each package has the same version on all machines that have it."""
    for package in next(iter(found.values())):
        versions = {at: known[package] for at, known in found.items() if known.get(package)}
        # Build suffixes may differ: a head node without GPU may have the CPU build of PyTorch.
        if len({version.partition("+")[0] for version in versions.values()}) > 1:
            differ = "; ".join(f"{version} on {at}" for at, version in versions.items())
            yield Check(package, differ, False, "install the same version everywhere")
        elif versions:
            version = next(iter(versions.values()))
            yield Check(package, f"{version}, the same on {len(versions)} machines")


def _check_silent(errors: Mapping[str, str]) -> Iterator[Check]:
    fix = "see `ray status`, and install the same ascl-sweep as on the head node"
    for name, error in errors.items():
        yield Check(f"{name} node", error, False, fix)
