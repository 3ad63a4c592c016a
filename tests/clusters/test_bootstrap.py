"""What `ray up` makes: on an Amazon inside this process (moto), and of Ray on this machine."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ascl_sweep.executors.ray.address import find_free_port
from tests.clusters.files import ACCOUNT, AWS, RAY_UP, ROOT, text, tree
from tests.clusters.safety import listed
from tests.clusters.test_ray_up import prepared

pytestmark = pytest.mark.slow
MINE = "203.0.113.7/32"


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """An empty account; gives clients of its services."""
    import boto3
    from moto import mock_aws
    from ray.autoscaler._private.aws import config, utils

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    (tmp_path / ".ssh").mkdir()
    cached = (utils.resource_cache, utils.client_cache, config._get_subnets_or_die)
    for each in cached:
        each.cache_clear()
    with mock_aws():
        yield lambda service: boto3.client(service, region_name=tree(AWS)["provider"]["region"])
    for each in cached:
        each.cache_clear()


def account(amazon: Callable[[str], Any]) -> dict[str, str]:
    """Create the stack and return its outputs."""
    stacks = amazon("cloudformation")
    given = {"SshFrom": MINE, "Bucket": "my-ascl-results"}
    stacks.create_stack(
        StackName="ascl-sweep",
        TemplateBody=text(ACCOUNT),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
    )
    [stack] = stacks.describe_stacks(StackName="ascl-sweep")["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}


def attach_policies(amazon: Callable[[str], Any]) -> None:
    """Attach managed policies to the stack's roles: moto 5.2 ignores ManagedPolicyArns."""
    made = amazon("iam").list_policies(Scope="Local")["Policies"]
    for resource in tree(ACCOUNT)["Resources"].values():
        if resource["Type"] == "AWS::IAM::Role":
            role = resource["Properties"]
            for policy in role["ManagedPolicyArns"]:
                [arn] = (each["Arn"] for each in made if policy["Ref"] in each["PolicyName"])
                amazon("iam").attach_role_policy(RoleName=role["RoleName"], PolicyArn=arn)


def filled_in(group: str, image: str) -> dict[str, Any]:
    content = text(AWS).replace("sg-00000000000000000", group)
    # moto cannot look up the image by its name; that Amazon can is in RunInstances' documentation.
    content = re.sub(r"resolve:ssm:\S+", image, content)
    cluster: dict[str, Any] = prepared(tree(AWS, content))
    return cluster


def open_to(amazon: Callable[[str], Any]) -> set[tuple[str, int | None, str]]:
    """Open ports as (group name, port, range), without Amazon's default group."""
    return {
        (group["GroupName"], rule.get("FromPort"), wide["CidrIp"])
        for group in amazon("ec2").describe_security_groups()["SecurityGroups"]
        for rule in group["IpPermissions"]
        for wide in rule["IpRanges"]
        if group["GroupName"] != "default"
    }


def names_of_roles(amazon: Callable[[str], Any]) -> set[str]:
    return {role["RoleName"] for role in amazon("iam").list_roles()["Roles"]}


def image_of(amazon: Callable[[str], Any]) -> str:
    return str(amazon("ec2").describe_images()["Images"][0]["ImageId"])


def test_ray_adds_no_rule_and_no_rights_to_ours(amazon: Callable[[str], Any]) -> None:
    from ray.autoscaler._private.aws.config import bootstrap_aws

    told = account(amazon)
    before = amazon("ec2").describe_security_groups()["SecurityGroups"]
    cluster = bootstrap_aws(filled_in(told["SecurityGroup"], image_of(amazon)))

    assert told["Results"] == "s3://my-ascl-results/results"
    assert amazon("ec2").describe_security_groups()["SecurityGroups"] == before
    assert {(port, wide) for _, port, wide in open_to(amazon)} == {(22, MINE)}
    assert names_of_roles(amazon) == {"ascl-sweep-head", "ascl-sweep-worker"}
    for node in cluster["available_node_types"].values():
        assert node["node_config"]["SecurityGroupIds"] == [told["SecurityGroup"]]
    [key] = Path("~/.ssh").expanduser().iterdir()
    assert key.stat().st_mode & 0o777 == 0o600


def test_machines_start_as_the_file_says(amazon: Callable[[str], Any]) -> None:
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    told = account(amazon)
    cluster = bootstrap_aws(filled_in(told["SecurityGroup"], image_of(amazon)))
    provider = AWSNodeProvider(cluster["provider"], cluster["cluster_name"])
    started = {}
    for name, node in cluster["available_node_types"].items():
        tags = {"ray-node-type": "x", "ray-user-node-type": name, "ray-launch-config": "y"}
        [started[name]] = provider.create_node(node["node_config"], tags, 1).values()
    for name, machine in started.items():
        role = "head" if name == cluster["head_node_type"] else "worker"
        assert machine.iam_instance_profile["Arn"].endswith(f"instance-profile/ascl-sweep-{role}")
        assert [group["GroupId"] for group in machine.security_groups] == [told["SecurityGroup"]]
        assert machine.metadata_options["HttpTokens"] == "required"
        assert all(volume.encrypted for volume in machine.volumes.all())
        assert (machine.instance_lifecycle == "spot") == (role == "worker")
        assert {"Key": "ray-cluster-name", "Value": "ascl-sweep"} in machine.tags


def test_the_head_may_do_what_ray_does_there_and_no_more(
    amazon: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.client import BaseClient
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    told = account(amazon)
    cluster = bootstrap_aws(filled_in(told["SecurityGroup"], image_of(amazon)))
    asked = set()
    really = BaseClient._make_api_call

    def noted(client: BaseClient, operation: str, request: dict[str, Any]) -> Any:
        asked.add(f"{client.meta.service_model.service_name}:{operation}")
        return really(client, operation, request)

    monkeypatch.setattr(BaseClient, "_make_api_call", noted)
    bootstrap_aws(cluster)  # the head looks at the cluster once more
    cluster = AWSNodeProvider.fillout_available_node_types_resources(cluster)
    provider = AWSNodeProvider(cluster["provider"], cluster["cluster_name"])
    tags = {"ray-node-type": "worker", "ray-user-node-type": "gpu_worker"}
    for _ in range(2):
        provider.create_node(cluster["available_node_types"]["gpu_worker"]["node_config"], tags, 1)
    first, second = provider.non_terminated_nodes({"ray-node-type": "worker"})
    provider.set_node_tags(first, {"ray-node-status": "up-to-date"})
    assert provider.internal_ip(first) and provider.external_ip(second)
    provider.terminate_node(first)
    provider.terminate_nodes([second])
    assert {"ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances"} < asked
    statements = tree(ACCOUNT)["Resources"]["WorkerControl"]["Properties"]["PolicyDocument"]
    allowed = {action for each in statements["Statement"] for action in listed(each["Action"])}
    # What Amazon asks about on the way: whose rights a worker gets, and which image is meant.
    assert allowed == asked | {"iam:PassRole", "ssm:GetParameters"}


def test_a_worker_writes_the_folders_of_runs_and_no_table(amazon: Callable[[str], Any]) -> None:
    import boto3
    from botocore.exceptions import ClientError
    from moto.core import enable_iam_authentication

    account(amazon)
    attach_policies(amazon)
    bucket = tree(ACCOUNT)["Resources"]["Results"]["Properties"]
    amazon("s3").put_bucket_versioning(  # moto 5.2 ignores the template's
        Bucket="my-ascl-results", VersioningConfiguration=bucket["VersioningConfiguration"]
    )
    amazon("s3").put_object(Bucket="my-ascl-results", Key="results/runs/1.parquet", Body=b"good")

    def store_of(role: str) -> Any:
        arn = f"arn:aws:iam::123456789012:role/ascl-sweep-{role}"
        lent = amazon("sts").assume_role(RoleArn=arn, RoleSessionName="node")["Credentials"]
        return boto3.client(
            "s3",
            region_name="us-east-1",
            aws_access_key_id=lent["AccessKeyId"],
            aws_secret_access_key=lent["SecretAccessKey"],
            aws_session_token=lent["SessionToken"],
        )

    def allowed(store: Any, key: str) -> set[str]:
        """What a role may do with one object."""
        does = {
            "get": lambda: store.get_object(Bucket="my-ascl-results", Key=key),
            "put": lambda: store.put_object(Bucket="my-ascl-results", Key=key, Body=b"new"),
            "delete": lambda: store.delete_object(Bucket="my-ascl-results", Key=key),
            "list": lambda: store.list_objects_v2(Bucket="my-ascl-results", Prefix=key),
        }
        found = set()
        for name, call in does.items():
            try:
                call()
                found.add(name)
            except ClientError as error:
                if error.response["Error"]["Code"] == "NoSuchKey":
                    found.add(name)
                else:
                    assert error.response["Error"]["Code"] == "AccessDenied"
        return found

    head, worker = store_of("head"), store_of("worker")
    tables = ("runs/1.parquet", "epochs/1.parquet", "sweeps/1.parquet", ".lock", "stop")
    with enable_iam_authentication():
        for name in tables:
            assert allowed(worker, f"results/{name}") == {"list"}
        assert allowed(worker, "results/work/abc/checkpoint.pt") == {"get", "put", "delete", "list"}
        for name in (*tables, "work/abc/checkpoint.pt"):
            assert allowed(head, f"results/{name}") == {"get", "put", "delete", "list"}
        head.put_object(Bucket="my-ascl-results", Key="results/runs/1.parquet", Body=b"bad")
        head.delete_object(Bucket="my-ascl-results", Key="results/runs/1.parquet")
        with pytest.raises(ClientError, match="AccessDenied"):
            head.put_bucket_versioning(
                Bucket="my-ascl-results", VersioningConfiguration={"Status": "Suspended"}
            )
    owner = amazon("s3")
    kept = owner.list_object_versions(Bucket="my-ascl-results", Prefix="results/runs/")["Versions"]
    bodies = [
        owner.get_object(Bucket="my-ascl-results", Key=each["Key"], VersionId=each["VersionId"])[
            "Body"
        ].read()
        for each in kept
    ]
    assert b"good" in bodies, "a deleted table can be restored"


def test_a_worker_counts_as_many_cpus_and_gpus_as_its_machine_has(
    amazon: Callable[[str], Any],
) -> None:
    node = tree(AWS)["available_node_types"]["gpu_worker"]
    machine = node["node_config"]["InstanceType"]
    [found] = amazon("ec2").describe_instance_types(InstanceTypes=[machine])["InstanceTypes"]
    gpus = sum(gpu["Count"] for gpu in found["GpuInfo"]["Gpus"])
    assert node["resources"] == {"CPU": found["VCpuInfo"]["DefaultVCpus"], "GPU": gpus}


def test_left_as_it_is_the_file_starts_nothing(amazon: Callable[[str], Any]) -> None:
    import click
    from ray.autoscaler._private.aws.config import bootstrap_aws

    account(amazon)
    with pytest.raises((AssertionError, click.ClickException)):
        bootstrap_aws(prepared(tree(AWS)))
    assert {(port, wide) for _, port, wide in open_to(amazon)} == {(22, MINE)}
    assert names_of_roles(amazon) == {"ascl-sweep-head", "ascl-sweep-worker"}


def test_ray_left_to_itself_opens_ssh_to_the_world(amazon: Callable[[str], Any]) -> None:
    """Why the group must be ours: once this fails, cluster.yaml can be simpler."""
    from ray.autoscaler._private.aws.config import bootstrap_aws

    account(amazon)
    cluster = filled_in("sg-none", image_of(amazon))
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": MINE}]}
    cluster["provider"]["security_group"] = {"GroupName": "ray's", "IpPermissions": [rule]}
    for node in cluster["available_node_types"].values():
        del node["node_config"]["SecurityGroupIds"]
    bootstrap_aws(cluster)
    assert ("ray's", 22, "0.0.0.0/0") in open_to(amazon)


def test_amazon_s_own_linter_has_nothing_to_say_of_the_account() -> None:
    from cfnlint.api import lint_file

    assert [str(match) for match in lint_file(ROOT / ACCOUNT)] == []


# ---------------------------------------------------------------- a head on this machine


@contextmanager
def head(name: str, home: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a head as a file does, with other ports and another folder, and without `ray stop`."""
    _, chmod, start = tree(name)["head_start_ray_commands"]
    changed = {"--port=6379": f"--port={find_free_port()}", "--object-manager-port=8076": ""}
    for old, new in changed.items():
        assert old in start
        start = start.replace(old, new)
    start = re.sub(r"--autoscaling-config=\S+", "", start)
    start += f" --ray-client-server-port={find_free_port()} --dashboard-port={port}"
    start += f" --temp-dir={home}/ray --disable-usage-stats --block"
    env = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = f"{chmod}; {start.replace('ray start', 'exec ray start')}"
    process = subprocess.Popen(
        ["bash", "-c", command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)  # it lets its daemons end
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        end_all_of(home)


def end_all_of(home: Path) -> None:
    """Kill what was started for a head and outlived it."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{home}/" in (process / "cmdline").read_bytes().decode(errors="replace"):
                os.kill(int(process.name), signal.SIGKILL)


def answer(host: str, port: int, token: str | None) -> int | None:
    """HTTP status of the dashboard; None if nothing answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://{host}:{port}/api/version", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as said:
            return int(said.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return None


def own_address() -> str | None:
    """An address of this machine that others can reach; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        found = str(probe.getsockname()[0])
        return None if found.startswith("127.") else found


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: Ray puts sockets there."""
    folder = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(600)
def test_the_head_s_dashboard_answers_here_only_and_with_the_token_only(short: Path) -> None:
    (short / ".ray").mkdir(mode=0o755)
    (short / ".ray" / "auth_token").write_text("0123456789abcdef0123456789abcdef")
    (short / ".ray" / "auth_token").chmod(0o644)
    port = find_free_port()
    with head(AWS, short, port) as process:
        deadline = time.monotonic() + 300  # seconds on a machine of its own, minutes on a busy one
        while answer("127.0.0.1", port, None) is None and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.5)
        assert answer("127.0.0.1", port, None) == 401
        assert answer("127.0.0.1", port, "f" * 32) == 403
        assert answer("127.0.0.1", port, "0123456789abcdef0123456789abcdef") == 200
        if address := own_address():
            assert answer(address, port, "0123456789abcdef0123456789abcdef") is None
        assert (short / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
        assert (short / ".ray").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", RAY_UP)
def test_without_a_token_no_head_starts(name: str, short: Path) -> None:
    with head(name, short, find_free_port()) as process:
        _, said = process.communicate(timeout=120)
        assert process.returncode != 0
    assert b"no authentication token was found" in said
