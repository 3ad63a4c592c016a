"""Process memory: keep freed memory for the next training step, and measure the peak of a run."""

import contextlib
import ctypes
import platform
import sys
from pathlib import Path

import torch

# Parameters of glibc's mallopt(3), and their largest values.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
_ABOVE = 2**30


def keep_freed() -> None:
    """Make glibc keep freed memory in a training process; do nothing with another C library.

    By default glibc returns large freed blocks to the system. A CPU training step frees and
    reallocates most of a gigabyte, and the system clears its pages again each time. Keeping the
    memory saves a tenth of the step time (`python -m benchmarks step`).
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _ABOVE)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)


def reset_peak(device: torch.device) -> None:
    """Reset the peak that `peak_gb` reports. Supported on CUDA, and for the CPU on Linux."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    if platform.libc_ver()[0] == "glibc":
        # Return the memory that glibc kept from an earlier run of this process.
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # if forbidden, the peak is that since the process started
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM to VmRSS


def peak_gb(device: torch.device) -> float | None:
    """Return the peak memory since `reset_peak` in 10⁹ bytes; None if it is not available.

    On CUDA, this is the memory of tensors. On the CPU, it is the memory of the whole process,
    including libraries and images; where the reset is not supported, since the process started.
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
    return largest * (1 if sys.platform == "darwin" else 1024) / 1e9  # macOS: bytes; Linux: kB
