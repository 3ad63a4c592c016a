"""Every node of a Ray cluster, asked through a small process of ours on each."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ascl_sweep.checks import Check
from ascl_sweep.checks.clocks import Skew, of_clock, skew
from ascl_sweep.checks.dashboard import dashboard_here, of_dashboard
from ascl_sweep.checks.machine import Wants, look, of_machine
from ascl_sweep.checks.packages import PACKAGES, WAY_OUT, of_versions, versions
from ascl_sweep.checks.stores import leave_in, of_store, store_fault, take_away
from ascl_sweep.checks.sweeps import of_sweeps
from ascl_sweep.cluster import connected
from ascl_sweep.labels import one_line
from ascl_sweep.room import Cluster, NoResources

if TYPE_CHECKING:
    from ascl_sweep.spec import SweepSpec

ANSWER_SECONDS = 60.0  # for a process to start on a node
LOOK_SECONDS = 600.0  # for it to load PyTorch and read a dataset's checksums
# A process that asks for no GPU is shown none: these let it see them all.
SEE_GPUS = {
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def check_cluster(
    address: str, specs: Sequence["SweepSpec"], wants: Wants, say: Callable[[str], None]
) -> Iterator[Check]:
    """Every node of a Ray cluster."""
    say(f"connecting to Ray at {address} …")
    try:
        with connected(address, dashboard=False) as cluster:
            yield from _check_nodes(cluster, specs, wants, say)
    except NoResources as error:  # a sentence with its own way out
        yield Check("Ray", str(error), False)
    except ImportError as error:
        yield Check("Ray", f"does not load here: {error}", False, WAY_OUT)
    except Exception as error:
        from ray.exceptions import RayError  # not above: `connected` must be the first to load Ray

        if not isinstance(error, RayError):
            raise
        yield Check("Ray", one_line(error), False, "see `ray status`")


def _check_nodes(
    cluster: Cluster, specs: Sequence["SweepSpec"], wants: Wants, say: Callable[[str], None]
) -> Iterator[Check]:
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    say(f"asking each node ({len(alive)}) …")
    names = _names(alive)
    heads = [n["NodeID"] for n in alive if "node:__internal_head__" in n["Resources"]]
    total = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    yield Check("Ray", f"answers; nodes: {len(alive)}")
    for unit in ("CPU", "GPU"):
        found = f"{free.get(unit, 0):g} of {total.get(unit, 0):g} are free now"
        yield Check(f"free {unit}s", found)

    probes = Probes(names)
    answered, silent = probes.ask(time.time, of=probes.names, seconds=ANSWER_SECONDS)
    yield from silent
    skews, silent = probes.compare_clocks(answered)
    yield from silent
    head = next((names[i] for i in heads if names[i] in skews), None)
    if head is None:
        yield Check("head", "it is not among the nodes that answer", False, "see `ray status`")
    else:
        modes, silent = probes.ask(dashboard_here, of=[head], seconds=ANSWER_SECONDS)
        yield from silent or of_dashboard(modes[head])

    idle = {
        names[node.node_id] for node in cluster.nodes if not node.cpus and node.node_id in names
    }
    less = replace(wants, datasets=())  # of those, as a head is: no run starts there
    looks = {name: partial(look, less if name in idle else wants) for name in skews}
    facts, silent = probes.ask_each(looks, seconds=LOOK_SECONDS)
    yield from silent
    installed = {name: found.versions for name, found in facts.items()}
    if installed:
        faults = {name: found.faults for name, found in facts.items()}
        yield from of_versions(installed | {"here": _like_ours(installed.values())}, faults)
    gpus = {names[node.node_id]: node.gpus for node in cluster.nodes if node.node_id in names}
    for name, found in facts.items():
        yield from of_machine(found, gpus.get(name, 0), f"{name} ")
        if head is not None:
            yield of_clock(skews[name], skews[head], f"{name} ")
    if head is not None:  # `status`, `stop` and `resume` go by ours
        yield of_clock(Skew(0, 0), skews[head], "here ")
    if wants.store is not None and head is not None:
        yield from _check_store(probes, wants.store, head, facts)
    yield from of_sweeps(specs, cluster)


def _like_ours(others: Collection[Mapping[str, str]]) -> dict[str, str | None]:
    """What is installed here, to be held against nodes.

    Ours must be equal only where we would not be understood there; what else differs is left out.
    """
    ours: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package, version in versions().items():
        needed = package in ("Python", "ray", "ascl-sweep")
        if needed or version in {other.get(package) for other in others}:
            ours[package] = version
    return ours


def _check_store(probes: "Probes", store: str, head: str, nodes: Iterable[str]) -> Iterator[Check]:
    """Each node must be able to write to the store, and see there what the head writes."""
    ask = partial(probes.ask, seconds=ANSWER_SECONDS)
    faults, silent = ask(store_fault, store, of=[head])
    if silent or faults[head]:
        yield from silent or [of_store(store, faults[head], f"{head} ")]
        return
    left, silent = ask(leave_in, store, of=[head])
    yield from silent
    for name in left.values():
        faults, silent = ask(store_fault, store, name, of=nodes)
        ask(take_away, store, name, of=[head])
        yield from silent
        for node, fault in faults.items():
            yield of_store(store, fault, f"{node} ")


def _names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What to call each node: its host's name, and if several share it, with a part of its id."""
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return {
        node["NodeID"]: host if hosts.count(host) == 1 else f"{host}/{node['NodeID'][:6]}"
        for node, host in zip(nodes, hosts, strict=True)
    }


class Probe:
    """A process of ours on a node."""

    def do(self, function: Callable[[], Any]) -> Any:
        return function()


class Probes:
    """One on each node."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """Start them; `names` are those of the nodes, by their ids."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        probe = ray.remote(Probe)
        self.names = list(names.values())
        self._probes: dict[str, Any] = {
            name: probe.options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                runtime_env={"env_vars": SEE_GPUS},
            ).remote()
            for node_id, name in names.items()
        }

    def ask(
        self, function: Callable[..., Any], *words: object, of: Iterable[str], seconds: float
    ) -> tuple[dict[str, Any], list[Check]]:
        """What nodes answer, and what to say of those that do not."""
        return self.ask_each({name: partial(function, *words) for name in of}, seconds=seconds)

    def ask_each(
        self, questions: Mapping[str, Callable[[], Any]], *, seconds: float
    ) -> tuple[dict[str, Any], list[Check]]:
        """The same with a question for each."""
        import ray
        from ray.exceptions import RayError

        calls = {name: self._probes[name].do.remote(ask) for name, ask in questions.items()}
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=seconds)
        answers: dict[str, Any] = {}
        silent = []
        for name, call in calls.items():
            try:
                answers[name] = ray.get(call, timeout=0.1)
            except RayError as error:  # also that it took too long
                silent.append(_silent(name, error, seconds))
        return answers, silent

    def compare_clocks(self, of: Iterable[str]) -> tuple[dict[str, Skew], list[Check]]:
        """How far nodes' clocks are from ours, and what to say of those that do not answer."""
        import ray
        from ray.exceptions import RayError

        def time_on(name: str) -> float:
            call = self._probes[name].do.remote(time.time)
            return float(ray.get(call, timeout=ANSWER_SECONDS))

        skews = {}
        silent = []
        for name in of:
            try:
                skews[name] = skew(partial(time_on, name))
            except RayError as error:
                silent.append(_silent(name, error, ANSWER_SECONDS))
        return skews, silent


def _silent(name: str, error: Exception, seconds: float) -> Check:
    """What to say of a node that does not answer."""
    from ray.exceptions import GetTimeoutError

    late = isinstance(error, GetTimeoutError)
    why = f"no answer in {seconds:g} s" if late else one_line(error, last=True)
    way_out = "see `ray status`, and that it has the same ascl-sweep as the head"
    return Check(f"{name} node", why, False, way_out)
