"""Asking again: for what is away, and not for what is not there."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl import patience
from ascl.patience import patiently


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def away_until(self, end: float) -> float:
        self.calls += 1
        if self.now < end:
            raise OSError(errno.ECONNREFUSED, "away")
        return self.now


@given(st.floats(0, 500))
def test_what_comes_back_in_time_is_had_soon_after(away: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(patience, "time", clock)
        had = patiently(lambda: clock.away_until(away))
    assert away <= had <= away + patience.LONGEST_PAUSE
    assert clock.calls < 60, "it is not pestered"


def test_what_stays_away_is_given_up_with_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)
    with pytest.raises(OSError, match="away"):
        patiently(lambda: clock.away_until(1e9))
    assert patience.PATIENCE - patience.LONGEST_PAUSE <= clock.now <= patience.PATIENCE


def test_who_waits_says_so_once_and_who_does_not_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, said = Clock(), list[str]()
    monkeypatch.setattr(patience, "time", clock)
    patiently(lambda: clock.away_until(100), on_wait=lambda error: said.append(str(error)))
    assert clock.calls > 2 and said == ["[Errno 111] away"]
    with pytest.raises(OSError, match="away"):
        patiently(lambda: clock.away_until(200), seconds=0, on_wait=lambda e: said.append("again"))
    assert len(said) == 1


def test_what_is_not_there_is_not_waited_for() -> None:
    with pytest.raises(FileNotFoundError):
        patiently(Path("/nowhere/at/all").read_text)
