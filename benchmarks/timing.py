"""Time two things in turns and compare them."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median

Measure = Callable[[], float]
"""Does something and returns the seconds that count of it."""


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


def in_turns(ours: Measure, peer: Measure, rounds: int) -> tuple[float, float]:
    """Median times of two functions that each return the seconds of what they measured."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[0].append(ours())
        times[1].append(peer())
    return median(times[0]), median(times[1])


class Apart:
    """Measures in processes of their own, so that what one does to its process helps no other."""

    def __enter__(self) -> "Apart":
        self._stack = ExitStack()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, make: Callable[[], Measure]) -> Measure:
        """Have a new process make a measure; what is returned asks it to measure."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(make, there))
        process.start()
        there.close()
        self._stack.callback(process.join)
        self._stack.callback(here.close)  # which ends it

        def measure() -> float:
            here.send(None)
            seconds: float = here.recv()
            return seconds

        return measure


def _serve(make: Callable[[], Measure], asked: Connection) -> None:
    # Or a loader's workers would start as this process did, each loading PyTorch anew.
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]
    measure = make()
    try:
        while True:
            asked.recv()
            asked.send(measure())
    except EOFError:
        pass


def timed(function: Callable[[], object], repeats: int = 1) -> Measure:
    """A function that returns the mean seconds of `repeats` calls."""

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        return (time.perf_counter() - start) / repeats

    return measure
