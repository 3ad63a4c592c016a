"""Time two functions alternately and compare them."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median

Measure = Callable[[], float]
"""Function that does the work and returns the seconds of the part that counts."""


@dataclass(frozen=True)
class Ratio:
    """One row of the table: our time against a peer's, or against a lower bound."""

    what: str
    ours: float  # seconds
    peer: float
    goal: str
    speedup: bool = True  # report peer / ours; otherwise ours / peer
    note: str = ""

    @property
    def value(self) -> float:
        return self.peer / self.ours if self.speedup else self.ours / self.peer


def alternate(ours: Measure, peer: Measure, rounds: int) -> tuple[float, float]:
    """Call two measures alternately and return the median of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[0].append(ours())
        times[1].append(peer())
    return median(times[0]), median(times[1])


class SeparateProcesses:
    """Run each measure in a separate process, so that its side effects change no other measure."""

    def __enter__(self) -> "SeparateProcesses":
        self._stack = ExitStack()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, make: Callable[[], Measure]) -> Measure:
        """Make a measure in a new process; return a function that calls it there."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(make, there))
        process.start()
        there.close()
        self._stack.callback(process.join)
        self._stack.callback(here.close)  # closing the pipe ends the process

        def measure() -> float:
            here.send(None)
            seconds: float = here.recv()
            return seconds

        return measure


def _serve(make: Callable[[], Measure], requests: Connection) -> None:
    # A spawned process spawns its own children too: every loader worker would import PyTorch again.
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]
    measure = make()
    try:
        while True:
            requests.recv()
            requests.send(measure())
    except EOFError:
        pass


def timed(function: Callable[[], object], repeats: int = 1) -> Measure:
    """Make a measure of the mean seconds of `repeats` calls."""

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        return (time.perf_counter() - start) / repeats

    return measure
