"""What is written down of a sweep besides its runs' numbers."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.agenda import Agenda, idle_keys
from ascl_sweep.ledger import RunRow
from ascl_sweep.rows import claims, summed_up
from ascl_sweep.spec import spec_of
from tests.ascl_sweep.test_agenda import BASE, GRID, SEARCH, STOP

ARMS = [0.01, 0.02, 0.05, 0.1]


def a_grid(arms: list[float], name: str = "it") -> str:
    grid = BASE + f"space: {{grid: {{method.target_temperature: {arms}}}}}\n"
    return grid.replace("name: it", f"name: {name}")


def agenda(text: str, rows: dict[str, RunRow]) -> Agenda:
    return Agenda(spec_of(text, file="it.yaml"), dict(rows), {})


def claimed(text: str, rows: dict[str, RunRow]) -> dict[str, RunRow]:
    """The ledger's rows after a sweep has noted what it wants."""
    return rows | {row.run_id: row for row in claims(agenda(text, rows), rows)}


def test_what_is_wanted_and_not_started_is_planned() -> None:
    rows = claimed(GRID + "seeds: [0, 1]\n", {})
    assert len(rows) == 8
    assert {row.state for row in rows.values()} == {"planned"}
    assert {row.sweeps for row in rows.values()} == {("it",)}


def test_a_finished_run_keeps_its_state_when_another_sweep_wants_it() -> None:
    rows = {k: replace(row, state="done") for k, row in claimed(GRID, {}).items()}
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
    """Its id is the same, and without them it would be an arm of its own."""
    now = claimed(GRID, {})
    later = {"optim.name", "method.symmetric"}
    old = {
        run_id: replace(
            row,
            config={k: v for k, v in row.config.items() if k not in later},
            backprops=None,
            ema=None,
            state="done",
        )
        for run_id, row in now.items()
    }
    assert claimed(GRID, old) == {k: replace(row, state="done") for k, row in now.items()}


def an_epoch(**metrics: float | None) -> dict[str, float | None]:
    times = {"train_seconds": 1.0, "eval_seconds": 1.0, "images_per_second": 10.0}
    return {"knn_top1": 0.5, "probe_top1": None, "probe_best_top1": None, **times, **metrics}


def test_a_runs_memory_is_at_its_highest_and_that_of_an_older_version_is_not_known() -> None:
    row = next(iter(claimed(GRID, {}).values()))
    peaks = [an_epoch(peak_memory_gb=gb) for gb in (1.0, 3.0, None, 2.0)]  # went on twice
    assert summed_up(row, peaks).peak_memory_gb == 3.0
    assert summed_up(row, [an_epoch()]).peak_memory_gb is None


def test_finalists_of_an_earlier_call_stay_while_the_search_goes_on() -> None:
    searched = claimed(SEARCH, {})
    final = next(iter(claimed(GRID.replace("name: it", "name: old"), {}).values()))
    rows = searched | {final.run_id: replace(final, sweeps=("it",), state="done")}
    assert claimed(SEARCH, rows)[final.run_id].sweeps == ("it",)
    assert STOP in SEARCH


def test_temperature_is_idle_where_nothing_is_relabelled_and_the_word_that_says_so_is_not() -> None:
    spec = spec_of(BASE, file="it.yaml")
    plain = spec.config({"method.relabel": "none"}, seed=0)
    assert {"method.num_neighbours", "method.target_temperature"} <= set(idle_keys(plain))
    assert "method.relabel" not in idle_keys(plain)
    assert "method.target_temperature" not in idle_keys(spec.config({}, seed=0))
    hard = spec.config({"method.relabel": "hard"}, seed=0)
    assert "method.target_temperature" in idle_keys(hard)
    assert "method.num_neighbours" not in idle_keys(hard)
