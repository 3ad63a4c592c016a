"""Checks of one machine: packages, GPUs, disk, shared memory and datasets."""

import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from ascl_sweep import __version__
from ascl_sweep.doctor.checks import (
    Check,
    Wants,
    check_capacity,
    check_dashboard,
    check_store,
    dataset_issue,
    datasets_of,
    existing_part,
)
from ascl_sweep.errors import ResourceError
from ascl_sweep.executors.ray.cluster import connect_ray, cpus_here, read_cluster
from ascl_sweep.store.commit import read_commit
from ascl_sweep.text import one_line

if TYPE_CHECKING:
    from ascl_sweep.runtime.cluster import Cluster
    from ascl_sweep.spec.sweep import SweepSpec

PACKAGES = ("torch", "torchvision", "ray", "optuna", "pyarrow", "pydantic")
INSTALL = "run `pip install -e .` in a clone of the project"
DISK_BYTES, SHM_BYTES = 1e9, 1e8
DEVICES, SHM = Path("/dev"), Path("/dev/shm")
IMPORT_SECONDS = 300.0  # imports from a network disk are slow


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, packages and ascl-sweep; "" if one is not installed."""
    found, changed = read_commit()
    with suppress(PackageNotFoundError, ValueError, KeyError):  # the commit that pip cloned
        noted = json.loads(distribution("ascl-sweep").read_text("direct_url.json") or "{}")
        found = found or noted["vcs_info"]["commit_id"]
    changes = ", changed since" if changed else ""
    ours = f"{__version__} (commit {found[:7]}{changes})" if found else __version__
    versions = {"Python": platform.python_version()}
    for package in PACKAGES:
        versions[package] = ""
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions | {"ascl-sweep": ours}


def check_packages() -> list[Check]:
    """Check that each package is installed and can be imported."""
    versions = installed_versions()
    errors = import_errors([package for package in PACKAGES if versions[package]])
    errors |= {package: "not installed" for package in versions if not versions[package]}
    return [
        Check(package, errors.get(package, found), package not in errors, INSTALL)
        for package, found in versions.items()
    ]


def import_errors(packages: Sequence[str]) -> dict[str, str]:
    """Import each package in its own process, which may crash; return the errors by package."""
    with ThreadPoolExecutor() as pool:
        errors = dict(zip(packages, pool.map(_import_error, packages), strict=True))
    return {name: f"cannot be imported: {error}" for name, error in errors.items() if error}


def _import_error(package: str) -> str | None:
    command = [sys.executable, "-P", "-c", f"import {package}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"timed out after {IMPORT_SECONDS:g} s"
    if done.returncode == 0:
        return None
    text = done.stderr.decode(errors="replace").strip()
    if done.returncode < 0 or not text:  # killed by a signal, or no output
        return f"the process exited with code {done.returncode}"
    return text.splitlines()[-1]


def gpus_of_system() -> int:
    """Count the GPUs that this process may use, whether PyTorch sees them or not."""
    present = len(list(DEVICES.glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    names = takewhile(lambda name: name and name != "-1", map(str.strip, visible.split(",")))
    return min(present, len(list(names)))


def check_gpus(expected: float) -> Check:
    """Check that PyTorch sees as many GPUs as expected and that each of them works."""
    import torch

    build = f"PyTorch for CUDA {torch.version.cuda}" if torch.version.cuda else "PyTorch for CPU"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a faulty driver lowers the GPU count
        count = torch.cuda.device_count()
    if count < expected:
        fix = "install a PyTorch build that matches the NVIDIA driver (https://pytorch.org)"
        found = f"PyTorch sees {count} of {expected:g} ({build})"
        return Check("GPUs", found, False, fix)
    names = []
    for index in range(count):
        try:
            names.append(torch.cuda.get_device_name(index))
            ones = torch.ones(64, 64, device=f"cuda:{index}")
            if float((ones @ ones).sum()) != 64**3:
                raise RuntimeError("wrong result")
        except RuntimeError as error:
            if "out of memory" not in str(error):  # a running sweep may use the memory
                found = f"GPU {index} fails a matrix product: {one_line(error)}"
                return Check("GPUs", found, False, "see nvidia-smi")
    none = "none: runs train on the CPU (try --scale laptop)"
    return Check("GPUs", f"{', '.join(names) or none} ({build})")


def check_machine(wants: Wants, gpus: float) -> Iterator[Check]:
    """Check this machine, which must have PyTorch and this many GPUs."""
    yield check_gpus(gpus)
    yield Check("CPUs", str(cpus_here()))
    folder = existing_part(wants.store)
    free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
    found = f"{free / 1e9:.1f} GB free in {folder}" + ("" if writable else ", not writable")
    fix = "free disk space" if writable else "check its permissions"
    yield Check("disk", found, free > DISK_BYTES and writable, fix)
    if SHM.is_dir():
        free = shutil.disk_usage(SHM).free
        yield Check("shared memory", f"{free / 1e9:.1f} GB", free > SHM_BYTES, "enlarge /dev/shm")
    for name, root in wants.datasets:
        issue = dataset_issue(name, root)
        yield Check(f"dataset {name} in {root}", issue or "present", issue is None)


def check_this_machine(
    specs: Sequence["SweepSpec"], wants: Wants, *, start_ray: bool
) -> Iterator[Check]:
    """Check this machine for these sweeps and, with `start_ray`, that a private Ray starts."""
    packages = check_packages()
    yield from packages
    if not all(check.ok for check in packages):
        return  # the other checks need the packages
    yield from check_machine(replace(wants, store=wants.store or "results"), gpus_of_system())
    if wants.store is not None:
        yield check_store(wants.store)
    yield from check_capacity(specs, _this_machine())
    if not start_ray:
        return
    from ascl_sweep.executors.ray.probes import dashboard_authentication, dashboard_url

    try:
        with connect_ray(None, dashboard=True):
            cpus, devices = read_cluster(private=True).total()
            yield Check("Ray", f"starts, with {cpus:g} CPUs and {devices:g} GPUs")
            yield from check_dashboard(dashboard_authentication(dashboard_url()))
    except ResourceError as error:
        yield Check("Ray", str(error), False)


def require_here(specs: Sequence["SweepSpec"]) -> None:
    """Raise ResourceError if this machine lacks datasets, GPUs or CPUs; lists all of them."""
    if missing := missing_here(specs):
        raise ResourceError("\n".join(missing))


def missing_here(specs: Sequence["SweepSpec"]) -> list[str]:
    """Return everything that sweeps need and this machine lacks, one message each."""
    datasets = dict.fromkeys(pair for spec in specs for pair in datasets_of(spec))
    issues = [dataset_issue(name, root) for name, root in datasets]
    issues += [check.found for check in check_capacity(specs, _this_machine()) if not check.ok]
    return list(dict.fromkeys(filter(None, issues)))


def _this_machine() -> "Cluster":
    import torch

    from ascl_sweep.runtime.cluster import Cluster, Node

    return Cluster((Node("here", cpus_here(), torch.cuda.device_count()),))
