"""The number of threads follows the cores that other processes leave."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ascl.threads import INTERVAL, LONGEST, StepThreads, seconds_waited


class Machine:
    """Cores, of which other processes use some; each second, threads wait if they lack cores."""

    def __init__(self, cores: int, others: int = 0) -> None:
        self.cores, self.others = cores, others
        self.now = self.waited = 0.0
        self.threads = StepThreads(cores, waited=lambda: self.waited, clock=lambda: self.now)

    def run(self, seconds: float) -> list[int]:
        """Train for some seconds; return the number of threads in each of them."""
        seen = []
        for _ in range(int(seconds)):
            self.now += INTERVAL
            running = self.threads.number + self.others
            share = min(1.0, self.cores / running)
            self.waited += self.threads.number * (1 - share) * INTERVAL
            self.threads.adapt()
            seen.append(self.threads.number)
        return seen


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Numbers of threads that were set, so that a test does not change its process."""
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    return numbers


def test_an_idle_machine_keeps_all_threads(chosen: list[int]) -> None:
    assert set(Machine(8).run(100)) == {8}
    assert chosen == []


@pytest.mark.parametrize("cores", [2, 4, 8, 64])
def test_beside_one_busy_process_per_core_few_threads_remain(cores: int) -> None:
    *_, number = Machine(cores, others=cores).run(30)
    assert number <= max(1, cores // 2)


def test_two_threads_beside_two_busy_processes_become_one_at_once() -> None:
    assert set(Machine(2, others=2).run(60)) == {1}


def test_one_busy_process_of_eight_costs_one_or_two_threads() -> None:
    seen = Machine(8, others=1).run(60)
    assert min(seen[1:]) >= 6 and seen.count(8) < 10


def test_all_threads_are_back_when_the_machine_is_idle_again() -> None:
    machine = Machine(2, others=2)
    machine.run(100)
    machine.others = 0
    assert machine.run(LONGEST + 1)[-1] == 2


def test_more_threads_are_tried_ever_more_rarely() -> None:
    """One thread beside one busy process never waits, but two threads would."""
    seen = Machine(2, others=1).run(400)
    assert seen[:100].count(2) > seen[-100:].count(2)
    assert seen[-100:].count(2) <= 2


@pytest.mark.parametrize("most", [1, 4])
def test_nothing_changes_with_one_thread_or_without_statistics(
    most: int, chosen: list[int]
) -> None:
    def waited() -> float | None:
        return None if most > 1 else 1e9 * now

    now = 0.0
    threads = StepThreads(most, waited=waited, clock=lambda: now)
    for _ in range(10):
        now += INTERVAL
        threads.adapt()
    assert chosen == [] and threads.number == most


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no scheduler statistics")
def test_this_process_has_waited_for_some_time_and_never_less_than_before() -> None:
    before = seconds_waited()
    sum(range(100_000))
    after = seconds_waited()
    assert before is not None and after is not None and 0 <= before <= after
