"""Median rule: stop a run whose best value is below the median of the others' running means.

The decisions equal those of `MedianStoppingRule` in Ray 2.60. Ray's class cannot be used here: it
asks the Tune controller for pending trials, and it rejects values of a trial that it has stopped,
which occur in audits and after a restart.
"""

import statistics
from collections import defaultdict
from typing import ClassVar

from ascl_sweep.search.schedulers.base import Moment, SchedulerConfig, format_apart

FEWEST = 3  # other runs that the rule needs; Ray's default


class MedianConfig(SchedulerConfig):
    """Stop a run whose best value is below the median of the other runs' running means."""

    COMPARED: ClassVar = {"median, grace 10%": "grace=10%"}

    grace: Moment = 0.1
    """First epoch at which runs may be stopped: a number of epochs, or a share such as 10%.
    Default: 10%."""

    def build(self, epochs: int) -> "Median":
        return Median(int(self.grace))

    def stop_epochs(self, epochs: int) -> tuple[int, ...]:
        return tuple(range(int(self.grace), epochs))

    def rungs(self, epochs: int) -> tuple[int, ...]:
        return self.stop_epochs(epochs)[:1]  # runs may be stopped at every later epoch too

    def describe(self) -> str:
        return f"median rule, grace {self.grace} epochs"


class Median:
    """Keeps each run's best value, and its running mean since the grace epoch."""

    def __init__(self, grace: int) -> None:
        self.rungs: dict[float, dict[str, float]] = defaultdict(dict)
        self._grace = grace
        self._best: dict[str, float] = {}
        self._sums: dict[str, tuple[float, int]] = {}

    def tell(self, run_id: str, epoch: int, value: float) -> str:
        best = self._best[run_id] = max(value, self._best.get(run_id, value))
        if epoch < self._grace:
            return ""
        total, count = self._sums.get(run_id, (0.0, 0))
        total, count = self._sums[run_id] = total + value, count + 1
        others = list(self.rungs[epoch].values())
        # Rounding must not raise a mean above the run's best, or equal runs would all be stopped.
        self.rungs[epoch][run_id] = min(total / count, best)
        if len(others) < FEWEST or best >= (median := statistics.median(others)):
            return ""
        mine, cut = format_apart(best, median)
        return (
            f"median rule at epoch {epoch}: the best kNN so far, {mine}, is below {cut}, "
            f"the median of the means of {len(others)} other runs"
        )


Config = MedianConfig
