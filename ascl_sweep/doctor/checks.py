"""The result of a check, and the checks shared by one machine and a cluster."""

import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascl_sweep.errors import ResourceError
from ascl_sweep.store.address import is_remote
from ascl_sweep.text import one_line

if TYPE_CHECKING:
    from ascl_sweep.runtime.cluster import Cluster
    from ascl_sweep.spec.sweep import SweepSpec
    from ascl_sweep.store.filesystem import StoreFiles


@dataclass(frozen=True)
class Check:
    """Result of one check; `way_out` tells how to fix it if `ok` is false."""

    what: str
    found: str
    ok: bool = True
    way_out: str = ""


@dataclass(frozen=True)
class Wants:
    """Datasets and store that every machine must have."""

    datasets: tuple[tuple[str, str], ...] = ()
    """Pairs of name and root folder."""
    store: str | None = None


def datasets_of(spec: "SweepSpec") -> list[tuple[str, str]]:
    """Return the name and root folder of each dataset that a sweep reads from disk."""
    base = spec.base_values
    names = {str(cell.changes.get("data.name", base["data.name"])) for cell in spec.cells()}
    if domain := spec.domains.get("data.name"):
        names |= set(map(str, domain.choice or ()))
    return [(name, str(base["data.root"])) for name in sorted(names - {"shapes"})]


def dataset_issue(name: str, root: str) -> str | None:
    """Return why a dataset cannot be read on this machine and how to fix it; None if it can."""
    from ascl.data.base import dataset_spec

    spec = dataset_spec(name)
    try:
        for split in ("train", "test"):
            spec.open(spec, Path(root).expanduser(), split)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def capacity_issues(spec: "SweepSpec", cluster: "Cluster") -> list[str]:
    """Return why runs of a sweep can never start, and how to fix it."""
    issues = []
    for resources in spec.resources.kinds():
        try:
            cluster.check(resources)
        except ResourceError as error:
            issues.append(str(error))
    return issues


def check_capacity(specs: Iterable["SweepSpec"], cluster: "Cluster") -> Iterator[Check]:
    """Check that the runs of each sweep fit on the cluster."""
    for spec in specs:
        if issues := capacity_issues(spec, cluster):
            yield Check(f"capacity for {spec.name}", "; ".join(issues), False)
        else:
            slots = max(map(cluster.count_slots, spec.resources.kinds()))
            yield Check(f"capacity for {spec.name}", f"up to {slots} runs at once")


def existing_part(store: str | None) -> Path:
    """Return the deepest existing folder of a local store; for a remote one, the folder of Ray."""
    if store is None or is_remote(store):
        return Path(tempfile.gettempdir())
    folder = Path(store).absolute()
    while not os.path.exists(folder):  # unlike Path.exists, False without permission
        folder = folder.parent
    return folder


def check_store(store: str, seen: str | None = None) -> Check:
    """Check that a store can be written and read from this machine.

    Writes a small file and deletes it, without creating the store's folder. `seen` is a file that
    the driver wrote to the store: this machine must see it too.
    """
    issue = None
    try:
        name = write_probe(store)
        if _files(store).read_text(name) is None:
            issue = "a file written there cannot be read back"
        elif seen is not None and _files(store).read_text(seen) is None:
            issue = "not shared: files that the driver writes there are not visible here"
        delete_probe(store, name)
    except (ValueError, OSError) as error:
        issue = getattr(error, "strerror", None) or one_line(error)
    fix = "check the address and the credentials (for s3://, AWS_PROFILE or the role of the nodes)"
    return Check(f"store {store}", issue or "writable", issue is None, fix)


def write_probe(store: str) -> str:
    """Write a small file to a store and return its name.

    In a remote store, a worker's role may write to `work/` only.
    """
    files = _files(store)
    name = f"{'work/' if files.folder is None else ''}.doctor-{secrets.token_hex(4)}"
    files.write(name, b"written by `ascl-sweep doctor`")
    return name


def delete_probe(store: str, name: str) -> None:
    _files(store).delete(name)


def _files(store: str) -> "StoreFiles":
    from ascl_sweep.store.filesystem import StoreFiles

    return StoreFiles(store) if is_remote(store) else StoreFiles(existing_part(store))


def check_dashboard(mode: str | None) -> Iterator[Check]:
    """Check that a dashboard responds and requires a token: its users can run code."""
    if mode is None:
        fix = 'install "ray[default]" on the head node and start it with --include-dashboard=true'
        yield Check("dashboard", "does not respond on the head node", False, fix)
        return
    yield Check("dashboard", "responds")
    found = "required" if mode == "token" else "not required: every client can run code"
    generate = "`ray get-auth-token --generate`, copy the token to all nodes"
    fix = f"run {generate} and start Ray with RAY_AUTH_MODE=token"
    yield Check("token", found, mode == "token", fix)
