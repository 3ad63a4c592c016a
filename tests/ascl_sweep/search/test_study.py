"""The study: the runs of a sweep, through crashes and failures."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.contracts import Phase, RunRow, RunState
from ascl_sweep.search.schedulers.base import audit_rank
from ascl_sweep.search.study import AUDITS, SAME_FAILURES, PlannedRun, Study
from ascl_sweep.spec.sections import SEARCH_SEED
from ascl_sweep.spec.sweep import SweepSpec, parse_sweep

BASE = """
name: it
base: {data: {name: shapes, train_size: 100}, batch_size: 16, encoder: {bn_splits: 2},
       method: {relabel: ascl, queue_size: 64}, eval: {probe: none, knn_k: 5}}
epochs: 9
"""
GRID = BASE + "space: {grid: {method.target_temperature: [0.01, 0.02, 0.05, 0.1]}}\n"
STOP = "stop: {asha: {grace: 1, factor: 3}, audit: 0}\n"
SEARCH = GRID + "seeds: [0, 1]\nladder: {finalists: 2}\n" + STOP
AUDITED = SEARCH.replace(", audit: 0", ", audit: 0.000001")
"""Audits only the runs that make up the minimum number."""
STOPPING = 1
"""A seed with which `SEARCH` stops runs."""
TAU = "method.target_temperature"
OPTUNA = (
    BASE
    + """
seeds: [0, 1]
ladder: {finalists: 1}
budget: {trials: 5}
space:
  optuna:
    domains:
      method.relabel: {choice: [none, ascl]}
      method.target_temperature: {log_uniform: [0.01, 0.2], when: {method.relabel: ascl}}
"""
)


def spec(text: str) -> SweepSpec:
    return parse_sweep(text, file="it.yaml")


class World:
    """An in-memory store and runs with known curves: everything but Ray and disks."""

    def __init__(self, text: str) -> None:
        self.spec = spec(text)
        self.rows: dict[str, RunRow] = {}
        self.curves: dict[str, dict[int, float | None]] = {}
        self.configs: dict[str, PlannedRun] = {}
        self.clock = 0
        self.trained: list[tuple[str, int]] = []

    def value(self, task: PlannedRun, epoch: int) -> float:
        seeded = random.Random(f"{task.run_id}")
        return seeded.random() * (1 - 0.5**epoch)

    def study(self) -> Study:
        return Study(self.spec, dict(self.rows), {k: dict(v) for k, v in self.curves.items()})

    def put(self, task: PlannedRun, state: RunState) -> None:
        self.clock += 1
        row = self.rows.get(task.run_id) or RunRow(
            task.run_id, ("it",), task.config.flat_values(), task.phase, "full", created=self.clock
        )
        epochs = len(self.curves.get(task.run_id, {}))
        self.rows[task.run_id] = replace(row, state=state, epochs=epochs)

    def mark_audit(self, run_id: str) -> None:
        self.rows[run_id] = replace(self.rows[run_id], audit=True)

    def run(self, study: Study, rng: random.Random, at_once: int, crash_after: float) -> bool:
        """Run until the end, or until a crash after this many epochs; return whether it ended."""
        running: list[PlannedRun] = []
        steps = 0
        while not study.finished:
            while len(running) < at_once and (task := study.next_run()) is not None:
                running.append(task)
                self.configs[task.run_id] = task
                self.put(task, RunState.RUNNING)
            assert running, "not finished, nothing running and nothing to start"
            task = rng.choice(running)
            epoch = len(self.curves.get(task.run_id, {})) + 1
            value = self.value(task, epoch)
            self.curves.setdefault(task.run_id, {})[epoch] = value
            self.trained.append((task.run_id, epoch))
            decision = study.on_epoch(task.run_id, epoch, value, measured=True)
            if decision.audited:
                self.mark_audit(task.run_id)
            state = RunState.STOPPED if decision.stop else RunState.DONE if epoch == 9 else None
            if state:
                self.put(task, state)
                study.on_end(task.run_id, state)
                running.remove(task)
            steps += 1
            if steps >= crash_after:
                return False
        return True


def whole(text: str, seed: int = 0, at_once: int = 2) -> World:
    world = World(text)
    assert world.run(world.study(), random.Random(seed), at_once, float("inf"))
    return world


def test_a_grid_runs_every_cell_with_every_seed_seed_by_seed() -> None:
    world = whole(GRID + "seeds: [3, 4]\n", at_once=1)
    order = [
        (row.config["seed"], row.config["method.target_temperature"]) for row in world.rows.values()
    ]
    assert order == [(s, t) for s in (3, 4) for t in (0.01, 0.02, 0.05, 0.1)]
    assert {row.phase for row in world.rows.values()} == {"final"}


def test_finalists_are_those_that_got_furthest_and_then_the_best_on_the_holdout() -> None:
    world = whole(SEARCH)
    search = [r for r in world.rows.values() if r.phase == "search"]
    finals = [r for r in world.rows.values() if r.phase == "final"]
    assert len(search) == 4 and len(finals) in (4, 6), "two finalists, and the base"
    assert all(r.config["data.holdout"] == 0.1 for r in search)
    assert all(r.config["data.holdout"] == 0 for r in finals)

    def rank(row: RunRow) -> tuple[int, float]:
        curve = world.curves[row.run_id]
        return len(curve), curve[len(curve)] or 0

    best = sorted(search, key=rank, reverse=True)[:2]
    assert best[0].state == "done"
    assert {r.config[TAU] for r in finals} == {r.config[TAU] for r in best} | {0.05}
    assert {r.config["seed"] for r in finals} == {0, 1}


def test_a_ladder_per_key_keeps_the_best_of_each_of_its_values() -> None:
    text = BASE + (
        "space: {grid: {method.relabel: [none, ascl], method.target_temperature: [0.02, 0.1]}}\n"
        "ladder: {finalists: 1, per: method.relabel}\n" + STOP
    )
    finals = [r for r in whole(text).rows.values() if r.phase == "final"]
    assert sorted(str(r.config["method.relabel"]) for r in finals) == ["ascl", "none"]


def test_a_search_has_a_seed_of_its_own() -> None:
    for text in (SEARCH, OPTUNA):
        rows = whole(text).rows.values()
        assert {r.config["seed"] for r in rows if r.phase == "search"} == {SEARCH_SEED}
        assert {r.config["seed"] for r in rows if r.phase == "final"} == {0, 1}


@pytest.mark.parametrize("text", [SEARCH, OPTUNA])
def test_a_search_that_an_older_version_started_keeps_its_seed_and_rules(text: str) -> None:
    old = World(text)
    older = old.spec.with_search_seed(0)
    changes: list[dict[str, object]] = [{TAU: 0.02, "method.relabel": "ascl"}]
    task = PlannedRun.of(older.first_config(changes[0]), "search")
    old.curves[task.run_id] = dict.fromkeys(range(1, 10), 0.5)
    old.put(task, RunState.DONE)
    study = old.study()
    assert study.spec.search_seed == 0 and not study.spec.tries_base
    following = study.next_run()
    assert following and following.config.seed == 0
    assert task.run_id in study.own()
    edited = World(text.replace("epochs: 9", "epochs: 8"))
    edited.rows = old.rows
    assert edited.study().spec.search_seed == SEARCH_SEED, "no run of the edited search is stored"


@pytest.mark.parametrize("text", [SEARCH, OPTUNA])
@pytest.mark.parametrize("seed", range(4))
def test_the_base_is_tried_first_and_always_a_finalist(text: str, seed: int) -> None:
    world = whole(text, seed, at_once=1)
    rows = list(world.rows.values())
    spec_ = world.spec
    assert rows[0].run_id == spec_.run_id({}) == spec_.run_id(spec_.base_trial.changes)
    finals = {r.run_id for r in rows if r.phase == "final"}
    assert {spec_.config({}, seed=s).identity() for s in spec_.seeds} <= finals
    assert len(rows) <= spec_.planned_runs


def test_the_base_is_a_finalist_even_if_its_trial_diverges() -> None:
    study = World(SEARCH).study()
    base = study.spec.run_id({})
    while not study.search_is_over:
        task = study.next_run()
        assert task is not None
        study.on_epoch(task.run_id, 1, 0.5, measured=False)
        bad = task.run_id == base
        study.on_end(task.run_id, RunState.DIVERGED if bad else RunState.DONE)
    assert base in study.finalists() and len(study.finalists()) == 3


def test_an_invalid_or_excluded_base_is_not_tried() -> None:
    text = SEARCH.replace("0.1]}}", f"0.1]}}, exclude: [{{{TAU}: 0.05}}]}}")
    assert not spec(text).tries_base and spec(text).num_trials == 3


def test_of_tied_configs_the_finalist_is_the_one_that_the_report_names_best() -> None:
    from ascl_sweep.analysis.search_summary import summarize_search
    from ascl_sweep.contracts import SweepRow
    from ascl_sweep.spec.summary import summarize_sweep

    world = World(SEARCH.replace("finalists: 2", "finalists: 1"))
    study = world.study()
    while not study.search_is_over:
        task = study.next_run()
        assert task is not None
        for epoch in range(1, 10):
            study.on_epoch(task.run_id, epoch, 0.5, measured=False)
        world.curves[task.run_id] = dict.fromkeys(range(1, 10), 0.5)
        world.put(task, RunState.DONE)
        world.rows[task.run_id] = replace(world.rows[task.run_id], knn_last_top1=0.5)
        study.on_end(task.run_id, RunState.DONE)
    digest = summarize_sweep(world.spec).to_json()
    sweep = SweepRow("it", "", "", (), "full", 0.0, 0, digest)
    for rows in (world.rows.values(), reversed(world.rows.values())):
        found = summarize_search(sweep, rows)
        assert found and found.best[0].run_id == study.finalists()[0]


def test_a_search_audits_at_least_two_of_the_runs_that_it_stops() -> None:
    for seed in range(6):
        world = whole(AUDITED, seed)
        search = [r for r in world.rows.values() if r.phase == "search"]
        plain = whole(SEARCH, seed)
        stops = [r for r in plain.rows.values() if r.state == "stopped"]
        audited = [r for r in search if r.audit]
        assert len(audited) == min(AUDITS, len(stops))
        assert all(r.state == "done" for r in audited), "an audited run is complete"
        ranks = sorted((r.run_id for r in stops), key=audit_rank)
        assert {r.run_id for r in audited} == set(ranks[:AUDITS]), "the choice is reproducible"


def test_final_runs_are_never_stopped() -> None:
    world = whole(SEARCH, seed=STOPPING)
    assert all(r.state == "done" for r in world.rows.values() if r.phase == "final")
    assert any(r.state == "stopped" for r in world.rows.values())


@settings(max_examples=40, deadline=None)
@given(
    text=st.sampled_from([GRID, SEARCH, AUDITED, OPTUNA]),
    seed=st.integers(0, 1000),
    crashes=st.lists(st.integers(1, 25), max_size=6),
    at_once=st.integers(1, 3),
)
def test_whatever_crashes_the_planned_runs_end_and_no_epoch_is_trained_twice(
    text: str, seed: int, crashes: list[int], at_once: int
) -> None:
    world, rng = World(text), random.Random(seed)
    for crash in crashes:
        if world.run(world.study(), rng, at_once, crash):
            break
    assert world.run(world.study(), rng, at_once, float("inf"))
    assert len(world.trained) == len(set(world.trained))
    assert all(row.state.is_over for row in world.rows.values())
    search = [r for r in world.rows.values() if r.phase == "search"]
    finals = [r for r in world.rows.values() if r.phase == "final"]
    assert len(search) == {GRID: 0, SEARCH: 4, AUDITED: 4, OPTUNA: 5}[text]
    ladder = world.spec.ladder
    arms = [ladder.finalists, ladder.finalists + 1] if ladder else [4]
    assert len(finals) in [n * len(world.spec.seeds) for n in arms]
    stops = sum(r.state == "stopped" or r.audit for r in search)
    assert sum(r.audit for r in search) == (min(AUDITS, stops) if text == AUDITED else 0)
    assert all(len(world.curves[r.run_id]) == 9 for r in finals)


class Plain(Study):
    """Scans all runs each time."""

    def _first_open(self, phase: Phase, runs: Iterable[PlannedRun]) -> PlannedRun | None:
        return next((run for run in runs if self._is_open(run)), None)

    @property
    def search_is_over(self) -> bool:
        self._settled = 0
        return super().search_is_over


@settings(max_examples=100)
@given(
    text=st.sampled_from([GRID, SEARCH, OPTUNA]),
    fates=st.lists(
        st.sampled_from(["wait", "wait", "done", "stopped", "failed", "planned", "lost", "defer"]),
        max_size=60,
    ),
)
def test_runs_come_in_the_order_of_looking_through_all_of_them(text: str, fates: list[str]) -> None:
    quick, plain = World(text).study(), Plain(spec(text), {}, {})
    running: list[str] = []
    for turn, fate in enumerate(fates):
        one, other = quick.next_run(), plain.next_run()
        assert (one and one.run_id) == (other and other.run_id)
        if one and fate == "defer":
            for study in (quick, plain):
                study.defer(one.run_id)
            continue
        running += [one.run_id] if one else []
        if running and fate not in ("wait", "defer"):
            run_id = running.pop(turn % len(running))
            for study in (quick, plain):
                study.on_epoch(run_id, 1, 0.5, measured=False)
                if fate == "lost":
                    study.requeue(run_id)
                else:
                    study.on_end(run_id, RunState(fate))
        for about in ("search_is_over", "finished", RunState.RUNNING):
            assert getattr(quick, about) == getattr(plain, about)
        assert quick.work_left() == plain.work_left()


def test_a_study_over_a_finished_sweep_has_nothing_to_do() -> None:
    for text in (GRID, SEARCH, OPTUNA):
        world = whole(text)
        again = world.study()
        assert again.finished
        assert again.next_run() is None
        assert again.work_left()[1] == 0


def test_equal_configurations_are_not_run_twice() -> None:
    # τ' has no effect without relabeling: of 11 proposals over 3 configs, 3 run; the base too.
    text = OPTUNA.replace("{log_uniform: [0.01, 0.2], when", "{choice: [0.02, 0.1], when")
    world = whole(text.replace("trials: 5", "trials: 12"))
    assert sum(r.phase == "search" for r in world.rows.values()) == 4


def test_a_failed_run_is_left_until_the_next_start_and_tried_again_then() -> None:
    world = World(GRID)
    study = world.study()
    task = study.next_run()
    assert task is not None
    study.on_end(task.run_id, RunState.FAILED, "no disk")
    world.put(task, RunState.FAILED)
    rest = []
    while (other := study.next_run()) is not None:
        rest.append(other.run_id)
        study.on_end(other.run_id, RunState.DONE)
    assert task.run_id not in rest and len(rest) == 3
    assert study.finished
    again = world.study().next_run()
    assert again is not None and again.run_id == task.run_id


@pytest.mark.parametrize("errors", [["a"] * SAME_FAILURES, ["a", "b", "a", "b"]])
def test_a_sweep_is_hopeless_when_every_run_fails_alike(errors: list[str]) -> None:
    study = World(GRID).study()
    for error in errors:
        task = study.next_run()
        assert task is not None
        study.on_end(task.run_id, RunState.FAILED, error)
    assert study.hopeless == ("a" if len(set(errors)) == 1 else None)


def test_a_run_that_fails_again_elsewhere_counts_once() -> None:
    study = World(GRID).study()
    for attempt in range(2):
        for _ in range(2):
            task = study.next_run()
            assert task is not None
            if attempt == 0:
                study.requeue(task.run_id, "a")
            else:
                study.on_end(task.run_id, RunState.FAILED, "a")
    assert study.hopeless is None, "two runs failed, twice each"


def test_an_epoch_that_comes_in_is_a_sign_of_hope() -> None:
    study = World(GRID).study()
    tasks = [study.next_run() for _ in range(4)]
    for task in tasks[: SAME_FAILURES - 1]:
        assert task is not None
        study.on_end(task.run_id, RunState.FAILED, "a")
    last = tasks[-1]
    assert last is not None
    study.on_epoch(last.run_id, 1, 0.5, measured=True)
    study.on_end(last.run_id, RunState.FAILED, "a")
    assert study.hopeless is None


def test_the_budget_cuts_a_search_short() -> None:
    world = whole(SEARCH + "budget: {trials: 2}\n")
    assert sum(r.phase == "search" for r in world.rows.values()) == 2


def test_a_missing_score_ends_a_searched_run_as_diverged() -> None:
    study = World(SEARCH).study()
    task = study.next_run()
    assert task is not None
    decision: Any = study.on_epoch(task.run_id, 1, float("nan"), measured=True)
    assert decision.stop and decision.diverged


def test_an_edited_search_does_not_take_its_former_self_for_its_own() -> None:
    old = whole(OPTUNA)
    new = World(OPTUNA.replace("epochs: 9", "epochs: 8"))
    new.rows = {k: replace(row, state=RunState.PLANNED) for k, row in old.rows.items()}
    study = new.study()
    seen = set()
    for _ in range(5):
        task = study.next_run()
        assert task is not None and task.run_id not in old.rows
        assert task.run_id not in seen, "each run is returned once"
        seen.add(task.run_id)
    assert study.next_run() is None


def test_a_run_stopped_by_a_search_is_completed_for_a_table_that_needs_it() -> None:
    """A search of an older version may have run with a seed of the table."""
    table = World(GRID)
    task = table.study().next_run()
    assert task is not None
    table.curves[task.run_id] = {1: 0.1}
    table.put(task, RunState.STOPPED)
    study = table.study()
    assert not study.finished
    again = study.next_run()
    assert again is not None and again.run_id == task.run_id


def test_an_attempt_that_was_started_over_leaves_no_later_epochs() -> None:
    world = World(SEARCH)
    study = world.study()
    task = study.next_run()
    assert task is not None
    study.curves[task.run_id] = dict.fromkeys(range(1, 9), 0.9)
    study.on_epoch(task.run_id, 1, 0.1, measured=True)
    assert study.curves[task.run_id] == {1: 0.1}


def test_errors_that_differ_only_in_the_run_are_alike() -> None:
    study = World(GRID).study()
    for _ in range(SAME_FAILURES):
        task = study.next_run()
        assert task is not None
        study.on_end(task.run_id, RunState.FAILED, f"work/{task.run_id}/checkpoint.pt: disk full")
    assert study.hopeless == "work/…/checkpoint.pt: disk full"
