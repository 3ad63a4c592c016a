"""One machine: GPUs, CPUs, disk, memory, datasets; facts are gathered there and judged here."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ascl_sweep.checks import Check
from ascl_sweep.checks.packages import versions
from ascl_sweep.checks.stores import existing
from ascl_sweep.cluster import cpus_here

DISK_BYTES, SHM_BYTES = 1e9, 1e8


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


# ---------------------------------------------------------------- facts


def look(wants: Wants) -> Facts:
    """Gather the facts of the machine that this runs on."""
    place = existing(wants.store)
    shm = Path("/dev/shm")
    cuda, gpus = _devices()
    return Facts(
        versions=versions(),
        cuda=cuda,
        gpus=gpus,
        cpus=cpus_here(),
        disk=(str(place), shutil.disk_usage(place).free, os.access(place, os.W_OK)),
        shm=shutil.disk_usage(shm).free if shm.is_dir() else None,
        datasets={f"{n} in {root}": _dataset_fault(n, root) for n, root in wants.datasets},
    )


def _devices() -> tuple[str | None, tuple[Gpu, ...]]:
    try:
        import torch
    except ImportError:
        return None, ()

    def tried(index: int) -> Gpu:
        name = torch.cuda.get_device_name(index)
        try:
            ones = torch.ones(64, 64, device=f"cuda:{index}")
            total = float((ones @ ones).sum())
        except torch.OutOfMemoryError:  # a sweep that runs now may well fill it
            return Gpu(f"{name}, full now", None)
        except RuntimeError as error:
            return Gpu(name, str(error).strip().splitlines()[0])
        return Gpu(name, None if total == 64**3 else f"it computes {total:g} for {64**3}")

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
    """How many there are, whether PyTorch can use them or not."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


# ---------------------------------------------------------------- what to make of them


def of_machine(facts: Facts, gpus: float, at: str = "") -> list[Check]:
    """What one machine is like; `gpus` is how many it should have."""
    place, free, writable = facts.disk
    found = [
        _of_gpus(facts, gpus, at),
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
