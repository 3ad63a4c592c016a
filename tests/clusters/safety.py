"""Security checks of the cluster files. Each finding is one sentence; a safe file has none."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.clusters.files import ACCOUNT, AWS, DOCKERFILE, GCP, GCP_ACCOUNT, KUBERAY, RAY_UP, tree

EVERYWHERE = re.compile(r"(?<![\d.])0\.0\.0\.0/\d|::/0")
SECRETS = re.compile(
    r"A[KS]IA[0-9A-Z]{12}|BEGIN [A-Z ]*PRIVATE KEY|RAY_AUTH_TOKEN=|aws_secret_access_key"
    r"|AWS_SECRET_ACCESS_KEY=|gcp_credentials|aws_credentials|password",
    re.IGNORECASE,
)
WATCHER = "python -m ascl_sweep.executors.ray.preemption"
WORK_FOLDERS = {"Sub": "${Results.Arn}/results/work/*"}
WIDE = ("0.0.0.0/0", "0.0.0.0/32/0", "203.0.113.0/24", "10.0.0.0/8", "203.0.113.7", "::/0", "")


def unsafe(name: str, content: str) -> list[str]:
    """Return every finding for one file."""
    checks = [_text(content)]
    if name in RAY_UP:
        checks.append(_ray_up(tree(name, content)))
    if name in (AWS, GCP):
        checks.append(_spot(tree(name, content)))
    if name == AWS:
        checks.append(_aws(tree(name, content)))
    if name == GCP:
        checks.append(_gcp(tree(name, content)))
    if name == KUBERAY:
        checks.append(_kuberay(tree(name, content)))
    if name == ACCOUNT:
        checks.append(_aws_account(tree(name, content)))
    assert name in (*RAY_UP, KUBERAY, ACCOUNT, GCP_ACCOUNT, DOCKERFILE)
    return [sentence for check in checks for sentence in check]


def _text(content: str) -> Iterator[str]:
    if EVERYWHERE.search(content):
        yield "a port is open to every address"
    if found := SECRETS.search(content):
        yield f"contains a secret: {found.group()}"
    for mode in re.findall(r"RAY_AUTH_MODE[=: ]+(\w+)", content):
        if mode != "token":
            yield f"RAY_AUTH_MODE is {mode}"


# ---------------------------------------------------------------- ray up


def _ray_up(cluster: Mapping[str, Any]) -> Iterator[str]:
    if "~/.ray/auth_token" not in cluster.get("file_mounts", {}):
        yield "the token is not copied to the nodes"
    for who in ("head", "worker"):
        commands = cluster.get(f"{who}_start_ray_commands")
        if not commands:
            yield f"{who}: Ray's default start commands are used"
            continue
        yield from (f"{who}: {sentence}" for sentence in _start(commands, head=who == "head"))
    if not cluster["provider"].get("results"):
        yield "no store that outlives the nodes"


def _spot(cluster: Mapping[str, Any]) -> Iterator[str]:
    *_, start = cluster.get("worker_start_ray_commands") or [""]
    if f"&& setsid --fork {WATCHER} {cluster['provider']['type']} " not in start:
        yield "worker: a spot node must drain when its end is announced"


def _start(commands: list[str], head: bool) -> Iterator[str]:
    *before, start = commands
    if not re.search(r"\bray start\b", start) or any("ray start" in c for c in before):
        yield "Ray must be started once, at the end"
    if not any(re.search(r"\bchmod 600 ~/\.ray/auth_token$", command) for command in before):
        yield "the token file must have mode 600"
    first, _, options = start.partition("ray start")
    if not re.match(r"export RAY_AUTH_MODE=token;", first) or "unset" in start:
        yield "Ray must be started with RAY_AUTH_MODE=token"
    hosts = re.findall(r"--dashboard-host[= ](\S+)", options)
    if hosts != (["127.0.0.1"] if head else []):
        yield f"the dashboard must be on 127.0.0.1, got {hosts}"


def _aws(cluster: Mapping[str, Any]) -> Iterator[str]:
    if "security_group" in cluster["provider"]:
        yield "a group created by Ray opens SSH to the world, whatever its rules"
    for name, node in _nodes(cluster):
        machine = node["node_config"]
        if not machine.get("SecurityGroupIds") or "NetworkInterfaces" in machine:
            yield f"{name}: without SecurityGroupIds, Ray opens SSH to the world"
        if machine.get("IamInstanceProfile") != {"Name": f"ascl-sweep-{_role(cluster, name)}"}:
            yield f"{name}: must use the stack's instance profile"
        if machine.get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield f"{name}: its credentials can be read by a forged request (IMDSv1)"
        disks = machine.get("BlockDeviceMappings", [])
        if not disks or not all(disk["Ebs"].get("Encrypted") is True for disk in disks):
            yield f"{name}: its disk must be encrypted"


def _gcp(cluster: Mapping[str, Any]) -> Iterator[str]:
    project = cluster["provider"]["project_id"]
    if not cluster["auth"].get("ssh_private_key"):
        yield "Ray would add its key to the project's metadata: access to every machine"
    for name, node in _nodes(cluster):
        machine = node["node_config"]
        accounts = machine.get("serviceAccounts", [])
        mail = f"ascl-sweep-{_role(cluster, name)}@{project}.iam.gserviceaccount.com"
        if [account["email"] for account in accounts] != [mail]:
            yield f"{name}: must have its own account; Ray's can access the whole project"
        if any(s.endswith("/cloud-platform") for account in accounts for s in account["scopes"]):
            yield f"{name}: the scopes must be limited to what is used"
        nets = [net.get("subnetwork", "") for net in machine.get("networkInterfaces", [{}])]
        if not all(net.endswith("/subnetworks/ascl-sweep") for net in nets):
            yield f"{name}: SSH is open to the world in the default network"
        items = {i["key"]: i["value"] for i in machine.get("metadata", {}).get("items", [])}
        if items.get("block-project-ssh-keys") != "TRUE":
            yield f"{name}: must not accept the project's other keys"
        if machine.get("tags") != {"items": ["ascl-sweep"]}:
            yield f"{name}: without the tag, no firewall rule applies"


def _nodes(cluster: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from cluster["available_node_types"].items()


def _role(cluster: Mapping[str, Any], name: str) -> str:
    return "head" if name == cluster["head_node_type"] else "worker"


# ---------------------------------------------------------------- permissions on AWS


def _aws_account(template: Mapping[str, Any]) -> Iterator[str]:
    who = template["Parameters"]["SshFrom"]
    if "Default" in who or any(re.match(who.get("AllowedPattern", ""), wide) for wide in WIDE):
        yield "SSH must be limited to one address without a default"
    for name, resource in template["Resources"].items():
        kind, properties = resource["Type"], resource["Properties"]
        if kind == "AWS::EC2::SecurityGroup":
            rules = properties["SecurityGroupIngress"]
            ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": {"Ref": "SshFrom"}}
            if rules != [ssh]:
                yield f"{name}: only SSH from one address may be allowed"
        elif kind == "AWS::EC2::SecurityGroupIngress":
            if properties.get("SourceSecurityGroupId") != properties["GroupId"] or any(
                key in properties for key in ("CidrIp", "CidrIpv6", "SourcePrefixListId")
            ):
                yield f"{name}: only the group itself may connect"
        elif kind == "AWS::S3::Bucket":
            block = properties.get("PublicAccessBlockConfiguration", {})
            if len(block) != 4 or not all(block.values()) or "BucketEncryption" not in properties:
                yield f"{name}: must be private and encrypted"
            if properties.get("VersioningConfiguration") != {"Status": "Enabled"}:
                yield f"{name}: must keep old versions"
        elif kind == "AWS::IAM::Role":
            policy = {"WorkerRole": "WorkRights", "HeadRole": "BucketRights"}[name]
            if properties["ManagedPolicyArns"] != [{"Ref": policy}]:
                yield f"{name}: must have {policy} only, no policy managed by Amazon"
        if name == "WorkRights" and any(
            "s3:ListBucket" not in listed(statement["Action"])
            and statement["Resource"] != WORK_FOLDERS
            for statement in properties["PolicyDocument"]["Statement"]
        ):
            yield f"{name}: workers may write to the folders of runs only"
        if kind in ("AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy", "AWS::S3::BucketPolicy"):
            for statement in properties["PolicyDocument"]["Statement"]:
                yield from (f"{name}: {sentence}" for sentence in _statement(statement))
    policy = template["Resources"]["WorkerControl"]["Properties"]
    if policy["RoleName"] != {"Ref": "HeadRole"}:
        yield "WorkerControl: only the head may start machines"


def _statement(statement: Mapping[str, Any]) -> Iterator[str]:
    if statement["Effect"] == "Deny":
        return
    actions, resources = listed(statement["Action"]), listed(statement["Resource"])
    condition = str(statement.get("Condition", ""))
    for action in actions:
        service, _, verb = action.partition(":")
        if "*" in action:
            yield f"{action}: actions must be listed without wildcards"
        if service == "s3" and not all(
            resource in ({"GetAtt": "Results.Arn"}, {"Sub": "${Results.Arn}/*"}, WORK_FOLDERS)
            for resource in resources
        ):
            yield f"{action}: must be limited to the bucket"
        elif service == "iam" and (
            verb != "PassRole" or resources != [{"GetAtt": "WorkerRole.Arn"}] or not condition
        ):
            yield f"{action}: of IAM, only passing the worker's role is allowed"
        elif service not in ("s3", "iam", "ec2", "ssm"):
            yield f"{action}: only S3, EC2 and the image parameter are needed"
        if "*" in resources and not verb.startswith("Describe"):
            yield f"{action}: allowed on every resource"
        if verb == "RunInstances" and ":instance/*" in str(resources):
            for needed in ("ray-cluster-name", "MetadataHttpTokens", "Worker.Arn"):
                if needed not in condition:
                    yield f"{action}: must be conditional on {needed}"
        if verb == "RunInstances" and "security-group/*" in str(resources):
            yield f"{action}: allowed in any security group"
        if verb in ("CreateTags", "TerminateInstances") and not condition:
            yield f"{action}: allowed on instances outside the cluster"


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---------------------------------------------------------------- Kubernetes


def _kuberay(objects: list[Mapping[str, Any]]) -> Iterator[str]:
    kinds = {each["kind"]: each for each in objects}
    for kind in (
        "Secret",
        "Service",
        "Ingress",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
    ):
        if kind in kinds:
            yield f"a {kind} does not belong here"
    cluster = kinds["RayCluster"]["spec"]
    auth = cluster.get("authOptions", {})
    if auth.get("mode") != "token" or not auth.get("secretName"):
        yield "Ray must require the token from a Secret"
    head = cluster["headGroupSpec"]
    if head.get("serviceType") != "ClusterIP" or head.get("enableIngress") or "headService" in head:
        yield "the head must be reachable inside Kubernetes only"
    yield from _network_policy(kinds, kinds["RayCluster"]["metadata"]["name"])
    yield from _confined("autoscaler", cluster.get("autoscalerOptions", {}))
    groups = [head, *cluster["workerGroupSpecs"]]
    for group in groups:
        yield from _pod(group["template"]["spec"])
    for group in groups[1:]:
        yield from _draining(group["template"]["spec"])
        if group["template"]["spec"].get("automountServiceAccountToken") is not False:
            yield "a worker must not get a Kubernetes API token"


def _network_policy(kinds: Mapping[str, Any], cluster: str) -> Iterator[str]:
    if "NetworkPolicy" not in kinds:
        yield "every pod in Kubernetes can reach the dashboard"
        return
    policy = kinds["NetworkPolicy"]["spec"]
    own = {"podSelector": {"matchLabels": {"ray.io/cluster": cluster}}}
    if policy["podSelector"] != own["podSelector"] or "Ingress" not in policy["policyTypes"]:
        yield "the policy must restrict ingress to the cluster's pods"
    for rule in policy["ingress"]:
        for peer in rule.get("from", [{}]):
            labels = peer.get("podSelector", {}).get("matchLabels", {})
            operator = labels.get("app.kubernetes.io/name") == "kuberay-operator"
            if peer != own and not (
                operator
                and peer.get("namespaceSelector", {}).get("matchLabels")
                and [port["port"] for port in rule.get("ports", [])] == [8265]
            ):
                yield "only the cluster's pods and, for the dashboard, the operator may connect"


def _pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield f"{key} breaks the isolation of the pod"
    if any("hostPath" in volume for volume in pod.get("volumes", [])):
        yield "a hostPath breaks the isolation of the pod"
    if not pod.get("serviceAccountName"):
        yield "a pod must have its own account"
    user = pod.get("securityContext", {})
    if user.get("runAsNonRoot") is not True or not user.get("runAsUser"):
        yield "a pod must not run as root"
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        yield from _confined(container["name"], container)


def _draining(pod: Mapping[str, Any]) -> Iterator[str]:
    seconds = str(pod.get("terminationGracePeriodSeconds"))
    for container in pod["containers"]:
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
        if hook.get("command") != [*WATCHER.split(), seconds]:
            yield f"{container['name']}: must drain while it ends"


def _confined(name: str, container: Mapping[str, Any]) -> Iterator[str]:
    context = container.get("securityContext", {})
    if (
        context.get("runAsNonRoot") is not True
        or context.get("allowPrivilegeEscalation") is not False
        or context.get("privileged")
        or context.get("capabilities") != {"drop": ["ALL"]}
        or context.get("seccompProfile") != {"type": "RuntimeDefault"}
    ):
        yield f"{name}: must meet the restricted Pod Security Standard"
