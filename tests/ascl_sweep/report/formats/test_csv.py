"""CSV: one row per run, with the scores that JSON holds by seed."""

import csv
import io
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.contracts import RunRow, SweepRow
from ascl_sweep.report.formats import csv as csv_format
from ascl_sweep.report.formats import json as json_format
from ascl_sweep.report.report import Report, build_report
from ascl_sweep.report.rows import run_columns
from ascl_sweep.store.store import Store
from tests.stores import ASCL, MOCO, RELABEL, arm, in_order, sweep, table, write


def read(report: Report) -> list[dict[str, str]]:
    first, rest = csv_format.FORMAT.render(report).split("\n", 1)
    assert first.startswith("# ascl-sweep report ")
    return list(csv.DictReader(io.StringIO(rest)))


@pytest.fixture(scope="module")
def rows(report: Report) -> list[dict[str, str]]:
    return read(report)


def test_every_run_of_the_store_has_a_row(rows: list[dict[str, str]], store: Store) -> None:
    wanted = {(name, run.run_id) for run in store.runs().values() for name in run.sweeps}
    assert {(row["sweep"], row["run_id"]) for row in rows} == wanted
    assert len(rows) == len(wanted)


def test_the_scores_are_those_of_json(rows: list[dict[str, str]], report: Report) -> None:
    data = json.loads(json_format.FORMAT.render(report))
    for found in data["sweeps"]:
        for ours in found["table"]["arms"] if found["table"] else ():
            own = [row for row in rows if row["run_id"] in ours["run_ids"]]
            own = [row for row in own if row["sweep"] == found["name"] and row["score"]]
            assert {row["arm"] for row in own} <= {ours["label"]}
            assert {row["seed"]: float(row["score"]) for row in own} == ours["scores"]


def test_runs_without_a_final_score_have_their_state(rows: list[dict[str, str]]) -> None:
    for row in rows:
        assert (row["score"] != "") == (row["state"] == "done")
    assert {row["state"] for row in rows} == {"done", "failed", "diverged", "stopped"}


def test_a_searched_run_is_scored_on_the_holdout(rows: list[dict[str, str]]) -> None:
    for row in rows:
        assert (row["scored_on"] == "holdout") == (row["phase"] == "search")
        if row["phase"] == "search":
            assert row["metric"] == "knn_top1"


def test_a_key_without_effect_is_empty(rows: list[dict[str, str]]) -> None:
    own = [row for row in rows if row["sweep"] == "neighbours"]
    by_relabel = {row["method.relabel"]: row["method.num_neighbours"] for row in own}
    assert by_relabel["none"] == "" and by_relabel["ascl"] == "5"


def test_the_columns_include_each_varied_key_once(report: Report) -> None:
    columns = run_columns(report)
    assert len(set(columns)) == len(columns)
    keys = ("data.name", "method.relabel", "method.num_neighbours", "optim.lr")
    assert set(keys) <= set(columns)


def test_runs_of_methods_have_their_costs(tmp_path_factory: pytest.TempPathFactory) -> None:
    cost = {"backprops": 1, "ema": True, "images_per_second": 512.0, "peak_memory_gb": 4.25}
    runs = in_order(arm("it", MOCO, [88.0], **cost))
    store = write(tmp_path_factory.mktemp("costs"), [sweep("it", (RELABEL,))], runs)
    (row,) = read(build_report(store))
    shown = (row["backprops"], row["ema"], row["images_per_second"], row["peak_memory_gb"])
    assert shown == ("1", "True", "512.0", "4.25")


@given(st.text(min_size=1))
def test_any_name_stays_in_its_cell(name: str) -> None:
    changes = {**ASCL, "method.name": name}
    runs = in_order([*arm("it", changes, [88.0]), *arm("it", MOCO, [87.0])])
    found = read(build_report(Memory(runs)))
    assert sorted(float(row["score"]) for row in found) == [87.0, 88.0]
    assert all(row.keys() == found[0].keys() and None not in row.values() for row in found)


class Memory(Store):
    """A store in memory, with the methods that a report needs."""

    def __init__(self, runs: Sequence[RunRow]) -> None:
        super().__init__("memory")
        self._rows = {run.run_id: run for run in runs}

    def sweeps(self) -> dict[str, SweepRow]:
        return {"it": sweep("it", ("method.name", RELABEL), table=table(RELABEL, baseline=MOCO))}

    def runs(self) -> dict[str, RunRow]:
        return self._rows
