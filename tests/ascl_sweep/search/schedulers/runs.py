"""Parallel runs for the tests of schedulers."""

import random

from hypothesis import strategies as st

from ascl_sweep.search.schedulers.base import (
    Decision,
    SchedulerConfig,
    Stopper,
    load_scheduler,
    scheduler_names,
)

EPOCHS = 12
NAMES = scheduler_names()
Told = tuple[str, int, float]
draws = st.builds(random.Random, st.integers(0, 10**6))
SETTINGS = {
    "asha": "grace=2,factor=2",
    "median": "grace=2",
    "keep_top": "share=0.25,at=3",
}


def config(name: str, settings: str | None = None) -> SchedulerConfig:
    return load_scheduler(name).parse(SETTINGS.get(name, "") if settings is None else settings)


def stopper(
    name: str, settings: str | None = None, epochs: int = EPOCHS, audit: float = 0.0
) -> Stopper:
    return Stopper(config(name, settings), epochs, audit)


def arrivals(draw: random.Random, runs: int, every: int = 1, epochs: int = EPOCHS) -> list[Told]:
    """Values of parallel runs: interleaved across runs, in order within each run."""
    order = [run for run in range(runs) for _ in range(every, epochs + 1, every)]
    draw.shuffle(order)
    reached = dict.fromkeys(range(runs), 0)
    told = []
    for run in order:
        reached[run] += every
        value = draw.choice([0.25, 0.5, 0.75, draw.randrange(1024) / 1024])  # with ties; sums exact
        told.append((f"run{run}", reached[run], value))
    return told


def tell(stopper: Stopper, told: list[Told]) -> list[Decision]:
    return [stopper.decide(*one) for one in told]
