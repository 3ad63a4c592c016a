"""Sweeps on a real private Ray, run with the real command. Ray starts slowly, so many tests check
the same sweeps."""

import json
import shutil
from pathlib import Path

import pytest

from ascl_sweep.store.store import Store
from tests.sweeps import GRID, ascl_sweep, leftovers, numbers, orphans, states, write

pytestmark = pytest.mark.slow

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


LOCAL = ("--executor", "local")  # tests of the controller's decisions need no Ray


class Done:
    """Store of three sweeps, and the output of the command that ran them."""

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
    rows = [r for r in Store(done.store).runs().values() if "grid" in r.sweeps]
    assert len(rows) == 4
    assert {row.state for row in rows} == {"done"}
    for row in rows:
        assert row.epochs == row.config["epochs"] == 5
        assert row.knn_last_top1 is not None and row.knn_best_top1 is not None
        assert row.knn_best_top1 >= row.knn_last_top1
        assert row.device_hours > 0 and row.host and row.device == "cpu" and row.torch and row.ray
        assert row.created and row.started and row.ended and row.created <= row.ended
    epochs = Store(done.store).epochs()
    assert all([e.epoch for e in epochs[row.run_id]] == [1, 2, 3, 4, 5] for row in rows)


def test_what_goes_to_stdout_is_data_only(done: Done) -> None:
    assert done.said.stdout == ""
    assert "Traceback" not in done.said.stderr
    assert "ray" not in done.said.stderr.lower().replace("starting ray", "")


def test_a_search_stops_some_early_and_its_finalist_has_every_seed(done: Done) -> None:
    rows = [r for r in Store(done.store).runs().values() if "search" in r.sweeps]
    searched = [r for r in rows if r.phase == "search"]
    finals = [r for r in rows if r.phase == "final"]
    assert len(searched) == 4
    stopped = [r for r in searched if r.state == "stopped"]
    assert stopped and all(r.epochs < 5 and "ASHA" in (r.stopped_because or "") for r in stopped)
    assert {r.config["seed"] for r in finals} == {0, 1}
    assert all(r.state == "done" for r in finals)
    best = max((r for r in searched if r.state == "done"), key=lambda r: r.knn_last_top1 or 0)
    key = "method.target_temperature"
    assert {r.config[key] for r in finals} == {best.config[key], 0.05}, "the best and the base"


def test_a_run_that_two_sweeps_want_is_trained_once_and_both_have_it(done: Done) -> None:
    rows = Store(done.store).runs().values()
    shared = {r.run_id for r in rows if {"grid", "other"} <= set(r.sweeps)}
    assert len(shared) == 1, "τ' = 0.02 with seed 0"
    assert sum("other" in r.sweeps for r in rows) == 2


def test_checkpoints_of_stopped_runs_are_gone_and_others_are_there(done: Done) -> None:
    store = Store(done.store)
    for row in store.runs().values():
        there = (done.store / "work" / row.run_id / "checkpoint.pt").exists()
        assert there == (row.state == "done"), row.state


def test_a_second_run_has_nothing_to_do_and_starts_no_ray(done: Done) -> None:
    before = numbers(done.store)
    again = ascl_sweep("run", *done.files, "--store", done.store, timeout=30)
    assert again.returncode == 0, again.stderr
    assert "starting Ray" not in again.stderr
    assert numbers(done.store) == before


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
    assert plan["epochs"] == 2 * 5, "only the runs of the new seed are trained"
    assert plan["device_hours"] > 0, "estimated from the timings of similar runs"


def test_best_is_chosen_on_the_holdout_and_can_be_trained(done: Done, tmp_path: Path) -> None:
    out = tmp_path / "best.yaml"
    said = ascl_sweep("best", "search", "--store", done.store, "--export", out)
    assert said.returncode == 0, said.stderr
    assert "on holdout (n = 1)" in said.stdout
    trained = ascl_sweep("train", out, "epochs=1", "--out", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr


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


def test_what_can_never_be_scheduled_is_refused_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, GRID + "resources: {gpus_per_worker: 64}\n")
    said = ascl_sweep("run", path, "--store", tmp_path / "store")
    assert said.returncode == 4
    assert "got resources.gpus_per_worker=64" in said.stderr
    assert "--scale laptop" in said.stderr and "starting Ray" not in said.stderr
    assert not (tmp_path / "store").exists()


def test_a_sweep_whose_runs_all_fail_alike_ends_early(tmp_path: Path) -> None:
    path = write(tmp_path, GRID.replace("seeds: [0, 1]", "seeds: [0, 1, 2, 3, 4]"))
    words = ("run", path, "--set", "runtime.device=warp", "--store", tmp_path / "store", *LOCAL)
    said = ascl_sweep(*words)
    assert said.returncode == 1, said.stderr
    assert "all runs fail with the same error, so the sweep was stopped: " in said.stderr
    assert states(tmp_path / "store").count("failed") <= 4
    assert "Traceback (most recent call last)" not in said.stderr.replace("│ Traceback", "")


def test_a_dry_run_shows_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    said = ascl_sweep("run", write(tmp_path, GRID), "--store", tmp_path / "store", "--dry-run")
    assert said.returncode == 0
    assert "grid: 4 runs" in said.stderr
    assert not (tmp_path / "store").exists()


def test_a_budget_of_hours_ends_the_call_and_the_next_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, GRID + "budget: {hours: 0.000001}\n")
    said = ascl_sweep("run", path, "--store", tmp_path / "store", *LOCAL)
    assert said.returncode == 3, said.stderr
    assert "the budget is used up; resume with:" in said.stderr
    assert "done" not in states(tmp_path / "store")
