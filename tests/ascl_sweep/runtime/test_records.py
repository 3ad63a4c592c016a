"""Rows of runs: names of sweeps, states, costs and summaries."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.runtime import records
from ascl_sweep.runtime.records import claim_runs, summarize_epochs
from ascl_sweep.search.study import Study
from ascl_sweep.spec.sweep import parse_sweep
from ascl_sweep.store.store import Store
from tests.ascl_sweep.search.test_study import BASE, GRID, SEARCH, STOP

ARMS = [0.01, 0.02, 0.05, 0.1]


def a_grid(arms: list[float], name: str = "it") -> str:
    grid = BASE + f"space: {{grid: {{method.target_temperature: {arms}}}}}\n"
    return grid.replace("name: it", f"name: {name}")


def study(text: str, rows: dict[str, RunRow]) -> Study:
    return Study(parse_sweep(text, file="it.yaml"), dict(rows), {})


def claimed(text: str, rows: dict[str, RunRow]) -> dict[str, RunRow]:
    """Return the store's rows after a sweep has claimed its runs."""
    return rows | {row.run_id: row for row in claim_runs(study(text, rows), rows)}


def test_what_is_wanted_and_not_started_is_planned() -> None:
    rows = claimed(GRID + "seeds: [0, 1]\n", {})
    assert len(rows) == 8
    assert {row.state for row in rows.values()} == {"planned"}
    assert {row.sweeps for row in rows.values()} == {("it",)}


def test_a_finished_run_keeps_its_state_when_another_sweep_wants_it() -> None:
    rows = {k: replace(row, state=RunState.DONE) for k, row in claimed(GRID, {}).items()}
    rows = claimed(a_grid(ARMS, "other"), rows)
    assert {row.sweeps for row in rows.values()} == {("it", "other")}
    assert {row.state for row in rows.values()} == {"done"}


@given(st.lists(st.sampled_from(ARMS), min_size=1, unique=True), st.permutations(ARMS))
def test_a_sweeps_name_stands_on_what_its_file_wants_now(
    now: list[float], was: list[float]
) -> None:
    rows = claimed(a_grid(now), claimed(a_grid(ARMS, "other"), claimed(a_grid(was), {})))
    own = {row.config["method.target_temperature"] for row in rows.values() if "it" in row.sweeps}
    assert own == set(now)
    assert all("other" in row.sweeps for row in rows.values())
    assert claimed(a_grid(now), rows) == rows, "nothing changes the second time"


def test_runs_are_in_order_of_creation_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "unix_time", lambda: 1e9)
    first = claimed(a_grid(ARMS[:2]), {})
    monkeypatch.setattr(records, "unix_time", lambda: 1e9 - 3600)
    rows = claimed(a_grid(ARMS), first)
    created = [row.created for row in rows.values()]
    assert created == sorted({*created}), "no two are equal"
    assert list(rows)[:2] == list(first)


def test_the_store_keeps_the_order_of_many_runs_that_were_planned_at_once(tmp_path: Path) -> None:
    rows = claimed(a_grid([i / 100 for i in range(1, 101)]), {})
    with Store(tmp_path).writer() as writer:
        for row in rows.values():
            writer.put_run(row)
    found = Store(tmp_path).runs()
    assert list(found) == list(rows)
    assert len({row.created for row in found.values()}) == 100


def test_a_run_is_noted_with_what_its_method_costs() -> None:
    for changes, cost in (
        ("{}", (1, True)),
        ("{symmetric: true}", (2, True)),
        ("{name: byol, symmetric: true, momentum_rises: true}", (2, True)),
    ):
        text = f"name: it\nbase: {{method: {changes}}}\n"
        (row,) = claimed(text, {}).values()
        assert (row.backprops, row.ema) == cost


def test_a_run_of_an_older_version_gets_the_keys_that_it_lacks() -> None:
    """The run id is unchanged; without these keys the run would be a separate arm."""
    now = claimed(GRID, {})
    later = {"optim.name", "method.symmetric"}
    old = {
        run_id: replace(
            row,
            config={k: v for k, v in row.config.items() if k not in later},
            backprops=None,
            ema=None,
            state=RunState.DONE,
        )
        for run_id, row in now.items()
    }
    assert claimed(GRID, old) == {k: replace(row, state=RunState.DONE) for k, row in now.items()}


def an_epoch(peak_memory_gb: float | None = None) -> EpochMetrics:
    return EpochMetrics(1, loss=1.0, lr=0.1, knn_top1=0.5, peak_memory_gb=peak_memory_gb)


def test_a_runs_memory_is_at_its_highest_and_that_of_an_older_version_is_not_known() -> None:
    row = next(iter(claimed(GRID, {}).values()))
    peaks = [an_epoch(peak_memory_gb=gb) for gb in (1.0, 3.0, None, 2.0)]  # resumed twice
    assert summarize_epochs(row, peaks).peak_memory_gb == 3.0
    assert summarize_epochs(row, [an_epoch()]).peak_memory_gb is None


def test_finalists_of_an_earlier_call_stay_while_the_search_goes_on() -> None:
    searched = claimed(SEARCH, {})
    final = next(iter(claimed(GRID.replace("name: it", "name: old"), {}).values()))
    rows = searched | {final.run_id: replace(final, sweeps=("it",), state=RunState.DONE)}
    assert claimed(SEARCH, rows)[final.run_id].sweeps == ("it",)
    assert STOP in SEARCH


def test_temperature_is_idle_where_nothing_is_relabelled_and_the_word_that_says_so_is_not() -> None:
    spec = parse_sweep(BASE, file="it.yaml")
    plain = spec.config({"method.relabel": "none"}, seed=0)
    assert {"method.num_neighbours", "method.target_temperature"} <= set(plain.idle_keys())
    assert "method.relabel" not in plain.idle_keys()
    assert "method.target_temperature" not in spec.config({}, seed=0).idle_keys()
    hard = spec.config({"method.relabel": "hard"}, seed=0)
    assert "method.target_temperature" in hard.idle_keys()
    assert "method.num_neighbours" not in hard.idle_keys()
