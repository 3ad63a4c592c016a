"""What is installed, and whether it is the same on all machines."""

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version

from ascl_sweep import __version__
from ascl_sweep.checks import Check

PACKAGES = ("torch", "torchvision", "ray", "optuna", "pyarrow", "pydantic")


def versions() -> dict[str, str]:
    """Of Python, packages and ourselves; of what is not installed, none."""
    found = {"Python": platform.python_version(), "ascl-sweep": _own_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _own_version() -> str:
    """Our version and commit, from the repository or from what pip noted when it cloned it."""
    from ascl_sweep.rows import provenance

    facts = provenance()
    commit = facts["commit"]
    with contextlib.suppress(PackageNotFoundError, ValueError, KeyError):
        noted = json.loads(distribution("ascl-sweep").read_text("direct_url.json") or "{}")
        commit = commit or noted["vcs_info"]["commit_id"]
    changed = ", changed since" if facts["dirty"] else ""
    return f"{__version__} (commit {commit[:7]}{changed})" if commit else __version__


def of_versions(found: Mapping[str, Mapping[str, str]]) -> list[Check]:
    """What is installed, by machine; there may be one alone."""
    checks = []
    for package in ("Python", *PACKAGES, "ascl-sweep"):
        by_version: dict[str, list[str]] = {}
        for place, installed in found.items():
            by_version.setdefault(installed.get(package, ""), []).append(place)
        if missing := by_version.pop("", None):
            where = f" on {_listed(missing)}" if len(found) > 1 else ""
            checks.append(Check(package, f"not installed{where}", False, "pip install ascl-sweep"))
        elif len({v.partition("+")[0] for v in by_version}) > 1:
            # A build's suffix may differ: a head without GPU may have PyTorch for the CPU.
            differ = "; ".join(f"{v} on {_listed(places)}" for v, places in by_version.items())
            checks.append(Check(package, differ, False, "install the same everywhere"))
        else:
            (one, *_) = by_version
            new = package != "Python" or tuple(map(int, one.split(".")[:2])) >= (3, 11)
            everywhere = f", the same on {len(found)} machines" if len(found) > 1 else ""
            checks.append(Check(package, f"{one}{everywhere}", new, "needs 3.11 or later"))
    return checks


def _listed(places: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(places) - most} more" if len(places) > most else ""
    return ", ".join(places[:most]) + rest
