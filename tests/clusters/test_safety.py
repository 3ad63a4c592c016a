"""The security checks find every way to weaken a cluster file, and name the reason."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

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

# A pattern (regular expression), its replacement, and the expected finding.
HEAD, WORKER = r"(head_start(?:.|\n)*?)", r"(worker_start(?:.|\n)*?)"
OF_RAY_UP = [
    (HEAD + "export RAY_AUTH_MODE=token; ", r"\1", "head: Ray must be started with"),
    (WORKER + "export RAY_AUTH_MODE=token; ", r"\1", "worker: Ray must be started with"),
    (HEAD + "RAY_AUTH_MODE=token", r"\1RAY_AUTH_MODE=disabled", "RAY_AUTH_MODE is disabled"),
    (WORKER + "RAY_AUTH_MODE=token", r"\1RAY_AUTH_MODE=disabled", "RAY_AUTH_MODE is disabled"),
    (HEAD + "ulimit", r"\1unset RAY_AUTH_MODE; ulimit", "head: Ray must be started with"),
    (WORKER + "ulimit", r"\1RAY_AUTH_MODE=k8s; ulimit", "RAY_AUTH_MODE is k8s"),
    (r"  ~/\.ray/auth_token: .*\n", "", "the token is not copied to the nodes"),
    (HEAD + "chmod 600", r"\1chmod 644", "head: the token file must have mode 600"),
    (WORKER + "chmod 600", r"\1chmod 644", "worker: the token file must have mode 600"),
    (WORKER + r" && chmod 600 \S+", r"\1", "worker: the token file must have mode 600"),
    (r"--dashboard-host=127\.0\.0\.1", "--dashboard-host=0.0.0.0", "the dashboard must be on"),
    (r"--dashboard-host=127\.0\.0\.1", "", "the dashboard must be on"),
    (r"(--dashboard-host=\S+)", r"\1 --dashboard-host=::", "the dashboard must be on"),
    (r"head_start_ray_commands:(?:.|\n)*?\n\n", "\n", "head: Ray's default start commands"),
    (r"worker_start_ray_commands:(?:.|\n)*", "\n", "worker: Ray's default start commands"),
    ("RAY_AUTH_MODE=token;", "RAY_AUTH_MODE=token RAY_AUTH_TOKEN=1f3a;", "contains a secret"),
    (r"\n  results: .*", "", "no store that outlives"),
]
OF_AWS = [
    (r"(ray\.preemption) aws", r"\1 gcp", "a spot node must drain"),
    (r" &&\n    setsid(?:.|\n)*", "\n", "a spot node must drain"),
    (r"&group \[.*\]", "&group []", "head: without SecurityGroupIds"),
    (r"\n *SecurityGroupIds: \*group", "", "gpu_worker: without SecurityGroupIds"),
    (
        "provider:\n",
        "provider:\n  security_group: {GroupName: mine, IpPermissions: []}\n",
        "a group created by Ray opens SSH",
    ),
    ("provider:", "provider:\n  ssh: 0.0.0.0/0", "open to every address"),
    (
        r"\n *IamInstanceProfile: {Name: ascl-sweep-head}",
        "",
        "head: must use the stack's instance profile",
    ),
    (
        "Name: ascl-sweep-worker",
        "Name: ascl-sweep-head",
        "gpu_worker: must use the stack's instance profile",
    ),
    ("HttpTokens: required", "HttpTokens: optional", "IMDSv1"),
    ("Encrypted: true", "Encrypted: false", "its disk must be encrypted"),
    (
        "provider:\n",
        "provider:\n  aws_credentials: {aws_access_key_id: AKIAIOSFODNN7EXAMPLE}\n",
        "contains a secret",
    ),
]
OF_GCP = [
    (r" &&\n    setsid(?:.|\n)*", "\n", "a spot node must drain"),
    (", ssh_private_key: [^}]*", "", "project's metadata"),
    (r"ascl-sweep-head@\S+", "ray-autoscaler-sa-v1@p.iam.gserviceaccount.com", "its own account"),
    (r"ascl-sweep-worker@", "ascl-sweep-head@", "gpu_worker: must have its own account"),
    (r"auth/compute$", "auth/cloud-platform", "scopes must be limited"),
    (r"subnetworks/ascl-sweep", "subnetworks/default", "open to the world in the default network"),
    (r"\n *networkInterfaces: \*network", "", "open to the world in the default network"),
    (
        r'block-project-ssh-keys, value: "TRUE"',
        'block-project-ssh-keys, value: "FALSE"',
        "other keys",
    ),
    (r"\n *tags: \*tags", "", "no firewall rule applies"),
]
OF_ACCOUNT = [
    (r"    AllowedPattern: '\^\\d.*\n", "", "SSH must be limited to one address"),
    (r"/32\$'", r"/\\d+$'", "SSH must be limited to one address"),
    (
        r"(Description: The one address)",
        r"Default: 0.0.0.0/0\n    \1",
        "SSH must be limited to one address",
    ),
    (r"CidrIp: !Ref SshFrom", "CidrIp: 0.0.0.0/0", "only SSH from one address"),
    (r"CidrIp: !Ref SshFrom", "CidrIp: 10.0.0.0/8", "only SSH from one address"),
    (r"FromPort: 22, ToPort: 22", "FromPort: 0, ToPort: 65535", "only SSH from one address"),
    (r"SourceSecurityGroupId: .*", "CidrIp: 10.0.0.0/8", "only the group itself"),
    (r"BlockPublicAcls: true", "BlockPublicAcls: false", "must be private and encrypted"),
    (r"BucketEncryption:", "Tags: []\n      Encryption:", "must be private and encrypted"),
    (
        r"(Action: s3:ListBucket\n *Resource: ).*",
        r'\1"*"',
        "s3:ListBucket: must be limited to the bucket",
    ),
    (r"Action: \[s3:GetObject.*\]", "Action: s3:*", "actions must be listed without wildcards"),
    (r"(s3:AbortMultipartUpload\]\n *Resource: ).*", r'\1"*"', "must be limited to the bucket"),
    (r"Action: iam:PassRole", "Action: iam:*", "of IAM, only passing"),
    (r"Resource: !GetAtt WorkerRole.Arn", "Resource: !GetAtt HeadRole.Arn", "of IAM, only passing"),
    (
        r"Action: \[ec2:CreateTags, ec2:Ter",
        "Action: [ec2:*, ec2:Ter",
        "actions must be listed without wildcards",
    ),
    (r"\n *ArnEquals: .*", "", "ec2:RunInstances: must be conditional on Worker.Arn"),
    (r"\n *aws:RequestTag/.*", "", "ec2:RunInstances: must be conditional on ray-cluster-name"),
    (
        r"\n *ec2:MetadataHttpTokens.*",
        "",
        "ec2:RunInstances: must be conditional on MetadataHttpTokens",
    ),
    (r"security-group/\${Group.GroupId}", "security-group/*", "in any security group"),
    (r"\n *Condition: {StringEquals: {aws:ResourceTag.*", "", "on instances outside the cluster"),
    (r"- !Ref HeadRole|RoleName: !Ref HeadRole", "RoleName: !Ref WorkerRole", "only the head may"),
    (
        r"ManagedPolicyArns: \[!Ref WorkRights\]",
        "ManagedPolicyArns: [!Ref BucketRights]",
        "WorkRights",
    ),
    (r"results/work/\*", "*", "workers may write to the folders of runs only"),
    (r"results/work/\*", "results/*", "must be limited to the bucket"),
    (r"VersioningConfiguration: .*", "Tags: []", "must keep old versions"),
    (
        r"ManagedPolicyArns: .*",
        "ManagedPolicyArns: [arn:aws:iam::aws:policy/AmazonS3FullAccess]",
        "no policy managed by Amazon",
    ),
    (r"- ec2:DescribeSubnets", "- sts:AssumeRole", "only S3, EC2"),
]
OF_KUBERAY = [
    (r"GracePeriodSeconds: 100", "GracePeriodSeconds: 30", "must drain while it ends"),
    (r"\n *lifecycle:\n.*\n.*", "", "must drain while it ends"),
    ("mode: token", "mode: disabled", "Ray must require the token"),
    (r"\n *authOptions: .*", "", "Ray must require the token"),
    (r", secretName: ascl-sweep-token", "", "Ray must require the token"),
    ("serviceType: ClusterIP", "serviceType: LoadBalancer", "reachable inside Kubernetes only"),
    ("serviceType: ClusterIP", "serviceType: NodePort", "reachable inside Kubernetes only"),
    ("    serviceType", "    enableIngress: true\n    serviceType", "inside Kubernetes only"),
    (r"---\n# Only pods of(?:.|\n)*?---", "---", "every pod in Kubernetes can reach"),
    (r"policyTypes: \[Ingress\]", "policyTypes: [Egress]", "must restrict ingress"),
    (r"\n *podSelector: {matchLabels: {app.*", "", "only the cluster's pods"),
    (r"\n *- namespaceSelector: .*\n *", "\n        - ", "only the cluster's pods"),
    (r"\n *ports:\n *- {protocol: TCP, port: 8265}", "", "only the cluster's pods"),
    (r"  ingress:\n", "  ingress:\n    - {}\n", "only the cluster's pods"),
    (r"{runAsNonRoot: true, runAsUser: 1000", "{runAsUser: 0", "must not run as root"),
    ("allowPrivilegeEscalation: false", "privileged: true", "restricted Pod Security"),
    (
        r"securityContext: \*confined\n *resources: #",
        "resources: #",
        "ray-worker: must meet the restricted",
    ),
    (r"emptyDir: {sizeLimit: 20Gi}", "hostPath: {path: /}", "a hostPath breaks the isolation"),
    (
        "        serviceAccountName: ascl-sweep-head",
        "        hostNetwork: true",
        "hostNetwork breaks",
    ),
    (
        r"\n *automountServiceAccountToken: false\n *sec",
        "\n          sec",
        "get a Kubernetes API token",
    ),
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
    # Upper-case names are invalid for buckets and projects; RFCs reserve 192.0.2.0/24 and .invalid.
    for store in re.findall(r"(?:s3|gs)://([^/?\s]+)", re.sub(r"^ *#.*", "", content, flags=re.M)):
        assert store == "YOUR-BUCKET"
    if name == ON_PREM:
        provider = tree(name)["provider"]
        hosts = [provider["head_ip"], *provider["worker_ips"]]
        assert all(host.startswith("192.0.2.") for host in hosts)
    if name == KUBERAY:
        images = re.findall(r"image: (?:&\w+ )?([^*\s]+)$", content, flags=re.MULTILINE)
        assert images == ["registry.invalid/ascl-sweep:COMMIT"]


@pytest.mark.parametrize("name", [*RAY_UP, KUBERAY])
def test_a_new_token_is_made_its_owner_s_alone(name: str) -> None:
    """Ray writes it readable to all."""
    generated = [line for line in text(name).splitlines() if "get-auth-token" in line]
    assert len(generated) == 1
    assert "ray get-auth-token --generate && chmod 600 ~/.ray/auth_token" in generated[0]


# ---------------------------------------------------------------- the project on Google


WORDS = ("my-project", "europe-west4", "mine", "203.0.113.7/32")


class Google:
    """A project behind a fake gcloud (fake_gcloud.py), at first empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        fake = Path(__file__).with_name("fake_gcloud.py")
        self._program("gcloud", f'exec {sys.executable} -IS {fake} {folder} "$@"')
        self._program("sleep", f'echo "$1" >> {folder}/slept')
        self.said: list[str] = []
        """What gcloud did in the last run."""
        self.refused: list[str] = []

    def _program(self, name: str, line: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.folder / name).chmod(0o755)

    def run(self, *words: str) -> int:
        """The exit code of gcp-account.sh."""
        (self.folder / "said").write_text("")
        done = subprocess.run(
            [str(ROOT / GCP_ACCOUNT), *words],
            env={"PATH": f"{self.folder}:{os.environ['PATH']}"},
            capture_output=True,
            timeout=60,
        )
        calls = [line.split(" ", 1) for line in (self.folder / "said").read_text().splitlines()]
        self.said = [call for code, call in calls if code == "0"]
        self.refused = [call for code, call in calls if code != "0"]
        return done.returncode

    @property
    def state(self) -> dict[str, Any]:
        there: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return there

    def slow(self, times: int) -> None:
        """Each call that needs an account that was just made fails so often."""
        (self.folder / "slow").write_text(str(times))

    def slept(self) -> float:
        file = self.folder / "slept"
        return sum(map(float, file.read_text().split())) if file.exists() else 0.0


def test_the_project_on_google_lets_in_one_address_and_gives_its_bucket_only(
    tmp_path: Path,
) -> None:
    google = Google(tmp_path)
    assert google.run(*WORDS) == 0
    said = google.said
    assert all("--project=my-project" in line for line in said)
    rules = [line for line in said if "firewall-rules create" in line]
    assert len(rules) == 2
    assert ["--source-ranges=203.0.113.7/32" in rule for rule in rules] == [True, False]
    assert "--source-tags=ascl-sweep" in rules[1] and "--allow=tcp:22 " in rules[0]
    assert all("--target-tags=ascl-sweep" in rule for rule in rules)

    granted = [line for line in said if "add-iam-policy-binding" in line]
    assert {
        right.partition("@")[0]: condition
        for right, condition in google.state["storage buckets gs://mine"].items()
        if right.startswith("roles/")
    } == {
        "roles/storage.objectUser for ascl-sweep-head": "None",
        "roles/storage.objectViewer for ascl-sweep-worker": "None",
        "roles/storage.objectUser for ascl-sweep-worker": "title=work,expression=resource.name"
        ".startsWith('projects/_/buckets/mine/objects/results/work/')",
    }
    [of_project] = [line for line in granted if line.startswith("projects")]
    assert "ascl-sweep-head@" in of_project
    assert "--role=projects/my-project/roles/asclSweepHead" in of_project
    [role] = [line for line in said if "iam roles create" in line]
    rights = re.findall(r"--permissions=(\S+)", role)[0].split(",")
    assert "compute.instances.create" in rights
    assert not [r for r in rights if "*" in r or not r.startswith("compute.") or "firewall" in r]
    [as_worker] = [line for line in granted if line.startswith("iam service-accounts")]
    assert "binding ascl-sweep-worker@" in as_worker and "serviceAccountUser" in as_worker


def test_the_bucket_on_google_keeps_old_versions_and_those_of_checkpoints_for_a_day(
    tmp_path: Path,
) -> None:
    google = Google(tmp_path)
    assert google.run(*WORDS) == 0
    bucket = google.state["storage buckets gs://mine"]
    assert "versioning" in bucket
    tables, checkpoints = (
        each["condition"] for each in json.loads(bucket["lifecycle-file"])["rule"]
    )
    assert tables == {"daysSinceNoncurrentTime": 30}
    assert checkpoints == {"daysSinceNoncurrentTime": 1, "matchesPrefix": ["results/work/"]}


def test_the_account_that_ray_would_use_on_google_is_switched_off(tmp_path: Path) -> None:
    google = Google(tmp_path)
    google.run(*WORDS)
    made = [line for line in google.said if "ray-autoscaler-sa-v1" in line]
    assert [line.split()[2] for line in made] == ["create", "disable"]


def test_the_services_of_google_are_switched_on_before_they_are_asked(tmp_path: Path) -> None:
    google = Google(tmp_path)
    assert google.run(*WORDS) == 0
    assert google.said[0].startswith("services enable ")
    assert {"compute", "iam", "cloudresourcemanager", "storage"} == {
        api.removesuffix(".googleapis.com") for api in google.state["apis"]
    }


def test_only_the_address_changes_when_the_project_on_google_is_set_up_again(
    tmp_path: Path,
) -> None:
    google = Google(tmp_path)
    assert google.run(*WORDS) == 0
    first = google.state
    assert google.run(*WORDS) == 0
    assert google.state == first and not google.refused
    assert google.run(*WORDS[:3], "198.51.100.9/32") == 0
    rule = first["compute firewall-rules ascl-sweep-ssh"]
    assert rule["source-ranges"] == "203.0.113.7/32"
    rule["source-ranges"] = "198.51.100.9/32"
    assert google.state == first
    assert not [line for line in google.said if " create " in line]
    assert google.slept() == 0


@pytest.mark.parametrize("lost", ["compute networks subnets", "iam roles", "iam service-accounts"])
def test_a_project_on_google_that_was_left_half_made_is_completed(
    tmp_path: Path, lost: str
) -> None:
    google = Google(tmp_path)
    assert google.run(*WORDS) == 0
    whole = google.state
    part = {key: value for key, value in whole.items() if not key.startswith(lost)}
    assert part != whole
    (tmp_path / "state.json").write_text(json.dumps(part))
    assert google.run(*WORDS) == 0
    assert google.state == whole


def test_rights_wait_until_google_knows_a_new_account(tmp_path: Path) -> None:
    google, quick = Google(tmp_path / "a"), Google(tmp_path / "b")
    assert quick.run(*WORDS) == 0
    google.slow(2)
    assert google.run(*WORDS) == 0
    assert google.state == quick.state
    waited = [line for line in quick.said if " disable " in line or "policy-binding" in line]
    assert len(waited) == 6 and google.slept() == 6 * 2 * 5.0


def test_rights_that_google_never_gives_are_told_after_a_minute(tmp_path: Path) -> None:
    google = Google(tmp_path)
    google.slow(1000)
    assert google.run(*WORDS) == 1
    assert google.slept() == 60
    assert not [line for line in google.said if "add-iam-policy-binding" in line]


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
    google = Google(tmp_path)
    assert google.run(*words) == 2
    assert not google.said and not google.refused


def test_scripts_can_be_run() -> None:
    assert (ROOT / GCP_ACCOUNT).stat().st_mode & stat.S_IXUSR
