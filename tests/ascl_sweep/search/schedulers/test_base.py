"""Laws that hold for every scheduler: new, repeated, missing and audited values."""

import math
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.errors import UsageError
from ascl_sweep.search.schedulers.base import Decision, draws_audit, load_scheduler
from tests.ascl_sweep.search.schedulers.runs import (
    EPOCHS,
    NAMES,
    Told,
    arrivals,
    config,
    draws,
    stopper,
    tell,
)
from tests.paths import ROOT

cases = {
    "draw": draws,
    "name": st.sampled_from(NAMES),
    "runs": st.integers(1, 12),
    "every": st.sampled_from([1, 2, 5]),
    "audit": st.sampled_from([0.0, 0.3, 1.0]),
}


@given(**cases)
def test_reporting_a_result_twice_changes_neither_decisions_nor_rungs(
    draw: random.Random, name: str, runs: int, every: int, audit: float
) -> None:
    told = arrivals(draw, runs, every)
    once, often = stopper(name, audit=audit), stopper(name, audit=audit)
    answers: dict[Told, Decision] = {}
    for one in told:
        answers[one] = once.decide(*one)
        assert often.decide(*one) == answers[one]
        for repeated in draw.sample(sorted(answers), min(3, len(answers))):
            assert often.decide(*repeated) == answers[repeated]
    assert often.rungs == once.rungs


@given(**cases)
def test_rungs_hold_the_same_values_however_the_runs_were_mixed(
    draw: random.Random, name: str, runs: int, every: int, audit: float
) -> None:
    told = arrivals(draw, runs, every)
    live, rebuilt = stopper(name, audit=audit), stopper(name, audit=audit)
    stopped = set()
    recorded = []
    for run, epoch, value in told:
        if run not in stopped:
            recorded.append((run, epoch, value))
            if live.decide(run, epoch, value).stop:
                stopped.add(run)
    for i in draw.sample(range(runs), runs):  # run by run, as a store lists them
        tell(rebuilt, [one for one in recorded if one[0] == f"run{i}"])
    assert rebuilt.rungs == live.rungs


@pytest.mark.parametrize(
    ("name", "settings"), [("asha", "grace=1,factor=2"), ("keep_top", "share=0.5,at=4")]
)
def test_a_late_value_enters_the_rung_it_reached_and_none_it_jumped_over(
    name: str, settings: str
) -> None:
    rule = stopper(name, settings)
    rule.decide("late", 5, 0.5)
    rule.decide("late", 6, 0.6)
    entered = {rung: values for rung, values in rule.rungs.items() if values}
    assert entered == {4: {"late": 0.5}}
    rule.decide("late", 3, 0.3)  # a lost epoch that is trained again
    assert {rung: values for rung, values in rule.rungs.items() if values} == entered


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_has_diverged_and_ranks_nowhere(name: str, value: float | None) -> None:
    rule = stopper(name, audit=1.0)
    decision = rule.decide("a", 1, value)
    assert decision.stop and decision.diverged and not decision.audited
    assert (
        decision.because == f"diverged at epoch 1: kNN is {'missing' if value is None else value}"
    )
    assert not any(rule.rungs.values())
    assert rule.decide("a", 1, 0.5) == Decision(stop=False), "a successful retry continues"


@given(**cases)
def test_the_full_length_is_never_stopped(
    draw: random.Random, name: str, runs: int, every: int, audit: float
) -> None:
    rule = stopper(name, audit=audit)
    tell(rule, arrivals(draw, runs, every))
    before = rule.rungs
    assert not rule.decide("new", EPOCHS, -1.0).stop
    end = rule.decide("new", EPOCHS, math.nan)
    assert not end.stop and end.diverged
    assert rule.rungs == before


@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_of_one_epoch_stops_nothing(name: str) -> None:
    rule = stopper(name, "", 1)
    assert rule.stop_epochs == ()
    assert not any(rule.decide(f"run{i}", 1, -i).stop for i in range(9))


@given(**cases)
def test_runs_are_stopped_only_where_the_rule_looks(
    draw: random.Random, name: str, runs: int, every: int, audit: float
) -> None:
    rule = stopper(name, audit=audit)
    for run, epoch, value in arrivals(draw, runs):
        if rule.decide(run, epoch, value).because:
            assert epoch in rule.stop_epochs


# Audits.


def test_an_audited_run_continues_and_still_ranks() -> None:
    rule = stopper("asha", "grace=1,factor=2", 8, audit=1.0)
    tell(rule, [("good", epoch, 0.9) for epoch in (1, 2, 4)])
    first = rule.decide("bad", 1, 0.1)
    assert first == Decision(
        stop=False,
        because="continues as an audit; "
        "ASHA at epoch 1: kNN 10.0% is below 90.0%, the cut for the best half of 1 run",
        audited=True,
    )
    second = rule.decide("bad", 2, 0.1)
    assert second.audited and not second.stop and "at epoch 2" in second.because
    assert rule.decide("bad", 3, 0.1) == Decision(stop=False, audited=True)
    assert rule.decide("bad", 8, 0.1) == Decision(stop=False, audited=True)
    assert rule.rungs[1] == rule.rungs[2] == {"good": 0.9, "bad": 0.1}
    assert not rule.decide("good", 5, 0.9).audited


def test_an_audited_run_that_diverges_is_stopped() -> None:
    rule = stopper("asha", "grace=1,factor=2", 8, audit=1.0)
    tell(rule, [("good", 1, 0.9), ("bad", 1, 0.1)])
    decision = rule.decide("bad", 2, math.nan)
    assert decision.stop and decision.diverged and decision.audited


def test_a_stopped_run_that_is_reopened_for_an_audit_is_not_stopped_again() -> None:
    rule = stopper("asha", "grace=1,factor=2", 8)
    tell(rule, [("good", epoch, 0.9) for epoch in (1, 2, 4)])
    assert rule.decide("bad", 1, 0.1).stop
    before = rule.rungs
    rule.audit_run("bad", "too low")
    assert rule.is_audited("bad") and not rule.is_audited("good")
    expected = Decision(False, "continues as an audit; too low", audited=True)
    assert rule.decide("bad", 1, 0.1) == expected, "it trains again from the start"
    assert rule.rungs == before
    assert [rule.decide("bad", epoch, 0.1) for epoch in (2, 8)] == [expected, expected]
    diverged = rule.decide("bad", 5, math.nan)
    assert diverged.stop and diverged.diverged and diverged.audited


def test_the_audit_draws_its_share_by_the_run_id_alone() -> None:
    runs = [f"{i:016x}" for i in range(4000)]
    drawn = {run for run in runs if draws_audit(run, 0.05)}
    assert 0.04 < len(drawn) / len(runs) < 0.06
    assert drawn <= {run for run in runs if draws_audit(run, 0.2)}, "a larger share adds to it"
    assert not any(draws_audit(run, 0.0) for run in runs)
    assert all(draws_audit(run, 1.0) for run in runs)


@given(**cases)
def test_an_audit_changes_no_rung_and_only_turns_stops_into_marks(
    draw: random.Random, name: str, runs: int, every: int, audit: float
) -> None:
    told = arrivals(draw, runs, every)
    plain, audited = stopper(name), stopper(name, audit=audit)
    for one, without, with_ in zip(told, tell(plain, told), tell(audited, told), strict=True):
        let_through = without.stop and draws_audit(one[0], audit)
        assert with_.stop == (without.stop and not let_through)
        assert with_.audited or not let_through
    assert audited.rungs == plain.rungs


# Settings.


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("asha", "share=0.5", "asha has no option 'share'; it has grace and factor; try 'asha:"),
        ("asha", "grace", "got 'grace' in 'grace'; try 'asha:grace=10%,factor=3'"),
        ("asha", "grace=soon", "grace must be a share such as 10% or 0.1, got 'soon'; try 'asha:"),
        ("asha", "grace=0", "grace must be a whole number of epochs or a share of the epochs"),
        ("asha", "grace=101%", "got 1.01; try 'asha:grace=10%,factor=3'"),
        ("asha", "grace=inf%", "got 'inf%';"),
        ("asha", "grace=1e999999999%", "got '1e999999999%';"),
        ("asha", "grace=", "got '';"),
        ("asha", "factor=three", "factor must be a number, got 'three'"),
        ("asha", "factor=1", "factor must be greater than 1, got 1"),
        ("asha", "factor=nan", "factor must be a finite number, got nan"),
        ("keep_top", "share=2", "share must be a share from 0 to below 1"),
        ("keep_top", "share=0", "share must be above 0, got 0"),
        ("keep_top", "at=-1", "at must be a whole number of epochs"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_an_example(
    name: str, settings: str, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        config(name, settings)
    assert message in str(error.value)


def test_an_unknown_scheduler_is_refused_with_the_known_ones() -> None:
    known = "there are: asha, keep_top, median"
    with pytest.raises(UsageError, match=f"no scheduler named 'ashha' .did you.*; {known}"):
        load_scheduler("ashha")


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_that_looks_after_the_end_is_refused(name: str) -> None:
    start = load_scheduler(name).START
    with pytest.raises(UsageError, match=f"got {start}=31, epochs=30; try {start}=3"):
        stopper(name, f"{start}=31", 30)


@pytest.mark.parametrize("name", NAMES)
def test_every_scheduler_describes_itself(name: str) -> None:
    rule = load_scheduler(name)().in_epochs(50)
    assert rule.describe()
    assert set(rule.rungs(50)) <= set(rule.stop_epochs(50)) and rule.rungs(50)
    assert list(rule.stop_epochs(50)) == sorted(set(rule.stop_epochs(50)))
    assert rule.COMPARED and all(rule.parse(text) for text in rule.COMPARED.values())
    defaults = ",".join(f"{key}={value}" for key, value in rule.defaults().items())
    assert rule.parse(defaults) == rule.parse("") == load_scheduler(name)()


@given(percent=st.integers(1, 99), epochs=st.integers(1, 1000))
def test_a_percentage_is_the_nearest_epoch_and_at_least_the_first(
    percent: int, epochs: int
) -> None:
    for name in NAMES:
        start = config(name, f"{load_scheduler(name).START}={percent}%").in_epochs(epochs).start
        assert abs(start - percent * epochs / 100) <= 0.5 + 1e-9 or start == 1


def test_schedulers_load_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from ascl_sweep.search.schedulers.base import *\n"
        "for name in scheduler_names(): Stopper(load_scheduler(name)(), 5)\n"
        "assert not {'torch', 'ray', 'optuna'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
