"""The objects for KubeRay, field by field."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clusters.files import ACCOUNT, KUBERAY, needed, text, tree
from tests.clusters.kuberay_fields import FIELDS, REQUIRED

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123, as Kubernetes wants it
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[KMGT]i?)?")


def issues(value: Any, kind: Any, path: str) -> Iterator[str]:
    if isinstance(kind, str):
        if not isinstance(value, dict):
            yield f"{path}: must be a {kind}"
            return
        for key in REQUIRED.get(kind, set()) - set(value):
            yield f"{path}: must have {key}"
        for key, each in value.items():
            if key not in FIELDS[kind]:
                yield f"{path}.{key}: {kind} has no such field"
            else:
                yield from issues(each, FIELDS[kind][key], f"{path}.{key}")
    elif isinstance(kind, list):
        if not isinstance(value, list):
            yield f"{path}: must be a list"
            return
        for n, each in enumerate(value):
            yield from issues(each, kind[0], f"{path}[{n}]")
    elif isinstance(kind, dict):
        if not isinstance(value, dict):
            yield f"{path}: must be a mapping"
            return
        for key, each in value.items():
            yield from issues(each, kind[str], f"{path}.{key}")
    elif isinstance(kind, set):
        if value not in kind:
            yield f"{path}: must be one of {sorted(kind)}"
    elif type(value) is not kind:
        yield f"{path}: must be {kind.__name__}"


def find_issues(objects: list[dict[str, Any]]) -> list[str]:
    return [issue for each in objects for issue in issues(each, each["kind"], each["kind"])]


def objects() -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in tree(KUBERAY)}


def test_every_field_is_documented_and_of_its_type() -> None:
    assert find_issues(tree(KUBERAY)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("authOptions:", "authOption:"),
        ("secretName:", "secret:"),
        ("workerGroupSpecs:", "workerGroups:"),
        ("maxReplicas: 8", "maxReplicas: '8'"),
        ("      minReplicas: 0\n", ""),
        ('num-cpus: "0"', "num-cpus: 0"),
        ("HTTPMode", "HttpMode"),
        ("submissionMode", "submitMode"),
        ("clusterSelector: {", "selector: {"),
        ('rayVersion: "2.60.0"', "rayVersion: 2.60"),
        ("idleTimeoutSeconds", "idleTimeoutMinutes"),
        ("runAsNonRoot: true\n", "runAsNonRoot: 'yes'\n"),
        ('nvidia.com/gpu: "1"}\n', "nvidia.com/gpu: 1}\n"),
    ],
)
def test_a_slip_is_found(old: str, new: str) -> None:
    assert old in text(KUBERAY)
    assert find_issues(tree(KUBERAY, text(KUBERAY).replace(old, new)))


def test_what_belongs_together_has_one_name() -> None:
    named = objects()
    cluster = named["RayCluster"]["metadata"]["name"]
    assert named["RayJob"]["spec"]["clusterSelector"] == {"ray.io/cluster": cluster}
    assert len({each["metadata"]["namespace"] for each in tree(KUBERAY)}) == 1
    accounts = {e["metadata"]["name"] for e in tree(KUBERAY) if e["kind"] == "ServiceAccount"}
    spec = named["RayCluster"]["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert {group["template"]["spec"]["serviceAccountName"] for group in groups} == accounts
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


def test_kubernetes_takes_every_name_and_quantity() -> None:
    spec = objects()["RayCluster"]["spec"]
    names = [each["metadata"]["name"] for each in tree(KUBERAY)]
    names += [group["groupName"] for group in spec["workerGroupSpecs"]]  # a part of the pods' names
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        inside = [c["name"] for c in (*pod["containers"], *pod.get("initContainers", []))]
        assert len(set(inside)) == len(inside)
        names += inside
        for container in pod["containers"]:
            for amounts in container["resources"].values():
                assert all(QUANTITY.fullmatch(amount) for amount in amounts.values())
    assert all(NAME.fullmatch(name) for name in names), names


def test_the_head_runs_no_runs_and_workers_have_gpus() -> None:
    spec = objects()["RayCluster"]["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["enableInTreeAutoscaling"] is True
    [worker] = spec["workerGroupSpecs"]
    assert worker["minReplicas"] == worker["replicas"] == 0
    [container] = worker["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_every_worker_fetches_what_the_job_s_sweep_needs_where_its_runs_look_for_it() -> None:
    [worker] = objects()["RayCluster"]["spec"]["workerGroupSpecs"]
    pod = worker["template"]["spec"]
    fetches, [runs] = pod["initContainers"], pod["containers"]
    assert [fetch["command"] for fetch in fetches] == [
        ["ascl-sweep", "fetch", dataset, "--root", "/data"] for dataset in needed(KUBERAY)
    ]
    for container in (*fetches, runs):
        assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert "--set data.root=/data" in objects()["RayJob"]["spec"]["entrypoint"]


def test_pods_have_a_role_that_is_not_for_machines_only_and_it_is_said_what_it_needs() -> None:
    accounts = [each for each in tree(KUBERAY) if each["kind"] == "ServiceAccount"]
    arns = [e["metadata"]["annotations"]["eks.amazonaws.com/role-arn"] for e in accounts]
    stack = tree(ACCOUNT)["Resources"]
    of_ec2 = {
        each["Properties"]["RoleName"] for each in stack.values() if each["Type"].endswith(":Role")
    }
    assert "ascl-sweep-worker" in of_ec2 and len(set(arns)) == 2
    assert not of_ec2 & {arn.rpartition("/")[2] for arn in arns}
    said = re.sub(r"\s+#?\s*", " ", text(KUBERAY).partition("kind: NetworkPolicy")[0])
    [space] = {each["metadata"]["namespace"] for each in accounts}
    head, worker = (each["metadata"]["name"] for each in accounts)
    assert f"OIDC provider for one service account of namespace {space}" in said
    assert f"{head} needs BucketRights, {worker} needs WorkRights" in said
    assert {"BucketRights", "WorkRights"} <= set(stack)
    assert "--role=roles/iam.workloadIdentityUser" in said
    assert f"serviceAccount:YOUR-PROJECT.svc.id.goog[{space}/{worker}]" in said


def test_the_job_writes_where_the_cluster_says() -> None:
    named = objects()
    store = named["RayCluster"]["metadata"]["annotations"]["ascl-sweep/results"]
    words = named["RayJob"]["spec"]["entrypoint"].split()
    assert words[:2] == ["ascl-sweep", "run"]
    assert words[words.index("--store") + 1] == store
    assert words[words.index("--address") + 1] == "auto"
    assert "--yes" in words, "a job cannot answer a prompt"


def test_ray_is_one_version_in_image_and_cluster() -> None:
    from importlib.metadata import version

    spec = objects()["RayCluster"]["spec"]
    assert spec["rayVersion"] == version("ray")
    assert f"FROM rayproject/ray:{version('ray')}-py311\n" in text("clusters/Dockerfile")
