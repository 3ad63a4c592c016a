"""Number of threads of a training step on a CPU: fewer while other processes use the cores.

Each operation of a step ends when its slowest thread has finished, and other threads wait for it.
If another process has a thread's core, a step on two cores runs at a fifth of its speed, slower
than with one thread (`python -m benchmarks busy`). Another number of threads changes rounding.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

INTERVAL = 1.0  # seconds between two checks
LONGEST = 64.0  # seconds until more threads are tried again, after repeated failures
BUSY, IDLE = 0.25, 0.05  # cores that the threads waited for


def seconds_waited() -> float | None:
    """Return how long this process's threads have waited for a core; None if it is unknown."""
    try:
        tasks = Path("/proc/self/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9
    except (OSError, IndexError):  # not Linux, or a kernel without scheduler statistics
        return None


@dataclass
class StepThreads:
    """Adapts the number of threads to the cores that other processes leave."""

    most: int
    """Number of threads on an idle machine."""
    waited: Callable[[], float | None] = seconds_waited
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.number = self.most
        self._patience = INTERVAL
        self._start()

    def _start(self) -> None:
        self._since, self._waited = self.clock(), self.waited()
        self._changed = self._since

    def adapt(self) -> None:
        """Check the machine if it is time to, and set the number of threads. Call it each step."""
        if self.most == 1 or self._waited is None:
            return
        now = self.clock()
        if now - self._since < INTERVAL:
            return
        waited = self.waited()
        if waited is None:
            return
        cores = (waited - self._waited) / (now - self._since)
        self._since, self._waited = now, waited
        number = self._choose(cores, now - self._changed)
        if number != self.number:
            self.number, self._changed = number, now
            torch.set_num_threads(number)

    def _choose(self, cores: float, since_change: float) -> int:
        """Return the number of threads, given the number of cores that they waited for."""
        if cores > BUSY and self.number > 1:
            if self.number == self.most and since_change < 2 * INTERVAL:  # it was tried too early
                self._patience = min(2 * self._patience, LONGEST)
            return max(1, self.number - math.ceil(cores - BUSY))
        if cores < IDLE and self.number < self.most and since_change >= self._patience:
            return self.most
        if self.number == self.most and since_change >= LONGEST:
            self._patience = INTERVAL
        return self.number
