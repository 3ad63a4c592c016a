"""The checklist's numbers are those of the store, with their n, and no run is missing."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ascl_sweep.contracts import RunState
from ascl_sweep.errors import UsageError
from ascl_sweep.report.checklist import render_checklist
from ascl_sweep.report.report import Report, build_report
from ascl_sweep.store.store import Store
from tests.stores import ASCL, MOCO, RELABEL, TEMPERATURE, arm, in_order, run, sweep, table, write

LOG_UNIFORM = (
    '{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.01, "high": 0.2, '
    '"log": true}}'
)
CHOICES = '{"name": "CategoricalDistribution", "attributes": {"choices": ["none", "ascl"]}}'
INTEGERS = (
    '{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}'
)


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return render_checklist("neurips", report)


def rows(text: str, *start: str) -> list[list[str]]:
    """The cells of table rows that start with these cells."""
    lines = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in text.splitlines() if "|" in line]
    return [cells for cells in lines if tuple(cells[: len(start)]) == start]


def test_an_unknown_checklist_is_refused_with_the_known_ones(report: Report) -> None:
    with pytest.raises(UsageError, match="neurips"):
        render_checklist("neurip", report)


def test_every_run_is_counted_by_phase_and_state(text: str, store: Store) -> None:
    runs = list(store.runs().values())
    total = text.split("All runs, each counted once")[1]
    for phase in ("search", "final"):
        for state in RunState:
            own = [run for run in runs if run.phase == phase and run.state == state]
            found = rows(total, phase, str(state))
            assert len(found) == bool(own)
            if own:
                assert int(found[0][2]) == len(own)
                hours = sum(run.device_hours for run in own)
                assert float(found[0][3]) == pytest.approx(hours, rel=0.01)
                assert int(found[0][5]) == sum(run.epochs for run in own)
    assert int(rows(total, "all", "all")[0][2]) == len(runs)


def test_the_total_includes_what_the_tables_do_not_report(text: str, store: Store) -> None:
    runs = store.runs().values()
    found = re.search(r"took ([\d.]+) device-hours in total \(n = (\d+) started", text)
    assert found is not None
    assert float(found[1]) == pytest.approx(sum(run.device_hours for run in runs), rel=0.01)
    assert "took the other 11.3 (n = 13)" in text


def test_a_run_of_two_sweeps_is_counted_once(tmp_path: Path) -> None:
    both = in_order(replace(row, sweeps=("a", "b")) for row in arm("a", ASCL, [90.0, 91.0]))
    text = render_checklist(
        "neurips", build_report(write(tmp_path, [sweep("a"), sweep("b")], both))
    )
    assert rows(text, "a", "all")[0][3] == rows(text, "b", "all")[0][3] == "2"
    assert rows(text, "all", "all")[0][2] == "2"
    assert "took 5.00 device-hours in total (n = 2 started runs)" in text


def test_device_hours_are_given_per_device(text: str) -> None:
    assert "- NVIDIA A100: 78.8 device-hours (n = 40 runs)." in text
    assert "- cpu: 1.12 device-hours (n = 15 runs)." in text


def test_memory_workers_and_wall_time_are_given_with_n(tmp_path: Path) -> None:
    more = {"peak_memory_gb": 4.25, "workers": 2, "train_seconds": 7200.0, "eval_seconds": 1800.0}
    store = write(tmp_path, [sweep("it")], in_order(arm("it", ASCL, [90.0, 91.0], **more)))
    text = render_checklist("neurips", build_report(store))
    assert "Peak memory of one device: 4.25 GB (maximum, n = 2 runs)." in text
    assert "Devices per run: 2 devices (n = 2)." in text
    assert "4.00 h of training, 1.00 h of evaluation" in text


def test_validation_scores_stand_beside_test_scores(text: str) -> None:
    assert rows(text, "τ' = 0.05", "82.00") == [["τ' = 0.05", "82.00", "1", "90.10 ± 0.10", "3"]]
    assert rows(text, "τ' = 0.02", "81.00") == [["τ' = 0.02", "81.00", "1", "89.73 ± 0.15", "3"]]


def test_validation_scores_are_those_of_the_finalists_configuration(tmp_path: Path) -> None:
    """A trial of an earlier search with fewer epochs is another configuration."""
    asked = sweep("it", (TEMPERATURE,), search=True, trials=2, finalists=1)
    searched = {TEMPERATURE: 0.05, "data.holdout": 0.1}
    trials = [
        replace(
            run("it", {**searched, "epochs": epochs}, 7, score), phase="search", run_id=f"{epochs}"
        )
        for epochs, score in ((50, 70.0), (200, 85.0))
    ]
    finals = arm("it", {TEMPERATURE: 0.05}, [90.0, 91.0])
    made = build_report(write(tmp_path, [asked], in_order([*trials, *finals])))
    text = render_checklist("neurips", made).split("validation:")[1]
    assert rows(text, "τ' = 0.05")[0][1:3] == ["80.00", "1"]


def test_search_spaces_have_bounds_and_how_values_are_chosen(tmp_path: Path) -> None:
    keys = (TEMPERATURE, RELABEL, "method.num_neighbours")
    spaces = dict(zip(keys, (LOG_UNIFORM, CHOICES, INTEGERS), strict=True))
    asked = sweep("it", keys, search=True, trials=2, finalists=1, distributions=spaces)
    trials = [
        replace(run("it", {TEMPERATURE: tau, "data.holdout": 0.1}, 7, 80.0), phase="search")
        for tau in (0.02, 0.05)
    ]
    text = render_checklist("neurips", build_report(write(tmp_path, [asked], in_order(trials))))
    assert "| τ' | 0.01 to 0.2; 2 values tried | numbers sampled on a logarithmic scale |" in text
    assert "| relabel | none, ascl; 1 value tried | sampled from the listed values |" in text
    assert "| K | 1 to 9; 1 value tried | integers sampled on a linear scale, step 2 |" in text
    assert "Seed of the search: 7." in text
    assert "**Answer: No.** No run of a table is finished yet." in text


def test_many_values_of_a_grid_are_a_range(tmp_path: Path) -> None:
    values = [0.01 * i for i in range(1, 13)]
    own = [row for tau in values for row in arm("it", {TEMPERATURE: tau}, [90.0])]
    store = write(tmp_path, [sweep("it", (TEMPERATURE,))], in_order(own))
    text = render_checklist("neurips", build_report(store))
    assert "| τ' | 0.01 to 0.12 (12 values) | listed in the sweep file |" in text


def test_single_seeds_are_no_error_bars(tmp_path: Path) -> None:
    asked = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO))
    own = in_order([*arm("it", MOCO, [88.0]), *arm("it", ASCL, [90.0])])
    text = render_checklist("neurips", build_report(write(tmp_path, [asked], own)))
    assert "**Answer: No.** Each of 2 arms has at most one finished seed." in text


def test_a_store_without_runs_has_answers(tmp_path: Path) -> None:
    text = render_checklist("neurips", build_report(write(tmp_path, [sweep("it")], [])))
    assert text.count("**Answer: No.**") == 2
