"""What makes a cluster file unsafe, as sentences; none is what we want."""

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
WIDE = ("0.0.0.0/0", "0.0.0.0/32/0", "203.0.113.0/24", "10.0.0.0/8", "203.0.113.7", "::/0", "")


def unsafe(name: str, content: str) -> list[str]:
    """Everything that a file loosens."""
    checks = [_text(content)]
    if name in RAY_UP:
        checks.append(_ray_up(tree(name, content)))
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
        yield "something is open to every address"
    if found := SECRETS.search(content):
        yield f"a secret: {found.group()}"
    for mode in re.findall(r"RAY_AUTH_MODE[=: ]+(\w+)", content):
        if mode != "token":
            yield f"RAY_AUTH_MODE is {mode}"


# ---------------------------------------------------------------- ray up


def _ray_up(cluster: Mapping[str, Any]) -> Iterator[str]:
    if "~/.ray/auth_token" not in cluster.get("file_mounts", {}):
        yield "no token is brought along"
    for who in ("head", "worker"):
        commands = cluster.get(f"{who}_start_ray_commands")
        if not commands:
            yield f"{who}: starts as Ray would"
            continue
        yield from (f"{who}: {sentence}" for sentence in _start(commands, head=who == "head"))
    if not cluster["provider"].get("results"):
        yield "no store that outlives the machines"


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
        yield "a group made by Ray opens SSH to the world, whatever rules it is given"
    for name, node in _nodes(cluster):
        machine = node["node_config"]
        if not machine.get("SecurityGroupIds") or "NetworkInterfaces" in machine:
            yield f"{name}: without SecurityGroupIds Ray makes a group that opens SSH to the world"
        if machine.get("IamInstanceProfile") != {"Name": f"ascl-sweep-{_role(cluster, name)}"}:
            yield f"{name}: must have the stack's rights"
        if machine.get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield f"{name}: its credentials can be read by a forged request (IMDSv1)"
        disks = machine.get("BlockDeviceMappings", [])
        if not disks or not all(disk["Ebs"].get("Encrypted") is True for disk in disks):
            yield f"{name}: its disk must be encrypted"


def _gcp(cluster: Mapping[str, Any]) -> Iterator[str]:
    project = cluster["provider"]["project_id"]
    if not cluster["auth"].get("ssh_private_key"):
        yield "Ray would put its key into the project's metadata, and open every machine with it"
    for name, node in _nodes(cluster):
        machine = node["node_config"]
        accounts = machine.get("serviceAccounts", [])
        mail = f"ascl-sweep-{_role(cluster, name)}@{project}.iam.gserviceaccount.com"
        if [account["email"] for account in accounts] != [mail]:
            yield f"{name}: must have its own account; Ray's has rights on the whole project"
        if any(s.endswith("/cloud-platform") for account in accounts for s in account["scopes"]):
            yield f"{name}: its scope must be what it uses"
        nets = [net.get("subnetwork", "") for net in machine.get("networkInterfaces", [{}])]
        if not all(net.endswith("/subnetworks/ascl-sweep") for net in nets):
            yield f"{name}: SSH is open to the world in the default network"
        items = {i["key"]: i["value"] for i in machine.get("metadata", {}).get("items", [])}
        if items.get("block-project-ssh-keys") != "TRUE":
            yield f"{name}: must not let in the project's other keys"
        if machine.get("tags") != {"items": ["ascl-sweep"]}:
            yield f"{name}: without the tag no firewall rule is for it"


def _nodes(cluster: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from cluster["available_node_types"].items()


def _role(cluster: Mapping[str, Any], name: str) -> str:
    return "head" if name == cluster["head_node_type"] else "worker"


# ---------------------------------------------------------------- rights on AWS


def _aws_account(template: Mapping[str, Any]) -> Iterator[str]:
    who = template["Parameters"]["SshFrom"]
    if "Default" in who or any(re.match(who.get("AllowedPattern", ""), wide) for wide in WIDE):
        yield "SSH must be for one address, which must be given"
    for name, resource in template["Resources"].items():
        kind, properties = resource["Type"], resource["Properties"]
        if kind == "AWS::EC2::SecurityGroup":
            rules = properties["SecurityGroupIngress"]
            ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": {"Ref": "SshFrom"}}
            if rules != [ssh]:
                yield f"{name}: only SSH from one address may come in"
        elif kind == "AWS::EC2::SecurityGroupIngress":
            if properties.get("SourceSecurityGroupId") != properties["GroupId"] or any(
                key in properties for key in ("CidrIp", "CidrIpv6", "SourcePrefixListId")
            ):
                yield f"{name}: only the group itself may come in"
        elif kind == "AWS::S3::Bucket":
            block = properties.get("PublicAccessBlockConfiguration", {})
            if len(block) != 4 or not all(block.values()) or "BucketEncryption" not in properties:
                yield f"{name}: must be private and encrypted"
        elif kind == "AWS::IAM::Role" and properties["ManagedPolicyArns"] != [
            {"Ref": "BucketRights"}
        ]:
            yield f"{name}: may have the bucket's rights, and none of Amazon's ready ones"
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
            yield f"{action}: rights are named one by one"
        if service == "s3" and not all(
            resource in ({"GetAtt": "Results.Arn"}, {"Sub": "${Results.Arn}/*"})
            for resource in resources
        ):
            yield f"{action}: only in its bucket"
        elif service == "iam" and (
            verb != "PassRole" or resources != [{"GetAtt": "WorkerRole.Arn"}] or not condition
        ):
            yield f"{action}: of IAM it may only give a worker its role"
        elif service not in ("s3", "iam", "ec2", "ssm"):
            yield f"{action}: nothing but S3, EC2 and the image's name is used"
        if "*" in resources and not verb.startswith("Describe"):
            yield f"{action}: on everything"
        if verb == "RunInstances" and ":instance/*" in str(resources):
            for needed in ("ray-cluster-name", "MetadataHttpTokens", "Worker.Arn"):
                if needed not in condition:
                    yield f"{action}: without {needed}"
        if verb == "RunInstances" and "security-group/*" in str(resources):
            yield f"{action}: in any security group"
        if verb in ("CreateTags", "TerminateInstances") and not condition:
            yield f"{action}: on machines of others"


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
        yield "Ray must ask for the token of a Secret"
    head = cluster["headGroupSpec"]
    if head.get("serviceType") != "ClusterIP" or head.get("enableIngress") or "headService" in head:
        yield "the head must be reachable inside Kubernetes only"
    yield from _network_policy(kinds, kinds["RayCluster"]["metadata"]["name"])
    yield from _confined("autoscaler", cluster.get("autoscalerOptions", {}))
    groups = [head, *cluster["workerGroupSpecs"]]
    for group in groups:
        yield from _pod(group["template"]["spec"])
    for group in groups[1:]:
        if group["template"]["spec"].get("automountServiceAccountToken") is not False:
            yield "a worker must not get Kubernetes' token"


def _network_policy(kinds: Mapping[str, Any], cluster: str) -> Iterator[str]:
    if "NetworkPolicy" not in kinds:
        yield "every pod of Kubernetes can reach the dashboard"
        return
    policy = kinds["NetworkPolicy"]["spec"]
    own = {"podSelector": {"matchLabels": {"ray.io/cluster": cluster}}}
    if policy["podSelector"] != own["podSelector"] or "Ingress" not in policy["policyTypes"]:
        yield "the policy must be about what comes into the cluster's pods"
    for rule in policy["ingress"]:
        for peer in rule.get("from", [{}]):
            labels = peer.get("podSelector", {}).get("matchLabels", {})
            operator = labels.get("app.kubernetes.io/name") == "kuberay-operator"
            if peer != own and not (
                operator
                and peer.get("namespaceSelector", {}).get("matchLabels")
                and [port["port"] for port in rule.get("ports", [])] == [8265]
            ):
                yield "only the cluster's own pods and, at the dashboard, the operator may come in"


def _pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield f"{key} leaves the pod"
    if any("hostPath" in volume for volume in pod.get("volumes", [])):
        yield "a hostPath leaves the pod"
    if not pod.get("serviceAccountName"):
        yield "a pod must have its own account"
    user = pod.get("securityContext", {})
    if user.get("runAsNonRoot") is not True or not user.get("runAsUser"):
        yield "a pod must not run as root"
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        yield from _confined(container["name"], container)


def _confined(name: str, container: Mapping[str, Any]) -> Iterator[str]:
    context = container.get("securityContext", {})
    if (
        context.get("runAsNonRoot") is not True
        or context.get("allowPrivilegeEscalation") is not False
        or context.get("privileged")
        or context.get("capabilities") != {"drop": ["ALL"]}
        or context.get("seccompProfile") != {"type": "RuntimeDefault"}
    ):
        yield f"{name}: must be confined as Kubernetes' restricted profile says"
