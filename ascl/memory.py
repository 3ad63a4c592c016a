"""The process's memory: what a training step frees is kept for the next one."""

import ctypes
import platform

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
