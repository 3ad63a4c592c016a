"""One machine: GPUs, CPUs, disk, memory, datasets; facts are gathered there and judged here."""

import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from ascl_sweep.checks import Check
from ascl_sweep.checks.packages import outdated, unloadable, versions
from ascl_sweep.checks.stores import existing
from ascl_sweep.cluster import cpus_here
from ascl_sweep.labels import one_line

DISK_BYTES, SHM_BYTES = 1e9, 1e8
DEVICES = Path("/dev")


@dataclass(frozen=True)
class Wants:
    """What a sweep will need of each machine, beside the code."""

    datasets: tuple[tuple[str, str], ...] = ()
    """Names and roots."""
    store: str | None = None


@dataclass(frozen=True)
class Gpu:
    name: str
    error: str | None
    """Why it does not compute, if it does not."""


@dataclass(frozen=True)
class Facts:
    """What was found on a machine."""

    versions: Mapping[str, str]
    """See `packages.versions`."""
    cuda: str | None
    """What PyTorch was built for."""
    gpus: tuple[Gpu, ...]
    cpus: int
    disk: tuple[str, int, bool]
    """A folder, the bytes that are free there, and whether we may write."""
    shm: int | None
    """Bytes free in /dev/shm, if there is such a thing."""
    datasets: Mapping[str, str | None] = field(default_factory=dict)
    """Of each dataset what is wrong with it."""
    old: Mapping[str, str] = field(default_factory=dict)
    """See `packages.outdated`."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """See `packages.unloadable`."""

    @property
    def faults(self) -> dict[str, str]:
        """Of packages why they will not do."""
        return {**self.old, **self.broken}

    def usable(self, *packages: str) -> bool:
        """Whether packages are there and load."""
        return all(one in self.versions and one not in self.broken for one in packages)


# ---------------------------------------------------------------- facts


def look(wants: Wants) -> Facts:
    """Gather the facts of the machine that this runs on."""
    installed = versions()
    broken = unloadable(installed)
    torch = "torch" in installed and "torch" not in broken  # else it may not survive the attempt
    cuda, gpus = _devices() if torch else (None, ())
    place = existing(wants.store)
    shm = Path("/dev/shm")
    datasets = wants.datasets if torch else ()
    return Facts(
        versions=installed,
        cuda=cuda,
        gpus=gpus,
        cpus=cpus_here(),
        disk=(str(place), shutil.disk_usage(place).free, os.access(place, os.W_OK)),
        shm=shutil.disk_usage(shm).free if shm.is_dir() else None,
        datasets={f"{name} in {root}": _dataset_fault(name, root) for name, root in datasets},
        old=outdated(installed),
        broken=broken,
    )


def _devices() -> tuple[str | None, tuple[Gpu, ...]]:
    """What PyTorch was built for, and the GPUs that it sees, each tried."""
    import torch

    def tried(index: int) -> Gpu:
        name = f"GPU {index}"
        try:
            name = torch.cuda.get_device_name(index)
            free, total = torch.cuda.mem_get_info(index)
            ones = torch.ones(64, 64, device=f"cuda:{index}")
            computed = float((ones @ ones).sum())
        except RuntimeError as error:
            if "out of memory" in str(error):  # a sweep that runs now may well fill it
                return Gpu(f"{name}, full now", None)
            return Gpu(name, one_line(error))
        right = computed == 64**3
        return Gpu(
            f"{name}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free",
            None if right else f"it computes {computed:g} for {64**3}",
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is wrong with the driver shows in how many it sees
        return torch.version.cuda, tuple(map(tried, range(torch.cuda.device_count())))


def _dataset_fault(name: str, root: str) -> str | None:
    from ascl.datasets import dataset_spec

    spec = dataset_spec(name)
    try:
        for split in ("train", "test"):
            spec.open(spec, Path(root).expanduser(), split)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def gpus_of_system() -> int:
    """How many there are for us, whether PyTorch can use them or not."""
    there = len(list(DEVICES.glob("nvidia[0-9]*")))
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return there
    names = takewhile(lambda name: name and name != "-1", map(str.strip, shown.split(",")))
    return min(there, len(list(names)))


# ---------------------------------------------------------------- what to make of them


def of_machine(facts: Facts, gpus: float, at: str = "") -> list[Check]:
    """What one machine is like; `gpus` is how many it should have."""
    place, free, writable = facts.disk
    found = [
        *([_of_gpus(facts, gpus, at)] if facts.usable("torch") else []),
        Check(f"{at}CPUs", str(facts.cpus)),
        Check(
            f"{at}disk",
            f"{free / 1e9:.1f} GB free in {place}" + ("" if writable else ", not ours to write"),
            free > DISK_BYTES and writable,
            "make room" if writable else "see its permissions",
        ),
    ]
    if facts.shm is not None:
        enough = facts.shm > SHM_BYTES
        shm = f"{facts.shm / 1e9:.1f} GB"
        found.append(Check(f"{at}shared memory", shm, enough, "enlarge /dev/shm"))
    for name, fault in facts.datasets.items():
        # The fault is a sentence with its own way out.
        found.append(Check(f"{at}dataset {name}", fault or "is there", fault is None))
    return found


def _of_gpus(facts: Facts, expected: float, at: str) -> Check:
    names = ", ".join(gpu.name for gpu in facts.gpus)
    build = f"PyTorch for CUDA {facts.cuda}" if facts.cuda else "PyTorch for the CPU only"
    what, found = f"{at}GPUs", f"{names or 'none'} ({build})"
    for gpu in facts.gpus:
        if gpu.error:
            return Check(what, f"{gpu.name} does not compute: {gpu.error}", False, "see nvidia-smi")
    if len(facts.gpus) < expected:
        return Check(
            what,
            f"PyTorch sees {len(facts.gpus)} of {expected:g} ({build})",
            False,
            "install a PyTorch build and an NVIDIA driver that go together (https://pytorch.org)",
        )
    if not facts.gpus:
        found = f"none: runs train on the CPU (try --scale laptop; {build})"
    return Check(what, found)
