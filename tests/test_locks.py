"""The lock files fix a version with hashes for every dependency, and name no index."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.paths import ROOT

LOCKS = {"requirements.lock": ("cluster",), "requirements-dev.lock": ("cluster", "dev")}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
PYTHONS = ("3.11.7", "3.12.3", "3.13.1")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def wanted(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """The project's own dependencies, with those of its extras."""
    optional = PROJECT["optional-dependencies"]
    for each in (*PROJECT["dependencies"], *(r for extra in extras for r in optional[extra])):
        requirement = Requirement(each)
        if requirement.name == PROJECT["name"]:
            yield from wanted(tuple(requirement.extras))
        else:
            yield requirement


def pins(name: str) -> Iterator[tuple[Requirement, list[str]]]:
    """The pinned packages of a lock file, with their hashes."""
    lines = re.sub(r"\\\n\s*", "", (ROOT / name).read_text("utf-8")).splitlines()
    for line in lines:
        if not line.startswith("#"):
            pin, *hashes = line.split(" --hash=")
            yield Requirement(pin), [f"--hash={each}".strip() for each in hashes]


def installed(name: str, python: str) -> dict[str, str]:
    """The versions that a lock file gives a Linux machine."""
    machine = {
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found: dict[str, str] = {}
    for pin, _ in pins(name):
        if pin.marker is None or pin.marker.evaluate(machine):
            assert canonicalize_name(pin.name) not in found
            [exact] = pin.specifier
            assert exact.operator == "=="
            found[canonicalize_name(pin.name)] = exact.version
    return found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_satisfies_every_dependency_of_the_project(name: str, python: str) -> None:
    locked = installed(name, python)
    for requirement in wanted(LOCKS[name]):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_a_hash_for_every_package_and_names_no_place(name: str) -> None:
    for pin, hashes in pins(name):
        assert pin.url is None and hashes
        assert all(HASH.fullmatch(each) for each in hashes)
    text = (ROOT / name).read_text("utf-8")
    assert not re.search(r"://|file:|--(extra-)?index|--find-links|--trusted|(^|\s)/\w", text)


def test_nodes_build_the_project_with_locked_packages_only() -> None:
    nodes = installed("requirements.lock", PYTHONS[0])
    needed = {Requirement(each).name for each in PYPROJECT["build-system"]["requires"]}
    assert needed | {"editables"} <= set(nodes), "pip install --no-build-isolation -e needs them"


def test_nodes_run_the_versions_that_were_tested() -> None:
    nodes, tested = (installed(name, PYTHONS[0]) for name in LOCKS)
    assert nodes.items() <= tested.items()
    for name in ("torch", "torchvision", "ray"):
        assert nodes[name] == version(name).partition("+")[0]
