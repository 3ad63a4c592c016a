"""The agenda: what a sweep runs, whatever happens on the way."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.agenda import (
    FINAL,
    OVER,
    SAME_FAILURES,
    Agenda,
    Phase,
    Task,
    config_values,
)
from ascl_sweep.ledger import RunRow
from ascl_sweep.spec import SweepSpec, spec_of

BASE = """
name: it
base: {data: {name: shapes, train_size: 100}, batch_size: 16, encoder: {bn_splits: 2},
       method: {relabel: ascl, queue_size: 64}, eval: {probe: none, knn_k: 5}}
epochs: 9
"""
GRID = BASE + "space: {grid: {method.target_temperature: [0.01, 0.02, 0.05, 0.1]}}\n"
STOP = "stop: {asha: {grace: 1, factor: 3}, audit: 0}\n"
SEARCH = GRID + "seeds: [0, 1]\nladder: {finalists: 2}\n" + STOP
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
    return spec_of(text, file="it.yaml")


class World:
    """A ledger in memory and runs whose curves are known: everything but Ray and disks."""

    def __init__(self, text: str) -> None:
        self.spec = spec(text)
        self.rows: dict[str, RunRow] = {}
        self.curves: dict[str, dict[int, float | None]] = {}
        self.configs: dict[str, Task] = {}
        self.clock = 0
        self.trained: list[tuple[str, int]] = []

    def value(self, task: Task, epoch: int) -> float:
        seeded = random.Random(f"{task.run_id}")
        return seeded.random() * (1 - 0.5**epoch)

    def agenda(self) -> Agenda:
        return Agenda(self.spec, dict(self.rows), {k: dict(v) for k, v in self.curves.items()})

    def put(self, task: Task, state: str) -> None:
        self.clock += 1
        row = self.rows.get(task.run_id) or RunRow(
            task.run_id, ("it",), config_values(task.config), task.phase, "full", created=self.clock
        )
        epochs = len(self.curves.get(task.run_id, {}))
        self.rows[task.run_id] = replace(row, state=state, epochs=epochs)

    def run(self, agenda: Agenda, rng: random.Random, at_once: int, crash_after: float) -> bool:
        """Run until the end, or until a crash after so many epochs; whether it ended."""
        running: list[Task] = []
        steps = 0
        while not agenda.finished:
            while len(running) < at_once and (task := agenda.next()) is not None:
                running.append(task)
                self.configs[task.run_id] = task
                self.put(task, "running")
            assert running, "not finished, nothing running and nothing to start"
            task = rng.choice(running)
            epoch = len(self.curves.get(task.run_id, {})) + 1
            value = self.value(task, epoch)
            self.curves.setdefault(task.run_id, {})[epoch] = value
            self.trained.append((task.run_id, epoch))
            decision = agenda.told(task.run_id, epoch, value, measured=True)
            state = "stopped" if decision.stop else "done" if epoch == 9 else ""
            if state:
                self.put(task, state)
                agenda.ended(task.run_id, state)
                running.remove(task)
            steps += 1
            if steps >= crash_after:
                return False
        return True


def whole(text: str, seed: int = 0, at_once: int = 2) -> World:
    world = World(text)
    assert world.run(world.agenda(), random.Random(seed), at_once, float("inf"))
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
    assert len(search) == 4 and len(finals) == 4
    assert all(r.config["data.holdout"] == 0.1 and r.config["seed"] == 0 for r in search)
    assert all(r.config["data.holdout"] == 0 for r in finals)

    def rank(row: RunRow) -> tuple[int, float]:
        curve = world.curves[row.run_id]
        return len(curve), curve[len(curve)] or 0

    best = sorted(search, key=rank, reverse=True)[:2]
    assert best[0].state == "done"
    key = "method.target_temperature"
    assert {r.config[key] for r in finals} == {r.config[key] for r in best}
    assert {r.config["seed"] for r in finals} == {0, 1}


def test_a_ladder_per_key_keeps_the_best_of_each_of_its_values() -> None:
    text = BASE + (
        "space: {grid: {method.relabel: [none, ascl], method.target_temperature: [0.02, 0.1]}}\n"
        "ladder: {finalists: 1, per: method.relabel}\n" + STOP
    )
    finals = [r for r in whole(text).rows.values() if r.phase == "final"]
    assert sorted(str(r.config["method.relabel"]) for r in finals) == ["ascl", "none"]


def test_final_runs_are_never_stopped() -> None:
    world = whole(SEARCH)
    assert all(r.state == "done" for r in world.rows.values() if r.phase == "final")
    assert any(r.state == "stopped" for r in world.rows.values())


@settings(max_examples=40, deadline=None)
@given(
    text=st.sampled_from([GRID, SEARCH, OPTUNA]),
    seed=st.integers(0, 1000),
    crashes=st.lists(st.integers(1, 25), max_size=6),
    at_once=st.integers(1, 3),
)
def test_whatever_crashes_the_planned_runs_end_and_no_epoch_is_trained_twice(
    text: str, seed: int, crashes: list[int], at_once: int
) -> None:
    world, rng = World(text), random.Random(seed)
    for crash in crashes:
        if world.run(world.agenda(), rng, at_once, crash):
            break
    assert world.run(world.agenda(), rng, at_once, float("inf"))
    assert len(world.trained) == len(set(world.trained))
    assert all(row.state in OVER for row in world.rows.values())
    search = [r for r in world.rows.values() if r.phase == "search"]
    finals = [r for r in world.rows.values() if r.phase == "final"]
    assert len(search) == {GRID: 0, SEARCH: 4, OPTUNA: 5}[text]
    ladder = world.spec.ladder
    arms = ladder.finalists if ladder else 4
    assert len(finals) == arms * len(world.spec.seeds)
    assert all(len(world.curves[r.run_id]) == 9 for r in finals)


class Plain(Agenda):
    """Looks through all runs, each time."""

    def _first_open(self, phase: Phase, tasks: Iterable[Task]) -> Task | None:
        closed = FINAL if phase == "final" else OVER
        return next((task for task in tasks if self._open(task.run_id, closed)), None)

    @property
    def search_is_over(self) -> bool:
        self._settled = 0
        return super().search_is_over


@settings(max_examples=100)
@given(
    text=st.sampled_from([GRID, SEARCH, OPTUNA]),
    fates=st.lists(
        st.sampled_from(
            ["wait", "wait", "done", "stopped", "failed", "planned", "lost", "no room"]
        ),
        max_size=60,
    ),
)
def test_runs_come_in_the_order_of_looking_through_all_of_them(text: str, fates: list[str]) -> None:
    quick, plain = World(text).agenda(), Plain(spec(text), {}, {})
    running: list[str] = []
    for turn, fate in enumerate(fates):
        one, other = quick.next(), plain.next()
        assert (one and one.run_id) == (other and other.run_id)
        if one and fate == "no room":
            for agenda in (quick, plain):
                agenda.put_off(one.run_id)
            continue
        running += [one.run_id] if one else []
        if running and fate not in ("wait", "no room"):
            run_id = running.pop(turn % len(running))
            for agenda in (quick, plain):
                agenda.told(run_id, 1, 0.5, measured=False)
                if fate == "lost":
                    agenda.put_back(run_id)
                else:
                    agenda.ended(run_id, fate)
        for about in ("search_is_over", "finished", "running"):
            assert getattr(quick, about) == getattr(plain, about)
        assert quick.work_left() == plain.work_left()


def test_an_agenda_over_a_finished_sweep_has_nothing_to_do() -> None:
    for text in (GRID, SEARCH, OPTUNA):
        world = whole(text)
        again = world.agenda()
        assert again.finished
        assert again.next() is None
        assert again.work_left()[1] == 0


def test_equal_configurations_are_not_run_twice() -> None:
    # τ' does not matter without relabelling: of 12 proposals over 3 configurations 3 are run.
    text = OPTUNA.replace("{log_uniform: [0.01, 0.2], when", "{choice: [0.02, 0.1], when")
    world = whole(text.replace("trials: 5", "trials: 12"))
    assert sum(r.phase == "search" for r in world.rows.values()) == 3


def test_a_failed_run_is_left_until_the_next_start_and_tried_again_then() -> None:
    world = World(GRID)
    agenda = world.agenda()
    task = agenda.next()
    assert task is not None
    agenda.ended(task.run_id, "failed", "no disk")
    world.put(task, "failed")
    rest = []
    while (other := agenda.next()) is not None:
        rest.append(other.run_id)
        agenda.ended(other.run_id, "done")
    assert task.run_id not in rest and len(rest) == 3
    assert agenda.finished
    again = world.agenda().next()
    assert again is not None and again.run_id == task.run_id


@pytest.mark.parametrize("errors", [["a"] * SAME_FAILURES, ["a", "b", "a", "b"]])
def test_a_sweep_is_hopeless_when_every_run_fails_alike(errors: list[str]) -> None:
    agenda = World(GRID).agenda()
    for error in errors:
        task = agenda.next()
        assert task is not None
        agenda.ended(task.run_id, "failed", error)
    assert agenda.hopeless == ("a" if len(set(errors)) == 1 else None)


def test_a_run_that_fails_again_elsewhere_counts_once() -> None:
    agenda = World(GRID).agenda()
    for attempt in range(2):
        for _ in range(2):
            task = agenda.next()
            assert task is not None
            if attempt == 0:
                agenda.put_back(task.run_id, "a")
            else:
                agenda.ended(task.run_id, "failed", "a")
    assert agenda.hopeless is None, "two runs failed, twice each"


def test_an_epoch_that_comes_in_is_a_sign_of_hope() -> None:
    agenda = World(GRID).agenda()
    tasks = [agenda.next() for _ in range(4)]
    for task in tasks[: SAME_FAILURES - 1]:
        assert task is not None
        agenda.ended(task.run_id, "failed", "a")
    last = tasks[-1]
    assert last is not None
    agenda.told(last.run_id, 1, 0.5, measured=True)
    agenda.ended(last.run_id, "failed", "a")
    assert agenda.hopeless is None


def test_the_budget_cuts_a_search_short() -> None:
    world = whole(SEARCH + "budget: {trials: 2}\n")
    assert sum(r.phase == "search" for r in world.rows.values()) == 2


def test_a_missing_score_ends_a_searched_run_as_diverged() -> None:
    agenda = World(SEARCH).agenda()
    task = agenda.next()
    assert task is not None
    decision: Any = agenda.told(task.run_id, 1, float("nan"), measured=True)
    assert decision.stop and decision.diverged


def test_an_edited_search_does_not_take_its_former_self_for_its_own() -> None:
    old = whole(OPTUNA)
    new = World(OPTUNA.replace("epochs: 9", "epochs: 8"))
    new.rows = {k: replace(row, state="planned") for k, row in old.rows.items()}
    agenda = new.agenda()
    seen = set()
    for _ in range(5):
        task = agenda.next()
        assert task is not None and task.run_id not in old.rows
        assert task.run_id not in seen, "handed out once"
        seen.add(task.run_id)
    assert agenda.next() is None


def test_what_a_search_stopped_is_completed_for_a_table_that_wants_it() -> None:
    world = whole(SEARCH)
    stopped = {r.run_id for r in world.rows.values() if r.state == "stopped"}
    table = World(GRID.replace("train_size: 100", "train_size: 100, holdout: 0.1"))
    table.rows, table.curves = dict(world.rows), {k: dict(v) for k, v in world.curves.items()}
    agenda = table.agenda()
    assert not agenda.finished
    handed = set()
    while (task := agenda.next()) is not None:
        handed.add(task.run_id)
    assert handed == stopped


def test_an_attempt_that_was_started_over_leaves_no_later_epochs() -> None:
    world = World(SEARCH)
    agenda = world.agenda()
    task = agenda.next()
    assert task is not None
    agenda.curves[task.run_id] = dict.fromkeys(range(1, 9), 0.9)
    agenda.told(task.run_id, 1, 0.1, measured=True)
    assert agenda.curves[task.run_id] == {1: 0.1}


def test_errors_that_differ_only_in_the_run_are_alike() -> None:
    agenda = World(GRID).agenda()
    for _ in range(SAME_FAILURES):
        task = agenda.next()
        assert task is not None
        agenda.ended(task.run_id, "failed", f"work/{task.run_id}/checkpoint.pt: disk full")
    assert agenda.hopeless == "work/…/checkpoint.pt: disk full"
