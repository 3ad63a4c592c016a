"""No cluster file can be loosened unnoticed: each loosened copy is objected to, for its reason."""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from tests.clusters.files import (
    ACCOUNT,
    AWS,
    EVERY,
    GCP,
    GCP_ACCOUNT,
    KUBERAY,
    ON_PREM,
    RAY_UP,
    ROOT,
    text,
    tree,
)
from tests.clusters.safety import unsafe

# What to look for (a regular expression), what to put in its place, what must be said about it.
HEAD, WORKER = r"(head_start(?:.|\n)*?)", r"(worker_start(?:.|\n)*?)"
OF_RAY_UP = [
    (HEAD + "export RAY_AUTH_MODE=token; ", r"\1", "head: Ray must be started with"),
    (WORKER + "export RAY_AUTH_MODE=token; ", r"\1", "worker: Ray must be started with"),
    (HEAD + "RAY_AUTH_MODE=token", r"\1RAY_AUTH_MODE=disabled", "RAY_AUTH_MODE is disabled"),
    (WORKER + "RAY_AUTH_MODE=token", r"\1RAY_AUTH_MODE=disabled", "RAY_AUTH_MODE is disabled"),
    (HEAD + "ulimit", r"\1unset RAY_AUTH_MODE; ulimit", "head: Ray must be started with"),
    (WORKER + "ulimit", r"\1RAY_AUTH_MODE=k8s; ulimit", "RAY_AUTH_MODE is k8s"),
    (r"  ~/\.ray/auth_token: .*\n", "", "no token is brought along"),
    (HEAD + "chmod 600", r"\1chmod 644", "head: the token file must have mode 600"),
    (WORKER + "chmod 600", r"\1chmod 644", "worker: the token file must have mode 600"),
    (WORKER + r" && chmod 600 \S+", r"\1", "worker: the token file must have mode 600"),
    (r"--dashboard-host=127\.0\.0\.1", "--dashboard-host=0.0.0.0", "the dashboard must be on"),
    (r"--dashboard-host=127\.0\.0\.1", "", "the dashboard must be on"),
    (r"(--dashboard-host=\S+)", r"\1 --dashboard-host=::", "the dashboard must be on"),
    (r"head_start_ray_commands:(?:.|\n)*?\n\n", "\n", "head: starts as Ray would"),
    (r"worker_start_ray_commands:(?:.|\n)*", "\n", "worker: starts as Ray would"),
    ("RAY_AUTH_MODE=token;", "RAY_AUTH_MODE=token RAY_AUTH_TOKEN=1f3a;", "a secret"),
    (r"\n  results: .*", "", "no store that outlives"),
]
OF_AWS = [
    (r"&group \[.*\]", "&group []", "head: without SecurityGroupIds"),
    (r"\n *SecurityGroupIds: \*group", "", "gpu_worker: without SecurityGroupIds"),
    (
        "provider:\n",
        "provider:\n  security_group: {GroupName: mine, IpPermissions: []}\n",
        "a group made by Ray opens SSH",
    ),
    ("provider:", "provider:\n  ssh: 0.0.0.0/0", "open to every address"),
    (r"\n *IamInstanceProfile: {Name: ascl-sweep-head}", "", "head: must have the stack's rights"),
    (
        "Name: ascl-sweep-worker",
        "Name: ascl-sweep-head",
        "gpu_worker: must have the stack's rights",
    ),
    ("HttpTokens: required", "HttpTokens: optional", "IMDSv1"),
    ("Encrypted: true", "Encrypted: false", "its disk must be encrypted"),
    (
        "provider:\n",
        "provider:\n  aws_credentials: {aws_access_key_id: AKIAIOSFODNN7EXAMPLE}\n",
        "a secret",
    ),
]
OF_GCP = [
    (", ssh_private_key: [^}]*", "", "project's metadata"),
    (r"ascl-sweep-head@\S+", "ray-autoscaler-sa-v1@p.iam.gserviceaccount.com", "its own account"),
    (r"ascl-sweep-worker@", "ascl-sweep-head@", "gpu_worker: must have its own account"),
    (r"auth/compute$", "auth/cloud-platform", "its scope must be"),
    (r"subnetworks/ascl-sweep", "subnetworks/default", "open to the world in the default network"),
    (r"\n *networkInterfaces: \*network", "", "open to the world in the default network"),
    (
        r'block-project-ssh-keys, value: "TRUE"',
        'block-project-ssh-keys, value: "FALSE"',
        "other keys",
    ),
    (r"\n *tags: \*tags", "", "no firewall rule is for it"),
]
OF_ACCOUNT = [
    (r"    AllowedPattern: '\^\\d.*\n", "", "SSH must be for one address"),
    (r"/32\$'", r"/\\d+$'", "SSH must be for one address"),
    (r"(Description: The one address)", r"Default: 0.0.0.0/0\n    \1", "SSH must be for one"),
    (r"CidrIp: !Ref SshFrom", "CidrIp: 0.0.0.0/0", "only SSH from one address"),
    (r"CidrIp: !Ref SshFrom", "CidrIp: 10.0.0.0/8", "only SSH from one address"),
    (r"FromPort: 22, ToPort: 22", "FromPort: 0, ToPort: 65535", "only SSH from one address"),
    (r"SourceSecurityGroupId: .*", "CidrIp: 10.0.0.0/8", "only the group itself"),
    (r"BlockPublicAcls: true", "BlockPublicAcls: false", "must be private and encrypted"),
    (r"BucketEncryption:", "Tags: []\n      Encryption:", "must be private and encrypted"),
    (r"(Action: s3:ListBucket\n *Resource: ).*", r'\1"*"', "s3:ListBucket: only in its bucket"),
    (r"Action: \[s3:GetObject.*\]", "Action: s3:*", "rights are named one by one"),
    (r"(s3:AbortMultipartUpload\]\n *Resource: ).*", r'\1"*"', "only in its bucket"),
    (r"Action: iam:PassRole", "Action: iam:*", "of IAM it may only"),
    (r"Resource: !GetAtt WorkerRole.Arn", "Resource: !GetAtt HeadRole.Arn", "of IAM it may only"),
    (
        r"Action: \[ec2:CreateTags, ec2:Ter",
        "Action: [ec2:*, ec2:Ter",
        "rights are named one by one",
    ),
    (r"\n *ArnEquals: .*", "", "ec2:RunInstances: without Worker.Arn"),
    (r"\n *aws:RequestTag/.*", "", "ec2:RunInstances: without ray-cluster-name"),
    (r"\n *ec2:MetadataHttpTokens.*", "", "ec2:RunInstances: without MetadataHttpTokens"),
    (r"security-group/\${Group.GroupId}", "security-group/*", "in any security group"),
    (r"\n *Condition: {StringEquals: {aws:ResourceTag.*", "", "on machines of others"),
    (r"- !Ref HeadRole|RoleName: !Ref HeadRole", "RoleName: !Ref WorkerRole", "only the head may"),
    (
        r"ManagedPolicyArns: .*",
        "ManagedPolicyArns: [arn:aws:iam::aws:policy/AmazonS3FullAccess]",
        "none of Amazon's ready ones",
    ),
    (r"- ec2:DescribeSubnets", "- sts:AssumeRole", "nothing but S3, EC2"),
]
OF_KUBERAY = [
    ("mode: token", "mode: disabled", "Ray must ask for the token"),
    (r"\n *authOptions: .*", "", "Ray must ask for the token"),
    (r", secretName: ascl-sweep-token", "", "Ray must ask for the token"),
    ("serviceType: ClusterIP", "serviceType: LoadBalancer", "reachable inside Kubernetes only"),
    ("serviceType: ClusterIP", "serviceType: NodePort", "reachable inside Kubernetes only"),
    ("    serviceType", "    enableIngress: true\n    serviceType", "inside Kubernetes only"),
    (r"---\n# Into the pods(?:.|\n)*?---", "---", "every pod of Kubernetes can reach"),
    (r"policyTypes: \[Ingress\]", "policyTypes: [Egress]", "must be about what comes into"),
    (r"\n *podSelector: {matchLabels: {app.*", "", "only the cluster's own pods"),
    (r"\n *- namespaceSelector: .*\n *", "\n        - ", "only the cluster's own pods"),
    (r"\n *ports:\n *- {protocol: TCP, port: 8265}", "", "only the cluster's own pods"),
    (r"  ingress:\n", "  ingress:\n    - {}\n", "only the cluster's own pods"),
    (r"{runAsNonRoot: true, runAsUser: 1000", "{runAsUser: 0", "must not run as root"),
    ("allowPrivilegeEscalation: false", "privileged: true", "must be confined"),
    (
        r"securityContext: \*confined\n *resources: #",
        "resources: #",
        "ray-worker: must be confined",
    ),
    (r"emptyDir: {sizeLimit: 20Gi}", "hostPath: {path: /}", "a hostPath leaves the pod"),
    (
        "        serviceAccountName: ascl-sweep-head",
        "        hostNetwork: true",
        "hostNetwork leaves",
    ),
    (r"\n *automountServiceAccountToken: false\n *sec", "\n          sec", "get Kubernetes' token"),
    (
        r"\Z",
        "---\napiVersion: v1\nkind: Secret\nstringData: {auth_token: 1f}\n",
        "a Secret does not",
    ),
]
LOOSENED = [
    *((name, *each) for name in RAY_UP for each in OF_RAY_UP),
    *((AWS, *each) for each in OF_AWS),
    *((GCP, *each) for each in OF_GCP),
    *((ACCOUNT, *each) for each in OF_ACCOUNT),
    *((KUBERAY, *each) for each in OF_KUBERAY),
]


@pytest.mark.parametrize("name", EVERY)
def test_a_cluster_file_is_safe_as_it_is(name: str) -> None:
    assert unsafe(name, text(name)) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    LOOSENED,
    ids=[f"{name} {n}: {said}" for n, (name, *_, said) in enumerate(LOOSENED)],
)
def test_a_loosened_copy_is_objected_to(name: str, old: str, new: str, said: str) -> None:
    loosened, times = re.subn(old, new, text(name), count=1, flags=re.MULTILINE)
    assert times == 1, f"{name} has no {old} to loosen"
    assert any(said in sentence for sentence in unsafe(name, loosened)), unsafe(name, loosened)


@pytest.mark.parametrize("name", EVERY)
def test_no_file_names_a_package_index_or_an_account(name: str) -> None:
    content = text(name)
    assert not re.search(r"--(extra-)?index-url|--find-links|pip install.*https?://", content)
    assert not re.search(r"\b\d{12}\b", content), "an AWS account"


@pytest.mark.parametrize("name", [*RAY_UP, KUBERAY])
def test_what_must_be_filled_in_cannot_work_by_accident(name: str) -> None:
    content = "\n".join(line.partition(" #")[0] for line in text(name).splitlines())
    assert "FILL IN" in text(name)
    # Upper case is no bucket and no project; 192.0.2.0/24 and .invalid are nobody's, by RFC.
    for store in re.findall(r"(?:s3|gs)://([^/?\s]+)", re.sub(r"^ *#.*", "", content, flags=re.M)):
        assert store == "YOUR-BUCKET"
    if name == ON_PREM:
        provider = tree(name)["provider"]
        hosts = [provider["head_ip"], *provider["worker_ips"]]
        assert all(host.startswith("192.0.2.") for host in hosts)
    if name == KUBERAY:
        images = re.findall(r"image: (?:&\w+ )?([^*\s]+)$", content, flags=re.MULTILINE)
        assert images == ["registry.invalid/ascl-sweep:COMMIT"]


# ---------------------------------------------------------------- the project on Google


def of_gcp_account(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Exit code of gcp-account.sh, and what it would have had gcloud do."""
    (folder / "gcloud").write_text(f'#!/bin/sh\necho "$*" >> {folder}/said\n')
    (folder / "gcloud").chmod(0o755)
    (folder / "said").write_text("")
    done = subprocess.run(
        [str(ROOT / GCP_ACCOUNT), *words],
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        timeout=30,
    )
    return done.returncode, (folder / "said").read_text().splitlines()


def test_the_project_on_google_lets_in_one_address_and_gives_its_bucket_only(
    tmp_path: Path,
) -> None:
    code, said = of_gcp_account(tmp_path, "my-project", "europe-west4", "mine", "203.0.113.7/32")
    assert code == 0
    assert all("--project=my-project" in line for line in said)
    rules = [line for line in said if "firewall-rules create" in line]
    assert len(rules) == 2
    assert ["--source-ranges=203.0.113.7/32" in rule for rule in rules] == [True, False]
    assert "--source-tags=ascl-sweep" in rules[1] and "--allow=tcp:22 " in rules[0]
    assert all("--target-tags=ascl-sweep" in rule for rule in rules)

    granted = [line for line in said if "add-iam-policy-binding" in line]
    of_bucket = [line for line in granted if line.startswith("storage buckets")]
    assert len(of_bucket) == 2
    assert all("gs://mine " in line and "roles/storage.objectUser" in line for line in of_bucket)
    [of_project] = [line for line in granted if line.startswith("projects")]
    assert "ascl-sweep-head@" in of_project
    assert "--role=projects/my-project/roles/asclSweepHead" in of_project
    [role] = [line for line in said if "iam roles create" in line]
    rights = re.findall(r"--permissions=(\S+)", role)[0].split(",")
    assert "compute.instances.create" in rights
    assert not [r for r in rights if "*" in r or not r.startswith("compute.") or "firewall" in r]
    [as_worker] = [line for line in granted if line.startswith("iam service-accounts")]
    assert "binding ascl-sweep-worker@" in as_worker and "serviceAccountUser" in as_worker


def test_the_account_that_ray_would_use_on_google_is_switched_off(tmp_path: Path) -> None:
    _, said = of_gcp_account(tmp_path, "my-project", "europe-west4", "mine", "203.0.113.7/32")
    made = [line for line in said if "ray-autoscaler-sa-v1" in line]
    assert [line.split()[2] for line in made] == ["create", "disable"]


@pytest.mark.parametrize(
    "words",
    [
        ("p", "r", "b", "0.0.0.0/0"),
        ("p", "r", "b", "203.0.113.0/24"),
        ("p", "r", "b", "203.0.113.7"),
        ("p", "r", "b", "::/0"),
        ("p", "r", "b"),
        (),
    ],
)
def test_the_project_on_google_refuses_a_range_before_it_does_anything(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    code, said = of_gcp_account(tmp_path, *words)
    assert code == 2 and said == []


def test_scripts_can_be_run() -> None:
    assert (ROOT / GCP_ACCOUNT).stat().st_mode & stat.S_IXUSR
