"""Jobs to submit to a cluster's head node, and our keys in a cluster file."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascl.yaml_io import read_yaml
from ascl_sweep import __version__
from ascl_sweep.errors import UsageError
from ascl_sweep.spec.sweep import SweepSpec
from ascl_sweep.store.address import is_remote, refuse_password

NAME_LENGTH = 60  # a job's name is part of file names on the head node


@dataclass(frozen=True)
class Submission:
    """Job that executes `ascl-sweep run` on a cluster."""

    name: str
    """Job id; a number is appended if the same job was submitted before."""
    entrypoint: str
    files: Mapping[str, str]
    """Sweep files to upload; ascl-sweep itself is installed on the cluster."""


def build_submission(specs: Sequence[SweepSpec], store: str, options: Sequence[str]) -> Submission:
    """Build the job that runs these sweeps; its name contains a hash of its content."""
    files = {f"{spec.name}.yaml": spec.text for spec in specs}
    changes = [(spec.overrides, spec.scale) for spec in specs]
    content = json.dumps([sorted(files.items()), changes, store])
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    names = "-".join(spec.name for spec in specs)[:NAME_LENGTH]
    words = ["run", *files, *options, "--store", store, "--address", "auto", "--yes"]
    return Submission(f"{names}-{digest}", entrypoint(words), files)


def entrypoint(words: Sequence[str]) -> str:
    """Return a shell command for the head node that fails if its ascl-sweep version differs."""
    ours = shlex.quote(f"ascl-sweep {__version__}")
    problem = shlex.quote(
        "error: the submitting machine and the cluster must have the same ascl-sweep version, got"
    )
    hint = shlex.quote(f"install ascl-sweep {__version__} in setup_commands of the cluster file")
    message = f"echo {problem} {ours} and \"'$found';\" {hint}"
    check = f'found=$(ascl-sweep --version); test "$found" = {ours}'
    return f"{check} || {{ {message}; exit 4; }}; exec {shlex.join(['ascl-sweep', *words])}"


@dataclass(frozen=True)
class ClusterFile:
    """Keys of ascl-sweep in the `provider` section of a cluster file."""

    path: Path
    results: str | None
    """Store of the cluster's sweeps."""
    data: str | None
    """Folder of the datasets on the nodes."""

    @classmethod
    def read(cls, path: Path) -> "ClusterFile":
        tree, _ = read_yaml(path)
        provider = tree.get("provider") if isinstance(tree, Mapping) else None
        if not isinstance(provider, Mapping):
            raise UsageError(
                f"{path} is not a cluster file: it has no provider; see `ray up --help`"
            )
        results, data = provider.get("results"), provider.get("data")
        for key, value in (("results", results), ("data", data)):
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{path}: provider.{key} must be an address, got {value!r}")
        return cls(path, results, data)


def check_store(store: str | None) -> str:
    """Return the store's address; raises UsageError if it differs between machines."""
    hint = (
        "give --store s3://bucket/results (or provider.results in the cluster file), or an "
        "absolute path on a file system that all machines share"
    )
    if not store:
        raise UsageError(f"a submitted sweep needs a store; {hint}")
    refuse_password(store)
    if not is_remote(store) and not Path(store).is_absolute():
        raise UsageError(
            "a submitted sweep's store must be reachable from this machine and from the cluster, "
            f"got the relative path {store}, which would be a folder on the head node; {hint}"
        )
    return store
