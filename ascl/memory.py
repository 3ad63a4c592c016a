"""The process's memory: what a training step frees is kept for the next one; the peak of a run."""

import contextlib
import ctypes
import platform
import sys
from pathlib import Path

import torch

# Parameters of glibc's mallopt(3), and the largest values it takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
_ABOVE = 2**30


def keep_freed() -> None:
    """Have glibc keep what is freed, for a process that trains; with another C library, nothing.

    By default glibc hands large blocks back to the system when they are freed. A step on the CPU
    frees and asks for the same ones again: most of a gigabyte, whose pages the system clears anew
    each time. That is a tenth of the step (`python -m benchmarks step`).
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _ABOVE)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)


def reset_peak(device: torch.device) -> None:
    """Have `peak_gb` count from here on, where the system can: CUDA, and Linux on the CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    if platform.libc_ver()[0] == "glibc":
        # What an earlier run of this process has freed and kept is none of this one's.
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # without it, the peak is that of the process's whole life
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): VmHWM starts from VmRSS again


def peak_gb(device: torch.device) -> float | None:
    """The most memory in use since `reset_peak`, in 10⁹ bytes; None where the system does not say.

    On CUDA what tensors took. On the CPU all of the process, libraries and images included: since
    the reset on Linux, elsewhere, and where Linux forbids the reset, since the process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    if device.type != "cpu":
        return None
    try:
        status = Path("/proc/self/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024 / 1e9
    except (OSError, ValueError):
        return _peak_of_process()


def _peak_of_process() -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest * (1 if sys.platform == "darwin" else 1024) / 1e9  # there in bytes, else in kB
