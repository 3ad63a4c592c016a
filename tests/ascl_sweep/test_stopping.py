"""Laws of early stopping; Ray's own schedulers, and the rules written as loops, are the measure."""

import math
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.stopping import KINDS, Decision, Kind, Rule, Stopper, draws_audit

EPOCHS = 12
NEVER = 0.0  # an audit share
Told = tuple[str, int, float]
draws = st.builds(random.Random, st.integers(0, 10**6))


def rule(kind: Kind, audit: float = NEVER) -> Rule:
    return Rule(kind, grace=2, factor=2, share=0.25, at=3, audit=audit)


def arrivals(draw: random.Random, runs: int, every: int = 1, epochs: int = EPOCHS) -> list[Told]:
    """Values of runs that train side by side: mixed among runs, in order within each."""
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


cases = {
    "draw": draws,
    "kind": st.sampled_from(KINDS),
    "runs": st.integers(1, 12),
    "every": st.sampled_from([1, 2, 5]),
    "audit": st.sampled_from([0.0, 0.3, 1.0]),
}


# What is told, and told again.


@given(**cases)
def test_telling_again_changes_neither_answers_nor_rungs(
    draw: random.Random, kind: Kind, runs: int, every: int, audit: float
) -> None:
    told = arrivals(draw, runs, every)
    once, often = Stopper(rule(kind, audit), EPOCHS), Stopper(rule(kind, audit), EPOCHS)
    answers: dict[Told, Decision] = {}
    for one in told:
        answers[one] = once.decide(*one)
        assert often.decide(*one) == answers[one]
        for repeated in draw.sample(sorted(answers), min(3, len(answers))):
            assert often.decide(*repeated) == answers[repeated]
    assert often.rungs == once.rungs


@given(**cases)
def test_rungs_hold_the_same_values_however_the_runs_were_mixed(
    draw: random.Random, kind: Kind, runs: int, every: int, audit: float
) -> None:
    told = arrivals(draw, runs, every)
    live, rebuilt = Stopper(rule(kind, audit), EPOCHS), Stopper(rule(kind, audit), EPOCHS)
    stopped = set()
    recorded = []
    for run, epoch, value in told:
        if run not in stopped:
            recorded.append((run, epoch, value))
            if live.decide(run, epoch, value).stop:
                stopped.add(run)
    for i in draw.sample(range(runs), runs):  # run by run, as a ledger lists them
        tell(rebuilt, [one for one in recorded if one[0] == f"run{i}"])
    assert rebuilt.rungs == live.rungs


@pytest.mark.parametrize("kind", ["asha", "keep_top"])
def test_a_late_value_enters_the_rung_it_reached_and_none_it_jumped_over(kind: Kind) -> None:
    stopper = Stopper(Rule(kind, grace=1, factor=2, share=0.5, at=4, audit=NEVER), EPOCHS)
    stopper.decide("late", 5, 0.5)
    stopper.decide("late", 6, 0.6)
    entered = {rung: values for rung, values in stopper.rungs.items() if values}
    assert entered == {4: {"late": 0.5}}
    stopper.decide("late", 3, 0.3)  # an epoch that was lost, redone
    assert {rung: values for rung, values in stopper.rungs.items() if values} == entered


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_has_diverged_and_ranks_nowhere(kind: Kind, value: float | None) -> None:
    stopper = Stopper(rule(kind, audit=1.0), EPOCHS)
    decision = stopper.decide("a", 1, value)
    assert decision.stop and decision.diverged and not decision.audited
    assert (
        decision.because == f"diverged at epoch 1: kNN is {'missing' if value is None else value}"
    )
    assert not any(stopper.rungs.values())
    assert stopper.decide("a", 1, 0.5) == Decision(stop=False), "a retry that went well goes on"


@given(**cases)
def test_the_full_length_is_never_stopped(
    draw: random.Random, kind: Kind, runs: int, every: int, audit: float
) -> None:
    stopper = Stopper(rule(kind, audit), EPOCHS)
    tell(stopper, arrivals(draw, runs, every))
    before = stopper.rungs
    assert not stopper.decide("new", EPOCHS, -1.0).stop
    end = stopper.decide("new", EPOCHS, math.nan)
    assert not end.stop and end.diverged
    assert stopper.rungs == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_of_one_epoch_stops_nothing(kind: Kind) -> None:
    stopper = Stopper(Rule(kind, audit=NEVER), 1)
    assert stopper.looks == ()
    assert not any(stopper.decide(f"run{i}", 1, -i).stop for i in range(9))


@given(**cases)
def test_runs_are_stopped_only_where_the_rule_looks(
    draw: random.Random, kind: Kind, runs: int, every: int, audit: float
) -> None:
    stopper = Stopper(rule(kind, audit), EPOCHS)
    for run, epoch, value in arrivals(draw, runs):
        if stopper.decide(run, epoch, value).because:
            assert epoch in stopper.looks


# ASHA.


@given(
    draw=draws,
    runs=st.integers(1, 12),
    grace=st.integers(1, 5),
    factor=st.sampled_from([1.5, 2, 2.5, 3, 4]),
)
def test_asha_decides_as_ray_does_with_its_own_trials(
    draw: random.Random, runs: int, grace: int, factor: float
) -> None:
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import ASHAScheduler, TrialScheduler

    ray_asha: Any = ASHAScheduler(
        time_attr="epoch",
        metric="knn",
        mode="max",
        max_t=EPOCHS,
        grace_period=grace,
        reduction_factor=factor,
    )
    trials = {f"run{i}": Trial("stub", trial_id=f"run{i}", stub=True) for i in range(runs)}
    for trial in trials.values():
        ray_asha.on_trial_add(None, trial)
    stopper = Stopper(Rule("asha", grace=grace, factor=factor, audit=NEVER), EPOCHS)
    stopped = set()
    for run, epoch, value in arrivals(draw, runs):
        if run in stopped or epoch == EPOCHS:
            continue
        theirs = ray_asha.on_trial_result(None, trials[run], {"epoch": epoch, "knn": value})
        assert stopper.decide(run, epoch, value).stop == (theirs == TrialScheduler.STOP)
        if theirs == TrialScheduler.STOP:
            stopped.add(run)


@given(
    draw=draws,
    runs=st.integers(1, 30),
    factor=st.sampled_from([1.5, 2, 3, 4]),
)
def test_asha_never_stops_the_best_so_far_of_a_rung(
    draw: random.Random, runs: int, factor: float
) -> None:
    stopper = Stopper(Rule("asha", grace=2, factor=factor, audit=NEVER), EPOCHS)
    rungs = stopper.rungs
    for run, epoch, value in arrivals(draw, runs):
        reached = max((rung for rung in rungs if rung <= epoch), default=None)
        best = reached is None or value >= max(stopper.rungs[reached].values(), default=-math.inf)
        assert not (best and stopper.decide(run, epoch, value).stop)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_about_one_in_factor_passes_a_rung(factor: int) -> None:
    draw = random.Random(factor)
    shares = []
    for _ in range(10):
        stopper = Stopper(Rule("asha", grace=1, factor=factor, audit=NEVER), EPOCHS)
        values = [draw.random() for _ in range(200)]
        passed = [not stopper.decide(f"run{i}", 1, value).stop for i, value in enumerate(values)]
        shares.append(sum(passed) / len(passed))
    assert 1 / factor - 0.02 < statistics.mean(shares) < 1 / factor + 0.04


def test_rungs_are_at_grace_times_powers_of_the_factor() -> None:
    assert Stopper(Rule("asha", grace=5, factor=3), 50).looks == (5, 15, 45)
    assert Stopper(Rule("asha", grace=1, factor=4), 50).looks == (1, 4, 16)
    assert Stopper(Rule("asha", grace=1, factor=3), 9).looks == (1, 3), "none at the full length"
    assert Stopper(Rule("asha", grace=1, factor=2.5), 9).looks == (1, 3, 7)


def test_asha_says_why() -> None:
    stopper = Stopper(Rule("asha", grace=3, factor=3, audit=NEVER), 30)
    for i, value in enumerate([0.30, 0.31, 0.32, 0.33, 0.335, 0.34, 0.345, 0.35, 0.36]):
        assert not stopper.decide(f"run{i}", 3, value).stop
    assert stopper.decide("x", 3, 0.312) == Decision(
        stop=True,
        because="ASHA at epoch 3: kNN 31.2% is below 34.2%, the cut of the best third of 9",
    )


def test_values_close_to_the_cut_are_told_apart() -> None:
    stopper = Stopper(Rule("asha", grace=1, factor=2.5, audit=NEVER), 30)
    stopper.decide("a", 1, 0.34001)
    assert stopper.decide("b", 1, 0.34).because == (
        "ASHA at epoch 1: kNN 34.000% is below 34.001%, the cut of the best 40% of 1"
    )


# The median rule.


@given(draw=draws, runs=st.integers(1, 12), grace=st.integers(1, 5))
def test_the_median_rule_decides_as_ray_does(draw: random.Random, runs: int, grace: int) -> None:
    from ray.tune.schedulers import MedianStoppingRule, TrialScheduler

    ray_median: Any = MedianStoppingRule(
        time_attr="epoch",
        metric="knn",
        mode="max",
        grace_period=grace,
        min_time_slice=math.inf,  # type: ignore[arg-type]  # never ask the controller
    )

    class Stub(str):
        trial_id = "unused"

    stopper = Stopper(Rule("median", grace=grace, audit=NEVER), EPOCHS)
    stopped = set()
    for run, epoch, value in arrivals(draw, runs):
        if run in stopped or epoch == EPOCHS:
            continue
        theirs = ray_median.on_trial_result(None, Stub(run), {"epoch": epoch, "knn": value})
        assert stopper.decide(run, epoch, value).stop == (theirs == TrialScheduler.STOP)
        if theirs == TrialScheduler.STOP:
            stopped.add(run)


@given(value=st.floats(0, 1), runs=st.integers(4, 9))
def test_of_runs_that_are_all_the_same_the_median_rule_stops_none(value: float, runs: int) -> None:
    stopper = Stopper(Rule("median", grace=1, audit=NEVER), EPOCHS)
    told = [(f"run{i}", epoch, value) for epoch in range(1, EPOCHS) for i in range(runs)]
    assert not any(decision.stop for decision in tell(stopper, told))


def test_the_median_rule_says_why() -> None:
    stopper = Stopper(Rule("median", grace=2, audit=NEVER), 10)
    for run, values in {"a": [0.1, 0.2, 0.4], "b": [0.1, 0.3, 0.5], "c": [0.0, 0.1, 0.2]}.items():
        tell(stopper, [(run, epoch, value) for epoch, value in enumerate(values, 1)])
    # The means from the grace epoch on are 0.3, 0.4 and 0.15; the best so far is at epoch 2.
    stopper.decide("d", 1, 0.0)
    assert not stopper.decide("d", 2, 0.29).stop
    assert stopper.decide("d", 3, 0.25) == Decision(
        stop=True,
        because="median rule at epoch 3: the best kNN so far, 29.0%, is below 30.0%, "
        "the median of 3 runs' means",
    )


def test_the_median_rule_waits_for_three_others() -> None:
    stopper = Stopper(Rule("median", grace=1, audit=NEVER), 10)
    values = [0.9, 0.8, 0.1, 0.1]
    stops = [stopper.decide(f"run{i}", 1, value).stop for i, value in enumerate(values)]
    assert stops == [False, False, False, True]


# Keep the best share.


@given(draw=draws, share=st.sampled_from([0.1, 0.125, 0.29, 1 / 3, 1]))
def test_keep_top_keeps_the_best_share_of_those_seen(draw: random.Random, share: float) -> None:
    stopper = Stopper(Rule("keep_top", share=share, at=3, audit=NEVER), EPOCHS)
    seen: list[float] = []
    for i in range(40):
        value = draw.choice([0.2, draw.random()])
        seen.append(value)
        better = sum(other > value for other in seen)
        enough = len(seen) * share >= 1 - 1e-9
        inside = better + 1 <= len(seen) * share + 1e-9
        assert not stopper.decide(f"run{i}", 2, 0.0).stop
        assert stopper.decide(f"run{i}", 3, value).stop == (enough and not inside)
        assert not stopper.decide(f"run{i}", 4, 0.0).stop


def test_keep_top_keeps_a_whole_share_in_spite_of_rounding() -> None:
    assert 0.29 * 100 < 29
    stopper = Stopper(Rule("keep_top", share=0.29, at=1, audit=NEVER), EPOCHS)
    tell(stopper, [(f"run{i}", 1, 0.9 if i < 28 else 0.1) for i in range(99)])
    assert not stopper.decide("the 29th of 100", 1, 0.5).stop


def test_keep_top_says_why() -> None:
    stopper = Stopper(Rule("keep_top", share=0.5, at=4, audit=NEVER), 10)
    assert not stopper.decide("a", 4, 0.5).stop
    assert stopper.decide("b", 4, 0.25) == Decision(
        stop=True,
        because="keep_top at epoch 4: kNN 25.0% is below 50.0%, the least of the best 1 of 2",
    )


# Audits.


def test_an_audited_run_is_let_through_for_good_and_still_ranks() -> None:
    stopper = Stopper(Rule("asha", grace=1, factor=2, audit=1.0), 8)
    tell(stopper, [("good", epoch, 0.9) for epoch in (1, 2, 4)])
    first = stopper.decide("bad", 1, 0.1)
    assert first == Decision(
        stop=False,
        because="let through as an audit; "
        "ASHA at epoch 1: kNN 10.0% is below 90.0%, the cut of the best half of 1",
        audited=True,
    )
    second = stopper.decide("bad", 2, 0.1)
    assert second.audited and not second.stop and "at epoch 2" in second.because
    assert stopper.decide("bad", 3, 0.1) == Decision(stop=False, audited=True)
    assert stopper.decide("bad", 8, 0.1) == Decision(stop=False, audited=True)
    assert stopper.rungs[1] == stopper.rungs[2] == {"good": 0.9, "bad": 0.1}
    assert not stopper.decide("good", 5, 0.9).audited


def test_an_audited_run_that_diverges_is_stopped() -> None:
    stopper = Stopper(Rule("asha", grace=1, factor=2, audit=1.0), 8)
    tell(stopper, [("good", 1, 0.9), ("bad", 1, 0.1)])
    decision = stopper.decide("bad", 2, math.nan)
    assert decision.stop and decision.diverged and decision.audited


def test_the_audit_draws_its_share_by_the_run_id_alone() -> None:
    runs = [f"{i:016x}" for i in range(4000)]
    drawn = {run for run in runs if draws_audit(run, 0.05)}
    assert 0.04 < len(drawn) / len(runs) < 0.06
    assert drawn <= {run for run in runs if draws_audit(run, 0.2)}, "a larger share adds to it"
    assert not any(draws_audit(run, 0.0) for run in runs)
    assert all(draws_audit(run, 1.0) for run in runs)


@given(**cases)
def test_an_audit_changes_no_rung_and_only_turns_stops_into_marks(
    draw: random.Random, kind: Kind, runs: int, every: int, audit: float
) -> None:
    told = arrivals(draw, runs, every)
    plain, audited = Stopper(rule(kind), EPOCHS), Stopper(rule(kind, audit), EPOCHS)
    for one, without, with_ in zip(told, tell(plain, told), tell(audited, told), strict=True):
        let_through = without.stop and draws_audit(one[0], audit)
        assert with_.stop == (without.stop and not let_through)
        assert with_.audited or not let_through
    assert audited.rungs == plain.rungs


# What is refused, and what it costs.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "ashha"}, "no stopping rule named 'ashha'; there are: asha, median, keep_top"),
        ({"grace": 0}, "got grace=0; try 1"),
        ({"factor": 1}, "got factor=1; try 3"),
        ({"factor": math.nan}, "got factor=nan; try 3"),
        ({"share": 0}, "got share=0; try 0.125"),
        ({"share": 1.5}, "got share=1.5; try 0.125"),
        ({"at": 0}, "got at=0; try 1"),
        ({"audit": -0.1}, "got audit=-0.1; try 0.05"),
    ],
)
def test_a_faulty_rule_is_refused_with_the_way_out(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as fault:  # noqa: PT011
        Rule(**({"kind": "asha"} | fields))
    assert message in str(fault.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_that_looks_after_the_end_is_refused(kind: Kind) -> None:
    name = "at" if kind == "keep_top" else "grace"
    with pytest.raises(ValueError, match=f"got {name}=31, epochs=30; try {name}=3"):
        Stopper(Rule(kind, grace=31, at=31), 30)


def test_ray_is_loaded_only_by_asha() -> None:
    code = (
        "import sys; from ascl_sweep.stopping import Rule, Stopper\n"
        "Stopper(Rule('median'), 5); Stopper(Rule('keep_top'), 5)\n"
        "assert not {'torch', 'ray', 'numpy'} & set(sys.modules)\n"
        "Stopper(Rule('asha'), 5)\n"
        "assert 'ray' in sys.modules and 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_asha_decides_as_ray_does_in_a_real_sweep(tmp_path: Path) -> None:
    """Ray Tune runs the trials and asks its ASHA; we are asked the same afterwards."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    heard: list[tuple[str, int, float, str]] = []

    class Listening(ASHAScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            action: str = super().on_trial_result(tune_controller, trial, result)
            heard.append((trial.trial_id, result["epoch"], result["knn"], action))
            return action

    def run(config: dict[str, float]) -> None:
        for epoch in range(1, 10):
            tune.report({"epoch": epoch, "knn": config["top"] * (1 - 0.7**epoch)})

    ray.init(address="local", num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        asha = Listening(
            time_attr="epoch",
            metric="knn",
            mode="max",
            max_t=9,
            grace_period=1,
            reduction_factor=3,
        )
        tops = [0.5, 0.8, 0.3, 0.6, 0.9, 0.2, 0.7, 0.4]
        tune.Tuner(
            tune.with_resources(run, {"cpu": 1}),
            param_space={"top": tune.grid_search(tops)},
            tune_config=tune.TuneConfig(scheduler=asha, reuse_actors=True),
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        ).fit()
    finally:
        ray.shutdown()

    stopper = Stopper(Rule("asha", grace=1, factor=3, audit=NEVER), 9)
    before_the_end = [one for one in heard if one[1] < 9]
    ours = [stopper.decide(run_id, epoch, knn).stop for run_id, epoch, knn, _ in before_the_end]
    assert ours == [action == "STOP" for *_, action in before_the_end]
    assert 0 < sum(ours) < len(tops)
