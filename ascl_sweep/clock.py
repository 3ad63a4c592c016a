"""Clocks that stay right when the machine's clock is set, back or forward, while a process runs."""

import time


def elapsed() -> float:
    """Return seconds of a clock that nothing sets and that includes suspended time if possible."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


_start = time.time() - elapsed()


def read_clock() -> None:
    """Read the machine's Unix time; call at the start of a driver, whose process may be old."""
    global _start
    _start = time.time() - elapsed()


def unix_time() -> float:
    """Return the Unix time when it was last read plus the time since.

    Within a driver, later times are larger and differences are durations, whatever happens to the
    machine's clock.
    """
    return _start + elapsed()
