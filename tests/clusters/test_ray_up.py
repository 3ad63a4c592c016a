"""The files for `ray up`, held against what reads them: Ray's validation, a shell, and the models
that Amazon and Google publish of what their machines can be given."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from tests.clusters.files import (
    ACCOUNT,
    AWS,
    DOCKERFILE,
    GCP,
    ON_PREM,
    RAY_UP,
    ROOT,
    needed,
    text,
    tree,
)
from tests.sweeps import wait_until


def prepared(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """As `ray up` sees it: validated, with Ray's defaults."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    complete = prepare_config(deepcopy(cluster))
    validate_config(complete)
    return complete


# ---------------------------------------------------------------- Ray


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_finds_no_fault(name: str) -> None:
    assert prepared(tree(name))["provider"]["results"]


@pytest.mark.parametrize("name", RAY_UP)
def test_submit_finds_a_store_that_every_machine_reaches(name: str) -> None:
    from ascl_sweep.executors.ray.submission import ClusterFile, check_store

    assert check_store(ClusterFile.read(ROOT / name).results) == tree(name)["provider"]["results"]


@pytest.mark.parametrize(
    "issue",
    [
        {"max_worker": 4},
        {"max_workers": "8"},
        {"head_node_type": "haed"},
        {"available_node_types": {"head": {"resources": {"CPU": 0.5}, "node_config": {}}}},
    ],
)
def test_ray_would_have_found_one(issue: dict[str, Any]) -> None:
    from jsonschema import ValidationError

    with pytest.raises((ValidationError, ValueError)):
        prepared(tree(AWS) | issue)


@pytest.mark.parametrize("name", RAY_UP)
def test_nothing_of_ray_s_own_setup_is_left_to_run(name: str) -> None:
    """Its defaults install another Ray, and serve the dashboard to everyone."""
    complete, cluster = prepared(tree(name)), tree(name)
    for key in ("head_setup_commands", "worker_setup_commands"):
        assert complete[key] == cluster["setup_commands"]
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert complete[key] == cluster[key]
    assert not complete["initialization_commands"]


@pytest.mark.parametrize("name", [AWS, GCP])
def test_the_head_runs_no_runs_and_is_never_taken_away(name: str) -> None:
    cluster = tree(name)
    head = cluster["available_node_types"][cluster["head_node_type"]]
    assert head["resources"] == {"CPU": 0}
    assert not {"InstanceMarketOptions", "scheduling"} & set(head["node_config"])


def test_the_head_of_our_own_machines_runs_no_runs() -> None:
    assert " --num-cpus=0 --num-gpus=0 " in tree(ON_PREM)["head_start_ray_commands"][-1]


@pytest.mark.parametrize("name", [AWS, GCP])
def test_workers_have_gpus_on_spot_and_none_is_kept_without_need(name: str) -> None:
    cluster = tree(name)
    worker = cluster["available_node_types"]["gpu_worker"]
    assert worker["resources"]["GPU"] >= 1
    assert worker["min_workers"] == 0
    machine = worker["node_config"]
    spot = machine.get("InstanceMarketOptions") or machine["scheduling"]
    assert "spot" in (str(spot.get("MarketType", spot.get("provisioningModel"))).lower())


@pytest.mark.parametrize("name", RAY_UP)
def test_plan_finds_the_price_of_every_worker_and_of_no_head(name: str) -> None:
    """`plan` takes the cheapest price per GPU: the head's would be taken for one."""
    complete = prepared(tree(name))
    types = set(complete["available_node_types"])
    if name != ON_PREM:
        types.remove(complete["head_node_type"])
    prices = complete["provider"]["price_per_hour"]
    assert set(prices) == types
    assert all(isinstance(price, float) and price > 0 for price in prices.values())


@pytest.mark.parametrize("name", [AWS, GCP])
def test_what_it_can_cost_an_hour_is_said_where_it_is_set(name: str) -> None:
    cluster = tree(name)
    [line] = [line for line in text(name).splitlines() if line.startswith("max_workers:")]
    [price] = cluster["provider"]["price_per_hour"].values()
    assert f"{cluster['max_workers']} × {price}" in line


# ---------------------------------------------------------------- what is installed


@pytest.mark.parametrize("name", [*RAY_UP, DOCKERFILE])
def test_every_machine_gets_the_versions_that_were_tested(name: str) -> None:
    """The lock file of the commit, and nothing that is chosen when a node starts."""
    installed = re.findall(r"\bpip install (.*?)(?: &&|$)", text(name), flags=re.MULTILINE)
    assert [re.sub(r"--(quiet|no-cache-dir) |\S*/(?=ascl-sweep)", "", each) for each in installed][
        -2:
    ] == [
        "--require-hashes -r ascl-sweep/requirements.lock",
        "--no-deps --no-build-isolation -e ascl-sweep",
    ]


@pytest.mark.parametrize("name", RAY_UP)
def test_every_machine_fetches_what_the_named_sweep_needs_and_has_the_project(name: str) -> None:
    from ascl_sweep.executors.ray.submission import ClusterFile

    cluster = tree(name)
    commands = cluster["setup_commands"]
    data = ClusterFile.read(ROOT / name).data
    fetched = [
        match.groups()
        for command in commands
        if (match := re.search(r"~/venv/bin/ascl-sweep fetch (\S+) --root (\S+)$", command))
    ]
    assert fetched == [(dataset, data) for dataset in needed(name)]
    assert "~/ascl-sweep.bundle" in cluster["file_mounts"]
    assert sum("git clone --quiet ~/ascl-sweep.bundle" in command for command in commands) == 1


@pytest.mark.parametrize("name", RAY_UP)
def test_every_machine_can_write_where_the_datasets_go(name: str) -> None:
    """Either it is in the user's home, or root has made the user its owner before."""
    [first, *_] = [c for c in tree(name)["setup_commands"] if " fetch " in c]
    data = tree(name)["provider"]["data"]
    assert data.startswith("~/") or first.startswith(f'sudo install -d -o "$USER" {data} && ')


def test_submit_takes_the_place_of_our_own_machines_datasets() -> None:
    from ascl_sweep.cli.submit import data_overrides
    from ascl_sweep.doctor.checks import datasets_of
    from ascl_sweep.spec.sweep import load_sweep

    sweep, data = ROOT / "search_spaces/tau_prime.yaml", tree(ON_PREM)["provider"]["data"]
    changes = data_overrides([load_sweep(sweep, [], "full")], data)
    spec = load_sweep(sweep, changes, "full")
    assert {root for _, root in datasets_of(spec)} == {data}
    assert data_overrides([spec], None) == [], "the changed sweep is at home on the machines"


def test_what_our_own_machines_need_and_must_be_waited_for_is_said() -> None:
    header = text(ON_PREM).partition("cluster_name:")[0]
    assert "python3 -m venv ~/venv" in tree(ON_PREM)["setup_commands"]
    assert "python3-venv" in header
    up, wait, submit = (
        header.index(command)
        for command in (
            f"ray up {ON_PREM}",
            f"ray exec {ON_PREM} 'ray status'",
            "ascl-sweep submit ",
        )
    )
    assert up < wait < submit


@pytest.mark.parametrize("name", [AWS, GCP])
@pytest.mark.parametrize("held", [0, 2, 99])
def test_a_machine_that_just_booted_waits_for_apt_s_locks(
    name: str, held: int, tmp_path: Path
) -> None:
    """`update` fails at once on the lists' lock, whatever its options say (seen with apt 2.6.1)."""
    [command] = [c for c in tree(name)["setup_commands"] if "apt-get" in c]
    programs = {
        "python3": "test -e $HOME/installed",
        "sleep": "true",
        "sudo": f"""
            echo "$*" >> $HOME/said
            case "$*" in
              *" update") test $(wc -l < $HOME/said) -gt {held} ;;
              *" install -y python3-venv") touch $HOME/installed ;;
            esac""",
    }
    for program, lines in programs.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / program).chmod(0o755)
    home = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    for _ in range(2):  # the second time, there is nothing to install
        subprocess.run(["bash", "-c", command], env=home, check=True)
    said = (tmp_path / "said").read_text().splitlines()
    assert all(line.startswith("apt-get -o DPkg::Lock::Timeout=300 ") for line in said)
    assert len(said) == min(held + 1, 30) + 1


@pytest.mark.parametrize("name", RAY_UP)
def test_every_command_is_bash(name: str) -> None:
    cluster = tree(name)
    for key in ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands"):
        for command in cluster[key]:
            subprocess.run(["bash", "-n", "-c", command], check=True)


@pytest.mark.parametrize("name", RAY_UP)
def test_a_shell_on_a_machine_knows_the_project_and_the_token_once(
    name: str, tmp_path: Path
) -> None:
    [command] = [c for c in tree(name)["setup_commands"] if ".bashrc" in c]
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    (tmp_path / ".bashrc").write_text("# Ubuntu's\n")
    for _ in range(2):
        subprocess.run(["bash", "-c", command], env=home, check=True)
    assert (tmp_path / ".bashrc").read_text().count("RAY_AUTH_MODE=token") == 1
    said = subprocess.run(
        ["bash", "-c", "source ~/.bashrc; echo $RAY_AUTH_MODE $PATH"],
        env=home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"token {tmp_path}/venv/bin:/usr/bin:/bin\n"


@pytest.mark.parametrize(("name", "cloud"), [(AWS, "aws"), (GCP, "gcp")])
def test_a_worker_s_start_returns_while_a_process_watches_for_the_end_of_the_node(
    name: str, cloud: str, tmp_path: Path
) -> None:
    command = tree(name)["worker_start_ray_commands"][-1]
    for program in ("ray", "python"):
        lines = ["#!/bin/sh", f'echo {program} "$@" $RAY_AUTH_MODE > $HOME/{program}.said']
        lines += ["echo $$; exec sleep 60"] if program == "python" else []
        (tmp_path / program).write_text("\n".join(lines))
        (tmp_path / program).chmod(0o755)
    home = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", "RAY_HEAD_IP": "192.0.2.1"}
    done = subprocess.run(["bash", "-c", command], env=home, capture_output=True, timeout=30)
    assert done.returncode == 0 and done.stdout == b""
    log = tmp_path / "preemption.log"
    wait_until(lambda: log.read_text().endswith("\n"))
    os.kill(int(log.read_text()), signal.SIGKILL)
    said = (tmp_path / "python.said").read_text()
    assert said == f"python -m ascl_sweep.executors.ray.preemption {cloud} token\n"
    assert (tmp_path / "ray.said").read_text().startswith("ray start --address=192.0.2.1:6379")


def test_a_bundle_brings_the_commit_and_nothing_that_is_not_committed(tmp_path: Path) -> None:
    def git(*words: str | Path) -> str:
        done = subprocess.run(["git", *map(str, words)], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    here = tmp_path / "clone"
    git("init", "--quiet", here)
    who = ("-C", here, "-c", "user.name=n", "-c", "user.email=e")
    git(*who, "commit", "--quiet", "--allow-empty", "--message", "first")
    (here / "draft.py").write_text("")
    git("-C", here, "bundle", "create", tmp_path / ".ascl-sweep.bundle", "HEAD")
    [command] = [c for c in tree(AWS)["setup_commands"] if "git clone" in c]
    (tmp_path / ".ascl-sweep.bundle").rename(tmp_path / "ascl-sweep.bundle")
    for _ in range(2):
        home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        subprocess.run(["bash", "-c", command], env=home, check=True, capture_output=True)
    assert git("-C", tmp_path / "ascl-sweep", "rev-parse", "HEAD") == git(
        "-C", here, "rev-parse", "HEAD"
    )
    assert not (tmp_path / "ascl-sweep" / "draft.py").exists()


# ---------------------------------------------------------------- Amazon's model


@cache
def run_instances() -> Any:
    import botocore.session

    model = botocore.session.get_session().get_service_model("ec2")
    return model.operation_model("RunInstances").input_shape


def faults_on_aws(cluster: Mapping[str, Any]) -> Iterator[str]:
    from botocore.validate import ParamValidator

    types = set(run_instances().members["InstanceType"].enum)
    for name, node in cluster["available_node_types"].items():
        request = dict(node["node_config"], MinCount=1, MaxCount=1)
        report = ParamValidator().validate(request, run_instances()).generate_report()
        yield from (f"{name}: {line}" for line in report.splitlines())
        market = run_instances().members["InstanceMarketOptions"].members["MarketType"].enum
        if request.get("InstanceMarketOptions", {}).get("MarketType", "spot") not in market:
            yield f"{name}: no such market"
        if request["InstanceType"] not in types:
            yield f"{name}: no such instance type"


def test_amazon_knows_every_key_and_every_machine() -> None:
    assert list(faults_on_aws(tree(AWS))) == []
    offered = re.findall(r"\b(g\d\w*\.\d*xlarge)\b", text(AWS))
    assert len(offered) > 3
    assert set(offered) <= set(run_instances().members["InstanceType"].enum)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("g4dn.xlarge", "g4dn.xlarg"),
        ("MarketType: spot", "MarketType: sport"),
        ("HttpTokens", "HttpToken"),
        ("VolumeSize: 120", "VolumeSize: 120 GB"),
        ("IamInstanceProfile: {Name", "IamInstanceProfile: {Nam"),
    ],
)
def test_amazon_would_have_found_a_slip(old: str, new: str) -> None:
    assert old in text(AWS)
    assert list(faults_on_aws(yaml.safe_load(text(AWS).replace(old, new))))


def test_cluster_and_account_name_the_same_things() -> None:
    cluster, account = tree(AWS), tree(ACCOUNT)["Resources"]
    profiles = {
        node["node_config"]["IamInstanceProfile"]["Name"]
        for node in cluster["available_node_types"].values()
    }
    assert profiles == {
        each["Properties"]["InstanceProfileName"]
        for each in account.values()
        if each["Type"] == "AWS::IAM::InstanceProfile"
    }
    conditions = json.dumps(account["WorkerControl"])
    assert conditions.count(f'ray-cluster-name": "{cluster["cluster_name"]}"') == 2


# ---------------------------------------------------------------- Google's model


@cache
def of_google() -> dict[str, Any]:
    """Schemas of Compute Engine v1, as Google's client brings them."""
    import googleapiclient

    folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    schemas: dict[str, Any] = json.loads((folder / "compute.v1.json").read_text())["schemas"]
    return schemas


KINDS = {"string": str, "boolean": bool, "integer": int, "number": float}


def faults_on_google(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = of_google()[schema["$ref"]]
    if schema["type"] == "object":
        if not isinstance(value, dict):
            yield f"{path}: must be a mapping"
            return
        known = schema.get("properties", {})
        for key, each in value.items():
            inner = known.get(key) or schema.get("additionalProperties")
            if not inner:
                yield f"{path}.{key}: no such key"
            else:
                yield from faults_on_google(each, inner, f"{path}.{key}")
    elif schema["type"] == "array":
        if not isinstance(value, list):
            yield f"{path}: must be a list"
            return
        for n, each in enumerate(value):
            yield from faults_on_google(each, schema["items"], f"{path}[{n}]")
    elif schema.get("format") == "int64":
        if type(value) not in (int, str):
            yield f"{path}: must be a whole number"
    elif type(value) is not KINDS[schema["type"]]:
        yield f"{path}: must be {schema['type']}"
    elif value not in schema.get("enum", [value]):
        yield f"{path}: must be one of {schema['enum']}"


def faults_of_gcp(cluster: Mapping[str, Any]) -> list[str]:
    return [
        issue
        for name, node in cluster["available_node_types"].items()
        for issue in faults_on_google(node["node_config"], {"$ref": "Instance"}, name)
    ]


def test_google_knows_every_key_of_a_machine() -> None:
    assert faults_of_gcp(tree(GCP)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("provisioningModel: SPOT", "provisioningModel: SPOTTY"),
        ("automaticRestart: false", "automaticRestart: never"),
        ("subnetwork:", "subnet:"),
        ("scheduling: #", "schedule: #"),
        ("tags: &tags {items: [ascl-sweep]}", "tags: &tags [ascl-sweep]"),
    ],
)
def test_google_would_have_found_a_slip(old: str, new: str) -> None:
    assert old in text(GCP)
    assert faults_of_gcp(yaml.safe_load(text(GCP).replace(old, new)))


def test_on_google_disks_are_of_the_machines_zone_and_of_a_type_they_take() -> None:
    """Machines of the series G2 have no pd-standard, which is Google's default."""
    cluster = tree(GCP)
    zone = cluster["provider"]["availability_zone"]
    assert zone.startswith(f"{cluster['provider']['region']}-")
    for node in cluster["available_node_types"].values():
        for disk in node["node_config"]["disks"]:
            kind = disk["initializeParams"]["diskType"]
            assert kind == f"zones/{zone}/diskTypes/pd-balanced"


def test_on_google_no_machine_has_ray_s_rights_and_no_key_opens_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.autoscaler._private.gcp import config

    crm, iam, compute = MagicMock(), MagicMock(), MagicMock()
    crm.projects().get().execute.return_value = {"lifecycleState": "ACTIVE", "projectId": "p"}
    crm.projects().getIamPolicy().execute.return_value = {"bindings": []}
    ray_s = {"email": "ray-autoscaler-sa-v1@p.iam.gserviceaccount.com", "projectId": "p"}
    iam.projects().serviceAccounts().get().execute.return_value = ray_s
    clients = (crm, iam, compute, None)
    monkeypatch.setattr(config, "construct_clients_from_provider_config", lambda _: clients)
    cluster = config.bootstrap_gcp(prepared(tree(GCP)))

    assert not compute.mock_calls, "Ray must not use the project's keys or its default network"
    # As ray.autoscaler._private.commands puts a head together: ours over its own.
    assert cluster["head_node"]["serviceAccounts"][0]["email"] == ray_s["email"]
    head = cluster["head_node"] | cluster["available_node_types"]["head"]["node_config"]
    worker = cluster["available_node_types"]["gpu_worker"]["node_config"]
    for role, machine in (("head", head), ("worker", worker)):
        [account] = machine["serviceAccounts"]
        assert account["email"].startswith(f"ascl-sweep-{role}@")
