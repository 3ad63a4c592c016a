"""The main table: signs, adjusted means, order of the rows, tuning budgets."""

from dataclasses import replace
from typing import Any

import pytest

from ascl_sweep.analysis.table import AblationTable, build_table
from ascl_sweep.contracts import RunRow
from ascl_sweep.report.sweep_tables import arms_table, consistent_mean, means_table
from ascl_sweep.report.tables import Cell, Table
from tests.stores import ASCL, MOCO, NEIGHBOURS, RELABEL, TEMPERATURE, arm, in_order, run, sweep
from tests.stores import table as file_table

BASE = [88.0, 88.2, 88.1]


def built(rows: list[RunRow], **digest: Any) -> AblationTable:
    given = {"table": file_table(RELABEL, baseline=MOCO), **digest}
    axes = given.pop("axes", (RELABEL,))
    found = build_table(sweep("it", axes, **given), in_order(rows))
    assert found is not None
    return found


def column(table: Table, place: int = 1) -> dict[str, Cell]:
    return {row[0].text: row[place] for row in table.rows}


def test_each_verdict_has_its_sign_and_only_better_is_bold() -> None:
    rows = [
        *arm("it", MOCO, [88.0, 88.2, 88.1, 88.3, 88.0]),
        *arm("it", ASCL, [91.0, 91.3, 91.1, 91.2, 91.1]),
        *arm("it", {RELABEL: "hard"}, [85.0, 85.3, 85.1, 85.2, 85.1]),
        *arm("it", {RELABEL: "ahcl"}, [88.0, 88.2, 88.0, 88.3, 88.1]),
        *arm("it", {"method.name": "near", RELABEL: "none"}, [88.5, 88.2, 88.7, 88.1, 88.4]),
    ]
    baseline = {**MOCO, "method.name": "moco"}
    found = built(
        rows,
        axes=("method.name", RELABEL),
        table=file_table(RELABEL, baseline=baseline),
        seeds=tuple(range(5)),
    )
    cells = {row[0].text: row[-1] for row in means_table(found).rows}
    signs = {name: cell.marks for name, cell in cells.items()}
    assert signs == {"MoCo": (), "ASCL": ("†",), "Hard": ("‡",), "AHCL": ("≈",), "near": ()}
    assert [name for name, cell in cells.items() if cell.bold] == ["ASCL"]
    assert [name for name, cell in cells.items() if cell.muted] == ["near"]


def test_the_row_of_the_baseline_is_first() -> None:
    rows = [*arm("it", ASCL, BASE), *arm("it", {RELABEL: "hard"}, BASE), *arm("it", MOCO, BASE)]
    grid = built(rows).grid
    assert grid.rows == ("MoCo", "ASCL", "Hard")
    found = built(rows)
    for (row, _), i in found.grid.places.items():
        assert found.arms[i].label == found.grid.rows[row]


def test_means_and_differences_agree_where_seeds_are_missing() -> None:
    rows = [
        *arm("it", MOCO, [86.0, 88.0, 90.0]),
        *arm("it", ASCL, [87.0, 89.0]),
        run("it", ASCL, 2),
    ]
    found = built(rows)
    base, ours = found.arms
    assert ours.comparison is not None and base.mean is not None
    assert ours.mean == pytest.approx(88.0), "equal to the baseline's mean, although Δ is +1"
    assert consistent_mean(found, ours) == pytest.approx(base.mean + 1.0)
    cell = column(means_table(found))["ASCL"]
    assert cell.text == "89.0 ± 1.4 (2/3)" and "*" in cell.marks
    assert column(arms_table(found), 2)["ASCL"].text == "88.0 ± 1.4", "the raw mean"


def test_means_of_complete_arms_are_their_own() -> None:
    found = built([*arm("it", MOCO, BASE), *arm("it", ASCL, [89.1, 88.7, 90.3])])
    assert all(consistent_mean(found, each) == each.mean for each in found.arms)


@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_an_arm_with_a_lost_seed_is_marked(state: str) -> None:
    rows = [*arm("it", MOCO, BASE), *arm("it", ASCL, [95.0, 95.1]), run("it", ASCL, 2, state=state)]
    shown = means_table(built(rows))
    cell, notes = column(shown)["ASCL"], dict(shown.notes)
    assert f"1 {state} of 3 seeds" in [notes[mark] for mark in cell.marks]
    assert not cell.bold


def test_a_reference_is_shown_and_neither_compared_nor_bold() -> None:
    supervised = arm("it", {**MOCO, "method.name": "supervised"}, [95.0, 95.2, 95.1])
    baseline = {**MOCO, "method.name": "moco"}
    found = built(
        [*arm("it", MOCO, BASE), *supervised],
        axes=("method.name",),
        table=file_table("method.name", baseline=baseline),
    )
    shown = means_table(found)
    cell = next(row[-1] for row in shown.rows if row[0].text == "Supervised")
    assert not cell.bold and not cell.muted
    assert "reference, outside the comparisons" in [dict(shown.notes)[m] for m in cell.marks]


def test_tuning_budgets_are_shown_and_unequal_ones_are_marked() -> None:
    trials = [
        replace(run("it", {**changes, TEMPERATURE: tau, "data.holdout": 0.1}, 0, 80.0),
                phase="search", run_id=f"{changes[RELABEL]}-{tau}")
        for changes, taus in ((ASCL, (0.01, 0.02, 0.05)), ({RELABEL: "hard"}, (0.01,)))
        for tau in taus
    ]  # fmt: skip
    finals = [*arm("it", ASCL, BASE), *arm("it", {RELABEL: "hard"}, BASE)]
    found = built([*trials, *finals], search=True, trials=4, finalists=2)
    long = arms_table(found)
    shown = column(long, long.header.index("tried"))
    assert {name: cell.text for name, cell in shown.items()} == {"ASCL": "3", "Hard": "1"}
    assert "configurations tried: 1 (other arms: 3)" in found.notes.values() or (
        "configurations tried: 3 (other arms: 1)" in found.notes.values()
    )
    assert any("tuning budgets are unequal" in remark for remark in found.remarks)


def test_an_arm_in_every_column_keeps_its_sign() -> None:
    rows = [*arm("it", MOCO, BASE)]
    for k in (1, 5):
        rows += arm("it", {**ASCL, NEIGHBOURS: k}, [91.0, 91.3, 91.1])
    shown = means_table(
        built(
            rows,
            axes=(RELABEL, NEIGHBOURS),
            table=file_table(RELABEL, columns=NEIGHBOURS, baseline=MOCO),
        )
    )
    assert [cell.marks for cell in shown.rows[1][1:]] == [("†",), ("†",)]
    assert shown.caption and len(shown.caption) <= 2
