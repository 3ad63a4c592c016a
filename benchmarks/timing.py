"""Time two things in turns and compare them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Ratio:
    """One line of the report: how much longer the peer takes than we do, or we than a floor."""

    what: str
    ours: float  # seconds
    peer: float
    goal: str
    speedup: bool = True  # the ratio is peer / ours; else ours / peer
    note: str = ""

    @property
    def value(self) -> float:
        return self.peer / self.ours if self.speedup else self.ours / self.peer


def in_turns(
    ours: Callable[[], float], peer: Callable[[], float], rounds: int
) -> tuple[float, float]:
    """Median times of two functions that each return the seconds of what they measured."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[0].append(ours())
        times[1].append(peer())
    return median(times[0]), median(times[1])


def timed(function: Callable[[], object], repeats: int = 1) -> Callable[[], float]:
    """A function that returns the mean seconds of `repeats` calls."""

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        return (time.perf_counter() - start) / repeats

    return measure
