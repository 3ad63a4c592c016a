"""The driver on the head reads the autoscaler's limits, which Ray 2.60 does not report."""

import json
from pathlib import Path

import pytest

from ascl_sweep.errors import ResourceError
from ascl_sweep.executors.ray.cluster import MAY_COME, read_autoscaler_limits
from ascl_sweep.executors.ray.compat import BOOTSTRAP
from ascl_sweep.runtime.cluster import (
    AutoscalerLimits,
    Cluster,
    Node,
    NodeType,
    parse_autoscaler_limits,
)
from ascl_sweep.spec.sweep import load_sweep
from tests.clusters.files import AWS, GCP, KUBERAY, ON_PREM, RAY_UP, ROOT, tree
from tests.clusters.test_ray_up import prepared

SWEEP = ROOT / "search_spaces" / "tau_prime.yaml"
HEAD = Node("head", cpus=0, gpus=0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(MAY_COME, raising=False)
    return tmp_path


def write(home: Path, name: str) -> None:
    """What `ray up` puts into the head's home, as far as it does not ask the cloud for it."""
    (home / BOOTSTRAP).write_text(json.dumps(prepared(tree(name))))


@pytest.mark.parametrize("name", [AWS, GCP])
def test_the_sweep_that_a_file_names_is_let_in_while_only_the_head_is_there(
    name: str, home: Path
) -> None:
    write(home, name)
    resources = load_sweep(SWEEP, [], "full").resources
    cluster = Cluster((HEAD,), read_autoscaler_limits())
    cluster.check(resources)
    assert cluster.count_slots(resources) >= tree(name)["max_workers"] == 8


def test_on_kubernetes_the_head_is_told_what_its_workers_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [cluster] = [each["spec"] for each in tree(KUBERAY) if each["kind"] == "RayCluster"]
    [head] = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    [told] = [each["value"] for each in head["env"] if each["name"] == MAY_COME]
    monkeypatch.setenv(MAY_COME, told)
    [worker] = cluster["workerGroupSpecs"]
    [container] = worker["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    cpus, gpus = float(limits["cpu"]), float(limits["nvidia.com/gpu"])
    most = worker["maxReplicas"]
    assert read_autoscaler_limits() == AutoscalerLimits((NodeType(most, cpus, gpus),), most)


def test_our_own_machines_count_once_they_are_there(home: Path) -> None:
    write(home, ON_PREM)
    assert [(kind.cpus, kind.gpus) for kind in read_autoscaler_limits().types] == [(0, 0)]


def test_without_an_autoscaler_nothing_may_come() -> None:
    assert read_autoscaler_limits() == AutoscalerLimits()


@pytest.mark.parametrize("text", ["{", "- 1", "max_workers: 8"])
def test_a_file_that_says_nothing_of_it_is_refused_by_its_name(home: Path, text: str) -> None:
    (home / BOOTSTRAP).write_text(text)
    with pytest.raises(ResourceError, match=BOOTSTRAP):
        read_autoscaler_limits()


@pytest.mark.parametrize("name", RAY_UP)
def test_the_head_itself_is_not_among_what_may_come(name: str) -> None:
    complete = prepared(tree(name))
    kinds = dict(
        zip(complete["available_node_types"], parse_autoscaler_limits(complete).types, strict=True)
    )
    if name != ON_PREM:
        assert kinds[complete["head_node_type"]].count == 0
