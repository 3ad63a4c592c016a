"""Keep the best share: stop a run that is not among the best seen so far at one epoch."""

import math
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from ascl_sweep.search.schedulers.base import Moment, SchedulerConfig, Share, format_apart
from ascl_sweep.text import plural


def _check_positive(value: float) -> float:
    if value == 0:
        raise ValueError("must be above 0, got 0")
    return value


class KeepTopConfig(SchedulerConfig):
    """At one epoch, stop every run that is not among the best share of the runs seen there."""

    START = "at"
    COMPARED: ClassVar = {
        "best eighth at 20%": "share=0.125,at=20%",
        "best quarter at 20%": "share=0.25,at=20%",
    }

    share: Annotated[Share, AfterValidator(_check_positive)] = 0.125
    """Share of the runs that continue: above 0 and below 1, or a percentage. Default: 0.125."""
    at: Moment = 0.2
    """Epoch of the selection: a number of epochs, or a share such as 20%. Default: 20%."""

    def build(self, epochs: int) -> "KeepTop":
        return KeepTop(self.share, int(self.at))

    def stop_epochs(self, epochs: int) -> tuple[int, ...]:
        return (int(self.at),) if self.at < epochs else ()

    def describe(self) -> str:
        return f"keep the best {100 * self.share:.3g}% at epoch {self.at}"


class KeepTop:
    """Ranks each run by its first value at or after the selection epoch."""

    def __init__(self, share: float, at: int) -> None:
        self._share, self._at = share, at
        self._seen: dict[str, float] = {}
        self.rungs = {float(at): self._seen}

    def tell(self, run_id: str, epoch: int, value: float) -> str:
        if epoch < self._at or run_id in self._seen:
            return ""
        self._seen[run_id] = value
        # Until 1 / share runs have been seen, `kept` is 0 and no run is stopped.
        kept = math.floor(self._share * len(self._seen) + 1e-9)
        if not kept or value >= (cut := sorted(self._seen.values())[-kept]):
            return ""
        mine, needed = format_apart(value, cut)
        return (
            f"keep_top at epoch {epoch}: kNN {mine} is below {needed}, "
            f"the lowest of the best {kept} of {plural(len(self._seen), 'run')}"
        )


Config = KeepTopConfig
