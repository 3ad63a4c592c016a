"""Sweeps on a real private Ray, by the real command: one is run for many laws, since Ray is slow
to start."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from ray.tune import TuneConfig
from ray.tune.search import Searcher

from ascl_sweep.ledger import Ledger
from ascl_sweep.search import _tune
from ascl_sweep.spec import spec_of
from tests.sweeps import GRID, ascl_sweep, leftovers, numbers, orphans, states, write

SEARCH = (
    GRID.replace("name: grid", "name: search")
    + """
stop: {asha: {grace: 1, factor: 2}, audit: 0}
ladder: {finalists: 1}
"""
).replace("[0.02, 0.1]", "[0.01, 0.02, 0.05, 0.1]")

OTHER = (
    GRID.replace("name: grid", "name: other")
    .replace("[0.02, 0.1]", "[0.02, 0.05]")
    .replace("seeds: [0, 1]", "seeds: [0]")
)


class Done:
    """A store in which two sweeps were run, and what the command said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.grid = write(folder, GRID)
        self.search = folder / "search.yaml"
        self.search.write_text(SEARCH)
        self.other = folder / "other.yaml"
        self.other.write_text(OTHER)
        self.files = self.grid, self.other, self.search
        self.said = ascl_sweep("run", *self.files, "--store", self.store)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(tmp_path_factory.mktemp("sweeps"))


def test_a_sweep_runs_every_planned_run_to_its_end(done: Done) -> None:
    assert done.said.returncode == 0, done.said.stderr
    rows = [r for r in Ledger(done.store).runs().values() if "grid" in r.sweeps]
    assert len(rows) == 4
    assert {row.state for row in rows} == {"done"}
    for row in rows:
        assert row.epochs == row.config["epochs"] == 5
        assert row.knn_last_top1 is not None and row.knn_best_top1 is not None
        assert row.knn_best_top1 >= row.knn_last_top1
        assert row.device_hours > 0 and row.host and row.device == "cpu" and row.torch and row.ray
        assert row.created and row.started and row.ended and row.created <= row.ended
    epochs = Ledger(done.store).epochs()
    assert all([e["epoch"] for e in epochs[row.run_id]] == [1, 2, 3, 4, 5] for row in rows)


def test_what_goes_to_stdout_is_data_only(done: Done) -> None:
    assert done.said.stdout == ""
    assert "Traceback" not in done.said.stderr
    assert "ray" not in done.said.stderr.lower().replace("starting ray", "")


def test_a_search_stops_some_early_and_its_finalist_has_every_seed(done: Done) -> None:
    rows = [r for r in Ledger(done.store).runs().values() if "search" in r.sweeps]
    searched = [r for r in rows if r.phase == "search"]
    finals = [r for r in rows if r.phase == "final"]
    assert len(searched) == 4
    stopped = [r for r in searched if r.state == "stopped"]
    assert stopped and all(r.epochs < 5 and "ASHA" in (r.stopped_because or "") for r in stopped)
    assert len({r.config["method.target_temperature"] for r in finals}) == 1
    assert {r.config["seed"] for r in finals} == {0, 1}
    assert all(r.state == "done" for r in finals)
    best = max((r for r in searched if r.state == "done"), key=lambda r: r.knn_last_top1 or 0)
    key = "method.target_temperature"
    assert finals[0].config[key] == best.config[key]


def test_a_run_that_two_sweeps_want_is_trained_once_and_both_have_it(done: Done) -> None:
    rows = Ledger(done.store).runs().values()
    shared = {r.run_id for r in rows if set(r.sweeps) == {"grid", "other"}}
    assert len(shared) == 1, "τ' = 0.02 with seed 0"
    assert sum("other" in r.sweeps for r in rows) == 2


def test_checkpoints_of_stopped_runs_are_gone_and_others_are_there(done: Done) -> None:
    ledger = Ledger(done.store)
    for row in ledger.runs().values():
        there = (done.store / "work" / row.run_id / "checkpoint.pt").exists()
        assert there == (row.state == "done"), row.state


def test_a_second_run_has_nothing_to_do_and_starts_no_ray(done: Done) -> None:
    before = numbers(done.store)
    again = ascl_sweep("run", *done.files, "--store", done.store, timeout=30)
    assert again.returncode == 0, again.stderr
    assert "starting Ray" not in again.stderr
    assert numbers(done.store) == before


def test_time_passes_for_the_driver_while_nothing_runs_and_tune_only_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []

    class Tuner:
        def __init__(self, *words: Any, tune_config: TuneConfig, **named: Any) -> None:
            self.search = tune_config.search_alg

        def fit(self) -> None:
            asked.extend(self.search.suggest("a trial") for _ in range(4))

    driver = Mock(over=False, scratch=tmp_path)
    driver.spec = spec_of(GRID, file="grid.yaml")
    driver.agenda.running = set()
    driver.next.side_effect = [None, {"run_id": "a"}, None, None]
    driver.tick.side_effect = lambda: setattr(driver, "over", driver.tick.call_count == 3)
    monkeypatch.setattr("ray.tune.Tuner", Tuner)
    _tune(driver)
    assert asked == [None, {"run_id": "a"}, None, Searcher.FINISHED]


def test_nothing_is_left_behind(done: Done) -> None:
    assert orphans() == []
    assert leftovers() == []


def test_status_tells_how_the_sweeps_stand(done: Done) -> None:
    found = json.loads(ascl_sweep("status", "--store", done.store, "--json").stdout)
    assert found["driver"] is None
    grid = next(s for s in found["sweeps"] if s["name"] == "grid")
    assert grid["planned"] == 4 and grid["states"] == {"done": 4}
    assert "grid" in ascl_sweep("status", "--store", done.store).stdout
    unknown = ascl_sweep("status", "gird", "--store", done.store)
    assert unknown.returncode == 2 and "did you mean 'grid'?" in unknown.stderr


def test_plan_knows_what_is_there(done: Done) -> None:
    plan = json.loads(ascl_sweep("plan", done.grid, "--store", done.store, "--json").stdout)
    assert plan["epochs"] == 0
    assert {run["state"] for run in plan["runs"]} == {"done"}
    more = ascl_sweep(
        "plan", done.grid, "--store", done.store, "--set", "seeds=[0, 1, 2]", "--json"
    )
    plan = json.loads(more.stdout)
    assert plan["epochs"] == 2 * 5, "a new seed costs only the new cells"
    assert plan["device_hours"] > 0, "from the timings of like runs"


def test_best_is_chosen_on_the_holdout_and_can_be_trained(done: Done, tmp_path: Path) -> None:
    out = tmp_path / "best.yaml"
    said = ascl_sweep("best", "search", "--store", done.store, "--export", out)
    assert said.returncode == 0, said.stderr
    assert "on holdout (n = 1)" in said.stdout
    trained = ascl_sweep("train", out, "epochs=1", "--out", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr


def test_replay_compares_rules_on_the_recorded_curves(done: Done) -> None:
    said = ascl_sweep("replay", "grid", "--store", done.store, "--repeats", 5, "--json")
    assert said.returncode == 0, said.stderr
    outcomes = json.loads(said.stdout)
    assert outcomes[0]["epochs_share"]["mean"] == 1.0
    assert all(0 <= o["best_survives"]["mean"] <= 1 for o in outcomes)


def test_gc_frees_the_checkpoints_it_is_told_to(done: Done, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(done.store, copy)
    kept = len(list((copy / "work").iterdir()))
    assert ascl_sweep("gc", "--store", copy).returncode == 0
    assert len(list((copy / "work").iterdir())) == kept
    assert ascl_sweep("gc", "--store", copy, "--done").returncode == 0
    assert list((copy / "work").iterdir()) == []


def test_compact_keeps_everything(done: Done, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(done.store, copy)
    assert ascl_sweep("compact", "--store", copy).returncode == 0
    assert numbers(copy) == numbers(done.store)
    assert len(list((copy / "epochs").glob("*.parquet"))) == 1


@pytest.mark.slow
def test_what_can_never_be_scheduled_is_refused_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, GRID + "resources: {gpus_per_worker: 64}\n")
    said = ascl_sweep("run", path, "--store", tmp_path / "store")
    assert said.returncode == 4
    assert "got resources.gpus_per_worker=64" in said.stderr
    assert "--scale laptop" in said.stderr
    assert set(states(tmp_path / "store")) == {"planned"}


@pytest.mark.slow
def test_a_sweep_whose_runs_all_fail_alike_ends_early(tmp_path: Path) -> None:
    text = GRID.replace("name: shapes, train_size: 200", f"name: cifar10, root: {tmp_path}/no")
    path = write(tmp_path, text.replace("seeds: [0, 1]", "seeds: [0, 1, 2, 3, 4]"))
    said = ascl_sweep("run", path, "--store", tmp_path / "store")
    assert said.returncode == 1, said.stderr
    assert "every run fails alike, so the sweep was ended: cifar10 is not in" in said.stderr
    assert states(tmp_path / "store").count("failed") <= 4
    assert "Traceback (most recent call last)" not in said.stderr.replace("│ Traceback", "")


def test_a_dry_run_shows_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    said = ascl_sweep("run", write(tmp_path, GRID), "--store", tmp_path / "store", "--dry-run")
    assert said.returncode == 0
    assert "grid: 4 runs" in said.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_a_budget_of_hours_ends_the_call_and_the_next_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, GRID + "budget: {hours: 0.000001}\n")
    said = ascl_sweep("run", path, "--store", tmp_path / "store")
    assert said.returncode == 3, said.stderr
    assert "the budget is used up; go on with:" in said.stderr
    assert "done" not in states(tmp_path / "store")
