"""ASHA (arXiv:1810.05934): at each rung, only the best 1/factor of the runs so far continue.

One bracket. A test checks that the decisions equal those of
`AsyncHyperBandScheduler(stop_last_trials=False)` in Ray 2.60.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from pydantic import Field

from ascl_sweep.search.schedulers.base import Moment, SchedulerConfig, format_apart
from ascl_sweep.text import plural

FEW = 4  # with fewer runs than 4 × factor, ASHA stops hardly any
PARTS: dict[float, str] = {2: "half", 3: "third", 4: "quarter", 8: "eighth"}


class AshaConfig(SchedulerConfig):
    """ASHA: at each rung, stop runs that are not among the best 1/factor so far."""

    COMPARED: ClassVar = {
        "ASHA, Ray's defaults (grace 1, factor 4)": "grace=1,factor=4",
        "ASHA, ours (grace 10%, factor 3)": "grace=10%,factor=3",
        "ASHA, grace 20%, factor 3": "grace=20%,factor=3",
        "ASHA, grace 10%, factor 2": "grace=10%,factor=2",
    }

    grace: Moment = 0.1
    """Epoch of the first rung: a number of epochs, or a share such as 10%. Default: 10%."""
    factor: float = Field(3, gt=1, le=1000)
    """One in `factor` runs passes a rung, and each rung is at `factor` times the epochs of the one
    before: above 1, at most 1000. Default: 3."""

    def build(self, epochs: int) -> "Asha":
        return Asha(self.milestones(epochs), self.factor)

    def milestones(self, epochs: int) -> list[float]:
        """Return grace × factor^k below the full length."""
        found = [float(self.grace)]
        while found[-1] < epochs:
            found.append(self.grace * self.factor ** len(found))
        return found[:-1]

    def stop_epochs(self, epochs: int) -> tuple[int, ...]:
        # With a factor below 2, two milestones may round up to one epoch, or to the last epoch.
        found = dict.fromkeys(math.ceil(milestone) for milestone in self.milestones(epochs))
        return tuple(epoch for epoch in found if epoch < epochs)

    def describe(self) -> str:
        return f"ASHA, grace {self.grace} epochs, factor {self.factor:g}, one bracket"

    def warnings(self, runs: int) -> Iterator[str]:
        if runs < FEW * self.factor:
            yield (
                f"ASHA saves little with {runs} runs because the first runs at a rung always pass; "
                f"use about {math.ceil(FEW * self.factor)} or more"
            )


class Asha:
    """Ranks runs by the value they had when they reached each rung."""

    def __init__(self, milestones: list[float], factor: float) -> None:
        self._milestones, self._factor = milestones, factor
        self.rungs: dict[float, dict[str, float]] = {milestone: {} for milestone in milestones}

    def tell(self, run_id: str, epoch: int, value: float) -> str:
        passed = bisect_right(self._milestones, epoch)
        if not passed or run_id in (rung := self.rungs[self._milestones[passed - 1]]):
            return ""
        others = list(rung.values())
        rung[run_id] = value
        if not others or value >= (cut := float(np.percentile(others, self._percentile))):
            return ""
        mine, needed = format_apart(value, cut)
        best = PARTS.get(self._factor, f"{1 / self._factor:.0%}")
        return (
            f"ASHA at epoch {epoch}: kNN {mine} is below {needed}, "
            f"the cut for the best {best} of {plural(len(others), 'run')}"
        )

    @property
    def _percentile(self) -> float:
        return (1 - 1 / self._factor) * 100


Config = AshaConfig
