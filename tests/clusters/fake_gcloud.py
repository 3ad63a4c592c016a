"""A fake gcloud with the commands that clusters/gcp-account.sh uses, run as a program:

    python fake_gcloud.py FOLDER words of gcloud

FOLDER holds its state: `state.json`, the existing resources; `said`, every call and its exit code.
Like the real one, it rejects unknown commands, creating what exists and changing what does not.
With a number in FOLDER/slow, each call that needs a new account or role first fails that often.
"""

import json
import re
import sys
from pathlib import Path

FLAGS = {  # of the SDK's own table of commands, those in use
    "services enable": "",
    "storage buckets describe": "",
    "storage buckets create": "location uniform-bucket-level-access public-access-prevention",
    "storage buckets update": "versioning lifecycle-file",
    "storage buckets add-iam-policy-binding": "member role condition",
    "compute networks describe": "",
    "compute networks create": "subnet-mode",
    "compute networks subnets describe": "region",
    "compute networks subnets create": "network region range",
    "compute firewall-rules describe": "",
    "compute firewall-rules create": "network direction allow "
    "source-ranges source-tags target-tags",
    "compute firewall-rules update": "source-ranges",
    "iam service-accounts describe": "",
    "iam service-accounts create": "",
    "iam service-accounts disable": "",
    "iam service-accounts add-iam-policy-binding": "member role",
    "iam roles describe": "",
    "iam roles create": "title permissions",
    "projects add-iam-policy-binding": "condition member role",
}
APIS = {
    "storage": "storage",
    "compute": "compute",
    "iam": "iam",
    "projects": "cloudresourcemanager",
}


class Refused(Exception):
    pass


def need(fact: object, sentence: str) -> None:
    if not fact:
        raise Refused(sentence)


def main(folder: Path, words: list[str]) -> None:
    state = folder / "state.json"
    there = json.loads(state.read_text()) if state.exists() else {}
    given = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    plain = [word for word in words if not word.startswith("--")]
    command = next((c for c in FLAGS if plain[: len(c.split())] == c.split()), "")
    need(command, "invalid choice")
    need("quiet" in given, "--quiet is required: there is no terminal")
    project = given.pop("project", "")
    need(project, "no project")
    del given["quiet"]
    need(set(given) <= set(FLAGS[command].split()), "unrecognized arguments")
    *kind, verb = command.split()
    names = plain[len(kind) + 1 :]
    if verb == "enable":
        there["apis"] = sorted({*there.get("apis", []), *names})
    else:
        need(f"{APIS[kind[0]]}.googleapis.com" in there.get("apis", []), "SERVICE_DISABLED")
        need(len(names) == 1, "one name")
        do(there, folder, project, " ".join(kind), verb, names[0], given)
    state.write_text(json.dumps(there, sort_keys=True))


def do(
    there: dict[str, dict[str, object]],
    folder: Path,
    project: str,
    kind: str,
    verb: str,
    name: str,
    given: dict[str, str],
) -> None:
    mail = f"@{project}.iam.gserviceaccount.com"
    if kind == "iam service-accounts":
        need(name.endswith(mail) == (verb != "create"), "a name to create, else an address")
        name = name if verb != "create" else name + mail
    place = f" in {given['region']}" if "region" in given else ""
    key = f"{kind} {name}{place}"
    if kind == "projects":
        there.setdefault(key, {})
    if verb == "create":
        need(key not in there, "already exists")
        network = given.get("network")
        need(not network or f"compute networks {network}" in there, "no such network")
        there[key] = dict(given)
        return
    need(key in there, "NOT_FOUND")
    if verb == "update":
        if "lifecycle-file" in given:
            given["lifecycle-file"] = Path(given["lifecycle-file"]).read_text()
        there[key].update(given)
    elif verb == "disable":
        wait(folder)
        there[key]["disabled"] = True
    elif verb == "add-iam-policy-binding":
        member = given["member"].removeprefix("serviceAccount:")
        need(f"iam service-accounts {member}" in there, "member does not exist")
        if own := re.fullmatch(rf"projects/{project}/roles/(\w+)", given["role"]):
            need(f"iam roles {own[1]}" in there, "no such role")
        wait(folder)
        there[key][f"{given['role']} for {member}"] = given.get("condition", True)


def wait(folder: Path) -> None:
    slow = folder / "slow"
    times = int(slow.read_text()) if slow.exists() else 0
    call = " ".join(["1", *sys.argv[2:]])
    failed = (folder / "said").read_text().splitlines().count(call)
    need(failed >= times, "does not exist (yet)")


if __name__ == "__main__":
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    code = 0
    try:
        main(folder, words)
    except Refused as refused:
        print(f"ERROR: (gcloud) {refused}", file=sys.stderr)
        code = 1
    with (folder / "said").open("a") as said:
        said.write(f"{code} {' '.join(words)}\n")
    sys.exit(code)
