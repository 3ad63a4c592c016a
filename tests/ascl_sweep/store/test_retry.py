"""Retry while a store is unreachable, but not if a file does not exist."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.store import retry as module
from ascl_sweep.store.retry import LONGEST_PAUSE, PATIENCE, retry


class Clock:
    """Clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = self.back = 0.0
        self.calls = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def unreachable_until(self, end: float) -> float:
        self.calls += 1
        if self.now < end:
            raise OSError(errno.ECONNREFUSED, "unreachable")
        return self.now


@given(st.floats(0, 500))
def test_what_comes_back_in_time_is_had_soon_after(away: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(module, "time", clock)
        had = retry(lambda: clock.unreachable_until(away))
    assert away <= had <= away + LONGEST_PAUSE
    assert clock.calls < 60, "the calls are spaced out"


def test_what_stays_away_is_given_up_with_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with pytest.raises(OSError, match="unreachable"):
        retry(lambda: clock.unreachable_until(1e9))
    assert PATIENCE - LONGEST_PAUSE <= clock.now <= PATIENCE


def test_who_waits_says_so_once_and_who_does_not_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, said = Clock(), list[str]()
    monkeypatch.setattr(module, "time", clock)
    retry(lambda: clock.unreachable_until(100), on_wait=lambda error: said.append(str(error)))
    assert clock.calls > 2 and said == ["[Errno 111] unreachable"]
    with pytest.raises(OSError, match="unreachable"):
        retry(
            lambda: clock.unreachable_until(200), seconds=0, on_wait=lambda e: said.append("again")
        )
    assert len(said) == 1


def test_what_is_not_there_is_not_waited_for() -> None:
    with pytest.raises(FileNotFoundError):
        retry(Path("/nowhere/at/all").read_text)
