"""The estimate of false stops, against populations whose full-length scores are known."""

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.analysis.false_stops import FEWEST, FalseStops, estimate_false_stops
from ascl_sweep.spec.selection import RankedTrial, choose_finalists, rank_trials


def trial(name: str, score: float, *, complete: bool = True, epochs: int = 9) -> RankedTrial:
    return RankedTrial(name, complete, epochs, score)


def estimate(rng: random.Random, runs: int, places: int) -> tuple[int, FalseStops]:
    """The true number of false stops of a simulated search, and its estimate."""
    scores = {f"r{i}": rng.random() for i in range(runs)}
    early = sorted(scores, key=lambda run: scores[run] + rng.gauss(0, 0.5))
    stopped, kept = early[: 2 * runs // 3], early[2 * runs // 3 :]
    cut = sorted((scores[run] for run in kept), reverse=True)[places - 1]
    audited = rng.sample(stopped, rng.choice([2, 3, 5]))
    complete = [trial(run, scores[run]) for run in (*kept, *audited)]
    found = estimate_false_stops(complete, audited, diverged=0, stopped=len(stopped), places=places)
    assert found is not None
    return sum(scores[run] > cut for run in stopped), found


@pytest.mark.parametrize("places", [1, 3])
def test_the_estimate_is_unbiased_and_its_interval_covers(places: int) -> None:
    rng = random.Random(0)
    found = [estimate(rng, 24, places) for _ in range(500)]
    true = fmean(count for count, _ in found)
    estimated = fmean(one.false / one.audited * one.stopped for _, one in found)
    assert estimated == pytest.approx(true, rel=0.15)
    inside = [
        e.rate.low <= n / e.stopped + 1e-9 and n / e.stopped <= e.rate.high + 1e-9 for n, e in found
    ]
    assert fmean(inside) >= 0.95


def test_fewer_than_two_audited_runs_estimate_nothing() -> None:
    one = [trial("a", 0.9), trial("b", 0.5)]
    assert estimate_false_stops(one, {"b"}, diverged=0, stopped=9, places=1) is None
    found = estimate_false_stops(one, {"b"}, diverged=1, stopped=9, places=1)
    assert found and (found.audited, found.false) == (FEWEST, 0)
    assert found.lost == 0 and found.lost_interval.high > 0


def test_if_every_stopped_run_is_audited_nothing_is_unknown() -> None:
    trials = [trial("a", 0.6), trial("b", 0.9), trial("c", 0.5)]
    found = estimate_false_stops(trials, {"b", "c"}, diverged=0, stopped=2, places=1)
    assert found and found.false == 1
    assert found.rate.low == found.rate.high == 0.5
    assert found.lost_interval.low == found.lost_interval.high == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 3)), max_size=12))
def test_the_ranking_does_not_depend_on_the_order_of_the_trials(
    given_: list[tuple[bool, int, int]],
) -> None:
    trials = [
        trial(f"r{i}", score, complete=complete, epochs=epochs)
        for i, (complete, epochs, score) in enumerate(given_)
    ]
    ranked = rank_trials(trials)
    assert rank_trials(reversed(trials)) == ranked
    assert [t.complete for t in ranked] == sorted((t.complete for t in trials), reverse=True)
    if trials:
        base = trials[-1].run_id
        chosen = choose_finalists(trials, 2, base)
        assert base in chosen and len(chosen) <= 3 and chosen[:2] == [t.run_id for t in ranked[:2]]
