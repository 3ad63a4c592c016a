"""Sweeps that run until decided: which seeds the study adds, and when it stops."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.analysis.inference import FEWEST, smallest_effect, spend_alpha
from ascl_sweep.analysis.looks import looks_of
from ascl_sweep.analysis.table import build_table
from ascl_sweep.contracts import RunRow, RunState, SweepRow
from ascl_sweep.report.findings import describe_findings
from ascl_sweep.runtime.records import claim_runs, planned_row
from ascl_sweep.search.plan import Plan, make_plan
from ascl_sweep.search.study import PlannedRun, Study
from ascl_sweep.spec.sections import FEWEST_SEEDS
from ascl_sweep.spec.summary import SweepSummary
from ascl_sweep.spec.sweep import SweepSpec, parse_sweep
from tests.ascl_sweep.search.test_study import BASE, STOP, TAU
from tests.stores import arm, in_order
from tests.stores import sweep as stored_sweep

UNTIL = (
    BASE
    + f"""
space: {{grid: {{{TAU}: [0.05, 0.01, 0.02, 0.1]}}}}
seeds: {{until: decided, at_most: 10}}
table: {{rows: {TAU}, metric: knn_top1, baseline: {{{TAU}: 0.05}}}}
"""
)
SEARCH = UNTIL.replace("table:", f"ladder: {{finalists: 2}}\n{STOP}table:")
Score = Callable[[float, int], float | RunState]
"""The score in percent of an arm (τ') and a seed, or the state of a run without a score."""


def spec(text: str = UNTIL) -> SweepSpec:
    return parse_sweep(text, file="it.yaml")


def seeded(effects: Mapping[float, float], sd: float = 0.3, seed: int = 0) -> Score:
    """Scores with a normal noise and these effects over the base."""

    def score(tau: float, number: int) -> float:
        return 80 + effects.get(tau, 0.0) + random.Random(f"{seed} {tau} {number}").gauss(0, sd)

    return score


CLEAR: Mapping[float, float] = {0.01: 6.0, 0.02: -5.0, 0.1: 8.0}


class World:
    """An in-memory store, and runs that end at once with a known score."""

    def __init__(self, score: Score, text: str = UNTIL) -> None:
        self.spec, self.score = spec(text), score
        self.rows: dict[str, RunRow] = {}
        self.curves: dict[str, dict[int, float | None]] = {}

    def study(self) -> Study:
        """Return the study of a driver that starts now."""
        study = Study(self.spec, self.rows, dict(self.curves))
        self.rows |= {row.run_id: row for row in claim_runs(study, self.rows)}
        return study

    def finish(self, study: Study, run: PlannedRun, *others: Study) -> None:
        value = self.score(run.config.flat_values()[TAU], run.config.seed)  # type: ignore[arg-type]
        state = value if isinstance(value, RunState) else RunState.DONE
        score = None if isinstance(value, RunState) else value / 100
        row = self.rows.get(run.run_id) or planned_row(run, self.spec, float(len(self.rows)))
        self.curves[run.run_id] = dict.fromkeys(range(1, 10), score)
        if run.phase == "search":
            study.on_epoch(run.run_id, 9, score, measured=True)
        self.rows[run.run_id] = replace(row, state=state, epochs=9, knn_last_top1=score)
        study.on_end(run.run_id, state)
        for other in others:
            other.observe(run.run_id, state)

    def run(self, study: Study | None = None, runs: int = 10_000, seed: int = 0) -> int:
        """Run until the end or until this many runs have ended; return the number of them."""
        study, rng = study or self.study(), random.Random(seed)
        running: list[PlannedRun] = []
        ended = 0
        while ended < runs and not study.finished:
            while len(running) < 3 and (run := study.next_run()) is not None:
                running.append(run)
                row = self.rows.get(run.run_id) or planned_row(run, self.spec, float(ended))
                self.rows[run.run_id] = replace(row, state=RunState.RUNNING)
            self.finish(study, running.pop(rng.randrange(len(running))))
            ended += 1
        return ended

    def seeds(self) -> dict[float, int]:
        """Return the number of ended final runs of each arm."""
        found: dict[float, int] = {}
        for row in self.rows.values():
            if row.phase == "final" and row.state not in (RunState.PLANNED, RunState.RUNNING):
                tau = float(row.config[TAU] or 0)
                found[tau] = found.get(tau, 0) + 1
        return found

    def verdicts(self, study: Study) -> dict[float, str | None]:
        """Return the verdicts in the report."""
        rows = self.rows | {row.run_id: row for row in claim_runs(study, self.rows)}
        digest = study.digest.to_json()
        table = build_table(SweepRow("it", "", "", (), "full", 0.0, 0, digest), rows.values())
        assert table is not None
        return {
            float(arm.config[TAU] or 0): arm.comparison.verdict
            for arm in table.arms
            if arm.comparison
        }


def finished(score: Score, text: str = UNTIL) -> tuple[World, Study]:
    world = World(score, text)
    study = world.study()
    world.run(study)
    assert study.finished
    return world, study


# ---------------------------------------------------------------- which seeds are added


def test_the_first_look_needs_three_seeds_of_every_arm() -> None:
    study = World(seeded({})).study()
    assert len(study.finals()) == 4 * 3
    assert [run.config.seed for run in study.finals()] == [s for s in range(3) for _ in range(4)]
    assert FEWEST_SEEDS == FEWEST


def test_clear_differences_are_decided_at_the_first_look() -> None:
    world, study = finished(seeded(CLEAR))
    assert world.seeds() == dict.fromkeys((0.05, 0.01, 0.02, 0.1), 3)
    assert world.verdicts(study) == {0.01: "better", 0.02: "worse", 0.1: "better"}


def test_only_undecided_arms_and_their_baseline_get_more_seeds() -> None:
    world, study = finished(seeded({**CLEAR, 0.01: 0.45}))
    seeds = world.seeds()
    assert seeds[0.02] == seeds[0.1] == 3
    assert seeds[0.05] == seeds[0.01] > 3
    assert seeds[0.01] in study.spec.looks


def test_an_equivalent_arm_gets_no_more_seeds() -> None:
    world, study = finished(seeded({**CLEAR, 0.01: 0.0}, sd=0.02))
    assert world.verdicts(study)[0.01] == "equivalent"
    assert world.seeds()[0.01] == 3


def test_a_sweep_ends_with_its_last_look_even_if_something_is_undecided() -> None:
    world, study = finished(seeded({0.01: 0.5}, sd=2.0))
    assert max(world.seeds().values()) == 10
    status = study.look_status()
    assert status is not None and status.seeds == 10 and status.following is None
    assert status.decided < status.comparisons == 3


def test_a_sweep_without_comparisons_gets_the_seeds_of_its_first_look() -> None:
    text = UNTIL.replace("[0.05, 0.01, 0.02, 0.1]", "[0.05]")
    world, study = finished(seeded({}), text)
    assert world.seeds() == {0.05: 3}
    assert any("no comparisons to decide" in w for w in plan_of(study).sweeps[0].warnings)


@pytest.mark.parametrize("state", [RunState.DIVERGED, RunState.FAILED])
def test_a_lost_seed_ends_a_look_and_is_never_better(state: RunState) -> None:
    clear = seeded(CLEAR)

    def score(tau: float, seed: int) -> float | RunState:
        return state if (tau, seed) == (0.01, 1) else clear(tau, seed)

    world, study = finished(score)
    assert world.seeds()[0.02] == world.seeds()[0.1] == 3
    assert world.verdicts(study)[0.01] == "undecided"
    assert world.seeds()[0.01] == 5, "a verdict needs three pairs; none can make it better"


def test_an_arm_with_a_lost_seed_may_still_turn_out_worse() -> None:
    scores = seeded({**CLEAR, 0.01: -0.6}, sd=0.5)

    def score(tau: float, seed: int) -> float | RunState:
        return RunState.DIVERGED if (tau, seed) == (0.01, 1) else scores(tau, seed)

    world, study = finished(score)
    assert world.seeds()[0.01] > 3 and world.verdicts(study)[0.01] in ("worse", "undecided")


def test_an_arm_without_any_score_gets_no_more_seeds() -> None:
    clear = seeded(CLEAR)
    world, _ = finished(lambda tau, s: RunState.DIVERGED if tau == 0.01 else clear(tau, s))
    assert world.seeds()[0.01] == 3


def test_seeds_lost_after_a_decision_do_not_change_it() -> None:
    """The baseline continues for another arm, and diverges."""
    scores = seeded({**CLEAR, 0.01: 0.45})

    def score(tau: float, seed: int) -> float | RunState:
        return RunState.DIVERGED if (tau, seed) == (0.05, 4) else scores(tau, seed)

    world, study = finished(score)
    assert world.seeds()[0.02] == 3 and world.verdicts(study)[0.02] == "worse"


def test_the_finalists_of_a_search_run_until_decided() -> None:
    world, study = finished(seeded({0.01: 6.0, 0.02: 0.45, 0.1: -5.0}), SEARCH)
    seeds = world.seeds()
    assert set(seeds) == {0.05, 0.01, 0.02}
    assert seeds[0.01] == 3 and seeds[0.02] == seeds[0.05] > 3
    assert study.work_left()[1] == 0


# ---------------------------------------------------------------- reproducible from the store


@given(
    effect=st.floats(-3, 3),
    sd=st.floats(0.05, 2),
    seed=st.integers(0, 1000),
    kills=st.lists(st.integers(1, 12), max_size=4),
    lost=st.sets(
        st.tuples(st.sampled_from([0.05, 0.01, 0.02, 0.1]), st.integers(0, 9)), max_size=2
    ),
)
@settings(max_examples=10, deadline=None)
def test_a_killed_sweep_continues_with_the_same_runs(
    effect: float,
    sd: float,
    seed: int,
    kills: list[int],
    lost: set[tuple[float, int]],
) -> None:
    scores = seeded({0.01: effect, 0.02: -effect / 3, 0.1: 2.0}, sd, seed)

    def score(tau: float, number: int) -> float | RunState:
        return RunState.DIVERGED if (tau, number) in lost else scores(tau, number)

    whole, study = finished(score)
    killed = World(score)
    for number, runs in enumerate(kills):
        live = killed.study()
        killed.run(live, runs, seed=number)
        again = Study(killed.spec, killed.rows, dict(killed.curves))
        assert [run.run_id for run in again.finals()] == [run.run_id for run in live.finals()]
        assert again.look_status() == live.look_status()
    last = killed.study()
    killed.run(last, seed=99)
    assert last.finished
    ended = {i for i, row in killed.rows.items() if row.state.is_final}
    assert ended == {i for i, row in whole.rows.items() if row.state.is_final}
    assert killed.verdicts(last) == whole.verdicts(study)


@given(seed=st.integers(0, 1000), effect=st.floats(-2, 2))
@settings(max_examples=4, deadline=None)
def test_the_study_decides_like_the_report(seed: int, effect: float) -> None:
    world = World(seeded({0.01: effect, 0.1: 1.0}, 0.5, seed))
    study = world.study()
    while (run := study.next_run()) is not None:
        world.finish(study, run)
        status = study.look_status()
        decided = [v for v in world.verdicts(study).values() if v not in (None, "undecided")]
        assert status is not None and status.decided == len(decided)


def test_runs_of_another_sweep_do_not_change_the_decisions() -> None:
    """Seeds that the store has, but that no look asked for, are ignored."""
    scores = seeded({**CLEAR, 0.01: 0.45})
    alone, study = finished(scores)
    shared = World(scores)
    listed = spec(UNTIL.replace("{until: decided, at_most: 10}", "[0, 1, 2, 3, 4, 5, 6]"))
    other = Study(listed, shared.rows, {})
    mine = Study(shared.spec, shared.rows, {})
    while (run := other.next_run()) is not None:
        shared.finish(other, run, mine)
        shared.rows[run.run_id] = replace(shared.rows[run.run_id], sweeps=("other",))
    shared.run(mine)
    assert mine.finished
    assert [run.run_id for run in mine.finals()] == [run.run_id for run in study.finals()]
    assert shared.verdicts(mine) == alone.verdicts(study)


def test_two_sweeps_share_their_runs() -> None:
    world = World(seeded({**CLEAR, 0.01: 0.45}))
    first, second = world.study(), world.study()
    while (run := first.next_run()) is not None:
        world.finish(first, run, second)
    assert first.finished and second.finished


def test_a_failed_run_is_retried_and_the_later_seeds_stay_in_the_sweep() -> None:
    scores = seeded(CLEAR)
    world = World(lambda tau, s: RunState.FAILED if (tau, s) == (0.01, 1) else scores(tau, s))
    world.run()
    world.score = scores
    study = world.study()
    assert world.run(study) >= 1 and study.finished
    assert world.verdicts(study)[0.01] == "better"
    assert all("it" in row.sweeps for row in world.rows.values())


# ---------------------------------------------------------------- the plan


def plan_of(study: Study) -> Plan:
    return make_plan([study], study.rows)


def test_the_plan_states_the_expected_and_the_largest_cost() -> None:
    plan = plan_of(World(seeded({})).study())
    (sweep,) = plan.sweeps
    assert sweep.runs == spec().planned_runs == 40 and sweep.looks == (3, 5, 8, 10)
    assert plan.epochs == 40 * 9
    steps = ((1, 2), (2, 3), (3, 2))
    arm = 3 + sum(seeds * 0.5**look for look, seeds in steps)
    base = 3 + sum(seeds * (1 - (1 - 0.5**look) ** 3) for look, seeds in steps)
    assert sweep.expected_runs == pytest.approx(3 * arm + base)
    assert plan.expected_epochs == pytest.approx(9 * sweep.expected_runs)


def test_the_plan_of_a_search_states_the_expected_cost() -> None:
    plan = plan_of(World(seeded({}), SEARCH).study())
    (sweep,) = plan.sweeps
    assert sweep.runs == plan.epochs / 9 == spec(SEARCH).planned_runs == 4 + 3 * 10
    assert 4 + 3 * 3 < sweep.expected_runs < 4 + 3 * 7


def test_the_plan_of_a_decided_sweep_is_empty() -> None:
    _, study = finished(seeded(CLEAR))
    plan = plan_of(study)
    assert plan.epochs == plan.expected_epochs == 0 and plan.sweeps[0].runs == 12


def test_the_plan_after_a_look_counts_only_open_comparisons() -> None:
    world = World(seeded({**CLEAR, 0.01: 0.45}))
    study = world.study()
    world.run(study, 12)
    (sweep,) = plan_of(study).sweeps
    assert sweep.runs == 12 + 2 * (10 - 3)
    assert 12 + 2 * 2 < sweep.expected_runs < sweep.runs


def test_the_smallest_effect_counts_all_looks() -> None:
    """One of the looks suffices, so it is below the effect that the last look alone detects."""
    looks = spec().looks
    effect = plan_of(World(seeded({})).study()).sweeps[0].smallest_effect
    fixed = smallest_effect((looks[-1],), 3)
    last = smallest_effect((looks[-1],), 3, spend_alpha(looks)[-1])
    assert effect is not None and fixed is not None and last is not None
    assert fixed < effect < last


@given(st.lists(st.integers(-30, 30).map(lambda n: n / 10), min_size=3, max_size=10))
def test_no_more_seeds_are_advised_than_the_looks_add(leads: list[float]) -> None:
    looks, base = spec().looks, [80.0, 80.3, 79.9, 80.1, 80.6, 79.7, 80.2, 80.0, 80.4, 79.8]
    rows = arm("it", {TAU: 0.05}, base[: len(leads)])
    rows += arm("it", {TAU: 0.01}, [score + x for score, x in zip(base, leads, strict=False)])
    digest = {"seeds": tuple(range(10)), "looks": looks, "base": {TAU: 0.05}}
    made = build_table(stored_sweep("it", (TAU,), **digest), in_order(rows))
    assert made is not None
    found = made.arms[1].comparison
    assert found is not None
    if found.inference.seeds_needed is not None:
        assert found.estimate.n + found.inference.seeds_needed in looks
        assert found.verdict == "undecided"
    text = " ".join(describe_findings(made))
    asked = SweepSummary.of_json(stored_sweep("it", (TAU,), **digest).digest)
    status = looks_of(asked, in_order(rows))
    assert status.needed.keys() | set(status.beyond) == ({"τ' = 0.01"} if status.open else set())
    if len(leads) == looks[-1] and found.verdict == "undecided":
        assert "No look up to 10 seeds would decide the rest" in text
