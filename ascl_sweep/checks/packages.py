"""What is installed, whether it loads, and whether it is the same on all machines."""

import contextlib
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires, version

from ascl_sweep import __version__
from ascl_sweep.checks import Check
from ascl_sweep.commit import commit

PACKAGES = ("torch", "torchvision", "ray", "optuna", "pyarrow", "pydantic")
WAY_OUT = "`pip install -e .` in a clone of the project brings what it needs"
LOAD_SECONDS = 300.0  # from a network's disk
# In a process of its own: a library that does not fit its machine may end it, and Ray must not be
# loaded in ours yet. It says a line before each package, one if it has a fault, and a last one.
LOAD = """
import importlib, json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what packages print is not for us
for name in sys.argv[1:]:
    print(json.dumps([name, None, None]), file=out, flush=True)
    try:
        importlib.import_module(name)
    except BaseException as error:
        lacks = getattr(error, "name", None)
        print(json.dumps([name, str(error) or type(error).__name__, lacks]), file=out, flush=True)
print(json.dumps([None, None, None]), file=out, flush=True)
"""


def versions() -> dict[str, str]:
    """Of Python, packages and ourselves; of what is not installed, none."""
    found = {"Python": platform.python_version(), "ascl-sweep": _own_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _own_version() -> str:
    """Our version and commit, from the repository or from what pip noted when it cloned it."""
    found, changed = commit()
    with contextlib.suppress(PackageNotFoundError, ValueError, KeyError):
        noted = json.loads(distribution("ascl-sweep").read_text("direct_url.json") or "{}")
        found = found or noted["vcs_info"]["commit_id"]
    since = ", changed since" if changed else ""
    return f"{__version__} (commit {found[:7]}{since})" if found else __version__


def outdated(installed: Mapping[str, str]) -> dict[str, str]:
    """Packages of another version than we were installed with, and what we need."""
    from packaging.requirements import Requirement

    needed: list[Requirement] = []
    with contextlib.suppress(PackageNotFoundError):  # we are on a path, and pip knows nothing of us
        needed = [Requirement(line) for line in requires("ascl-sweep") or ()]
    return {
        need.name: f"will not do: ascl-sweep needs {need.specifier}"
        for need in needed
        if need.name in installed
        and (need.marker is None or need.marker.evaluate({"extra": ""}))
        and not need.specifier.contains(installed[need.name], prereleases=True)
    }


def unloadable(installed: Iterable[str]) -> dict[str, str]:
    """Packages that are there and do not load, and why; if for want of another, that one counts."""
    names = [package for package in PACKAGES if package in installed]
    words = [sys.executable, "-P", "-c", LOAD, *names]
    try:
        done = subprocess.run(words, capture_output=True, timeout=LOAD_SECONDS)
        said, end = done.stdout, f"it ends the process (code {done.returncode})"
    except subprocess.TimeoutExpired as late:
        said, end = late.stdout or b"", f"it takes over {LOAD_SECONDS:g} s"
    faults = {}
    name = None
    for line in said.decode(errors="replace").splitlines():
        name, fault, lacks = json.loads(line)
        if fault is not None and (lacks in names or lacks not in PACKAGES):
            faults[name] = f"does not load: {fault.strip().splitlines()[0]}"
    if name is not None:
        faults[name] = f"does not load: {end}"
    return faults


def of_versions(
    found: Mapping[str, Mapping[str, str | None]],
    faults: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Check]:
    """What is installed, by machine (there may be one alone), and what is wrong with it.

    Of what is not installed there is no version; one that is not to be compared is None.
    """
    return [
        _of_package(
            package,
            {
                place: version
                for place, installed in found.items()
                if (version := installed.get(package, "")) is not None
            },
            {place: why[package] for place, why in (faults or {}).items() if package in why},
        )
        for package in ("Python", *PACKAGES, "ascl-sweep")
    ]


def _of_package(package: str, found: Mapping[str, str], faults: Mapping[str, str]) -> Check:
    by_version = _turned(found)
    several = len(found) > 1
    if missing := by_version.get(""):
        where = f" on {_listed(missing)}" if several else ""
        return Check(package, f"not installed{where}", False, WAY_OUT)
    if faults:
        told = _turned({place: f"{found[place]} {why}" for place, why in faults.items()})
        each = (f"{why} on {_listed(at)}" if several else why for why, at in told.items())
        return Check(package, "; ".join(each), False, WAY_OUT)
    if len({v.partition("+")[0] for v in by_version}) > 1:
        # A build's suffix may differ: a head without GPU may have PyTorch for the CPU.
        differ = "; ".join(f"{v} on {_listed(places)}" for v, places in by_version.items())
        return Check(package, differ, False, "install the same everywhere")
    (one, *_) = by_version
    new = package != "Python" or tuple(map(int, one.split(".")[:2])) >= (3, 11)
    everywhere = f", the same on {len(found)} machines" if several else ""
    return Check(package, f"{one}{everywhere}", new, "needs 3.11 or later")


def _turned(found: Mapping[str, str]) -> dict[str, list[str]]:
    """Places by what was found there."""
    turned: dict[str, list[str]] = {}
    for place, what in found.items():
        turned.setdefault(what, []).append(place)
    return turned


def _listed(places: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(places) - most} more" if len(places) > most else ""
    return ", ".join(places[:most]) + rest
