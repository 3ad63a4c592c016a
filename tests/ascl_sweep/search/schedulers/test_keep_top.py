"""Keep the best share, compared with counting by hand."""

import random

from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.search.schedulers.base import Decision
from tests.ascl_sweep.search.schedulers.runs import draws, stopper, tell


@given(draw=draws, share=st.sampled_from([0.1, 0.125, 0.29, 1 / 3, 0.999]))
def test_keep_top_keeps_the_best_share_of_those_seen(draw: random.Random, share: float) -> None:
    rule = stopper("keep_top", f"share={share},at=3")
    seen: list[float] = []
    for i in range(40):
        value = draw.choice([0.2, draw.random()])
        seen.append(value)
        better = sum(other > value for other in seen)
        enough = len(seen) * share >= 1 - 1e-9
        inside = better + 1 <= len(seen) * share + 1e-9
        assert not rule.decide(f"run{i}", 2, 0.0).stop
        assert rule.decide(f"run{i}", 3, value).stop == (enough and not inside)
        assert not rule.decide(f"run{i}", 4, 0.0).stop


def test_keep_top_keeps_a_whole_share_in_spite_of_rounding() -> None:
    assert 0.29 * 100 < 29
    rule = stopper("keep_top", "share=0.29,at=1")
    tell(rule, [(f"run{i}", 1, 0.9 if i < 28 else 0.1) for i in range(99)])
    assert not rule.decide("the 29th of 100", 1, 0.5).stop


def test_keep_top_gives_a_reason() -> None:
    rule = stopper("keep_top", "share=0.5,at=4", 10)
    assert not rule.decide("a", 4, 0.5).stop
    assert rule.decide("b", 4, 0.25) == Decision(
        stop=True,
        because="keep_top at epoch 4: kNN 25.0% is below 50.0%, the lowest of the best 1 of 2 runs",
    )
