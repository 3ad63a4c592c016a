"""Call functions on the nodes of the Ray cluster that this process is connected to."""

import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from ascl_sweep.executors.ray import compat
from ascl_sweep.text import one_line

if TYPE_CHECKING:
    from ray import ObjectRef

T = TypeVar("T")


@dataclass(frozen=True)
class NodeInfo:
    """Living node of a cluster."""

    node_id: str
    name: str
    """Host name; followed by a part of the node id if several nodes share the host."""
    is_head: bool


def list_nodes() -> list[NodeInfo]:
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return [
        NodeInfo(
            node["NodeID"],
            host if hosts.count(host) == 1 else f"{host}/{node['NodeID'][:6]}",
            compat.HEAD_RESOURCE in node["Resources"],
        )
        for node, host in zip(nodes, hosts, strict=True)
    ]


def ask_nodes(
    nodes: Sequence[NodeInfo], questions: Mapping[str, Callable[[], T]], *, seconds: float
) -> tuple[dict[str, T], dict[str, str]]:
    """Call a function on each node.

    Args:
        nodes: The nodes.
        questions: The function to call, by node name.
        seconds: Time limit.

    Returns:
        The answers, and the errors of nodes without an answer, by node name.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(_call)
    calls: dict[str, ObjectRef[object]] = {
        node.name: task.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            runtime_env={"env_vars": compat.SEE_GPUS},
        ).remote(questions[node.name])
        for node in nodes
    }
    ray.wait(list(calls.values()), num_returns=len(calls), timeout=seconds)
    answers: dict[str, T] = {}
    errors: dict[str, str] = {}
    for name, call in calls.items():
        try:
            answers[name] = cast(T, ray.get(call, timeout=0.1))
        except GetTimeoutError:
            errors[name] = f"no answer within {seconds:g} s"
        except RayError as error:
            errors[name] = one_line(error, last=True)
    return answers, errors


def _call(function: Callable[[], object]) -> object:
    return function()


def dashboard_url() -> str | None:
    """Return the address of the head's dashboard; None if connected through ray://.

    Only for drivers: in a worker, Ray 2.60 always returns the default port.
    """
    import ray

    if compat.is_ray_client():
        return None
    return ray.init(ignore_reinit_error=True).dashboard_url  # already connected


def dashboard_authentication(url: str | None) -> str | None:
    """Return a dashboard's authentication mode (token, disabled); None if it does not answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{url}{compat.AUTHENTICATION_MODE}", timeout=10) as answer:
            return str(json.load(answer)["authentication_mode"])
    except (OSError, ValueError, KeyError):
        return None
