"""The paper's numbers: equal to the printed ones, and matched to the right runs."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl.config import RunConfig
from ascl_sweep.analysis import labels, stats
from ascl_sweep.analysis.comparison import Options
from ascl_sweep.analysis.table import AblationTable, build_table
from ascl_sweep.contracts import RunRow, SweepRow
from ascl_sweep.reproduction.compare import (
    COMMON,
    TABLES,
    PaperCell,
    PaperTable,
    annotate_table,
    find_cell,
    find_table,
    predict_run,
)
from ascl_sweep.spec.sweep import load_sweep
from tests.paths import ROOT
from tests.stores import EXAMPLE_ROWS, EXAMPLE_SWEEPS, TEMPERATURE, arm, in_order, sweep
from tests.stores import table as file_table

PRINTED = Path(__file__).parent / "printed_tables.txt"
CELLS = [(paper, cell) for paper in TABLES.values() for cell in paper.cells]
SIZES = {
    "small_datasets": 8 * 4,
    "augmentation": 4 * 4,
    "neighbours": 2 + 3 * 8,  # MoCo has one number for all K
    "imagenet": 14,
    "tau_prime": 2 * 5,
    "byol": 2 * 3,
}
NUMBER = re.compile(r"\d+(\.\d+)?")


def printed() -> dict[str, list[list[str]]]:
    """Return the cell texts of the paper's tables, by label and row."""
    tables: dict[str, list[list[str]]] = {}
    label = ""
    for line in PRINTED.read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith(" "):
            tables[label].append(line.strip().split(" | "))
        else:
            label = line
            tables[label] = []
    return tables


def run(**sections: Any) -> RunConfig:
    return RunConfig.of({"data": {"name": "cifar10"}, **sections})


def idle(config: RunConfig) -> set[str]:
    return {f"method.{key}" for key in config.method.inert()}


def found(name: str, config: RunConfig) -> float | None:
    cell = find_cell(find_table(name), config.flat_values(), idle(config))
    return None if cell is None else cell.value


def marked(name: str, words: str) -> list[PaperCell]:
    """Return the cells of a table with the footnote that contains these words."""
    paper = find_table(name)
    (key,) = [key for key, text in paper.footnotes.items() if words in text]
    return [cell for cell in paper.cells if key in cell.notes]


def test_methods_are_called_as_the_paper_prints_them() -> None:
    for name in ("small_datasets", "imagenet", "byol"):
        for cell in find_table(name).cells:
            printed = re.sub(r"\((Ours|\*)\)", "", cell.row)
            assert labels.system(cell.where) == printed


def test_the_tables_have_all_their_cells() -> None:
    assert {name: len(paper.cells) for name, paper in TABLES.items()} == SIZES
    assert all(paper.name == name for name, paper in TABLES.items())


@pytest.mark.parametrize("name", SIZES)
def test_every_number_is_the_paper_s_in_its_order(name: str) -> None:
    paper = find_table(name)
    texts = [text for row in printed()[paper.label] for text in row]
    ours: list[float] = []
    for cell in paper.cells:
        setting = paper.settings.get(cell.row, {})
        ours += [float(setting[key]) for key in ("batch_size", "epochs") if key in setting]
        ours.append(cell.value)
    assert ours == [float(text) for text in texts if NUMBER.fullmatch(text)]


def test_every_table_of_the_paper_is_here() -> None:
    assert sorted(paper.label for paper in TABLES.values()) == sorted(printed())


@pytest.mark.parametrize("name", ["small_datasets", "imagenet"])
def test_every_row_and_its_costs_are_the_paper_s(name: str) -> None:
    first = {"small_datasets": 1, "imagenet": 2}[name]
    rows = printed()[find_table(name).label]
    theirs = {row[0]: (row[first], row[first + 1].capitalize()) for row in rows}  # one has "NO"
    assert find_table(name).costs == theirs
    assert list(find_table(name).costs) == list(
        dict.fromkeys(cell.row for cell in find_table(name).cells)
    )


def test_no_two_cells_of_a_table_share_a_position() -> None:
    for name, paper in TABLES.items():
        places = Counter((cell.row, cell.column) for cell in paper.cells)
        runs = Counter(tuple(sorted(cell.where.items())) for cell in paper.cells if cell.matched)
        assert {*places.values(), *runs.values()} == {1}, name


def test_every_footnote_is_used_and_every_mark_has_one() -> None:
    for name, paper in TABLES.items():
        assert paper.footnotes.keys() == {k for cell in paper.cells for k in cell.notes}, name


def test_a_footnote_cites_only_numbers_of_the_paper() -> None:
    values = {f"{cell.value:.2f}" for _, cell in CELLS}
    for text in (COMMON, *(text for paper in TABLES.values() for text in paper.footnotes.values())):
        assert re.fullmatch(r"[A-Z0-9][^\n]*[^.]\.", text) and ". " not in text, text
        assert set(re.findall(r"\d\d\.\d\d", text)) <= values, text


def test_what_the_footnotes_say_of_the_numbers_is_so() -> None:
    first = {(cell.row, cell.column): cell.value for cell in find_table("small_datasets").cells}
    by_k = {(cell.row, cell.column): cell.value for cell in find_table("neighbours").cells}
    worse = {c for r, c in by_k if r == "AHCL" and by_k["AHCL", c] < by_k["Hard", c]}
    assert worse == {"CIFAR10 K=2", "CIFAR10 K=5", "CIFAR10 K=10"}
    assert worse == {cell.column for cell in marked("neighbours", "AHCL is always better")}
    assert all(by_k[row, "CIFAR10 K=10"] > by_k["MoCo", "CIFAR10"] for row in ("Hard", "AHCL"))
    assert first["ASCL(Ours)", "CIFAR-10"] == by_k["ASCL", "CIFAR10 K=5"] != 90.00
    lone = first["ASCL(Ours)", "CIFAR-100"]
    assert [paper.name for paper, cell in CELLS if cell.value == lone] == ["small_datasets"]


def test_what_the_authors_did_not_train_is_marked() -> None:
    rows = {cell.row for cell in find_table("small_datasets").cells} - {"ReSSL(*)", "ASCL(Ours)"}
    assert {cell.row for cell in marked("small_datasets", "copied this number from")} == rows
    assert len(marked("small_datasets", "copied this number from")) == 4 * len(rows)


@pytest.mark.parametrize("name", ["augmentation", "neighbours", "tau_prime"])
def test_ablations_say_where_the_first_table_differs(name: str) -> None:
    at_stake = [cell for cell in find_table(name).cells if cell.value in (90.00, 90.55, 65.46)]
    assert marked(name, "For ASCL on CIFAR-10") == at_stake


def test_every_cell_is_found_by_what_it_asks_for_and_by_nothing_less() -> None:
    for paper, cell in CELLS:
        if cell.matched:
            assert find_cell(paper, cell.where) is cell
        for key in cell.where:
            assert find_cell(paper, {k: v for k, v in cell.where.items() if k != key}) is None


def test_reproduced_numbers_go_before_copied_ones_which_a_footnote_gives() -> None:
    paper = find_table("small_datasets")
    copied = [cell for cell in paper.cells if not cell.matched]
    assert {cell.row for cell in copied} == {"ReSSL"}
    for cell in copied:
        fairer = find_cell(paper, cell.where)
        assert fairer and fairer.row == "ReSSL(*)"
        assert any(f"{cell.value:.2f}" in paper.footnotes[key] for key in fairer.notes)


@given(
    st.sampled_from(CELLS),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()),
    st.sets(st.text()),
)
def test_other_keys_change_nothing(
    where: tuple[PaperTable, PaperCell], others: dict[str, object], idle: set[str]
) -> None:
    paper, cell = where
    asked = {key for cell in paper.cells for key in cell.where}
    others = {key: value for key, value in others.items() if key not in asked}
    others |= {"seed": 1, "optim.lr": 0.03, "preset": "code"}
    plain = find_cell(paper, cell.where)
    assert plain is not None
    assert find_cell(paper, {**others, **cell.where}, (idle | others.keys()) - asked) is plain


def test_one_is_one_point_nought_but_not_true() -> None:
    where: dict[str, object] = {"data.name": "cifar10", "method.name": "moco"}
    where["method.relabel"] = "ascl"
    assert find_cell(find_table("neighbours"), {**where, "method.num_neighbours": 1.0})
    assert find_cell(find_table("neighbours"), {**where, "method.num_neighbours": True}) is None


def test_cells_that_differ_in_idle_keys_alone_must_agree() -> None:
    cells = tuple(
        PaperCell(
            {"method.relabel": "hard", "method.target_temperature": value}, 89.5, "Hard", str(value)
        )
        for value in (0.05, 0.1)
    )
    paper = PaperTable("it", "It", "tab:it", cells, {})
    config = {"method.relabel": "hard", "method.target_temperature": 0.02}
    assert find_cell(paper, config) is None
    assert find_cell(paper, config, {"method.target_temperature"}) is cells[0]
    assert find_cell(paper, {"method.relabel": "hard"}, {"method.target_temperature"}) is cells[0]
    assert find_cell(paper, config, {"seed"}) is None
    apart = replace(paper, cells=(cells[0], replace(cells[1], value=89.6)))
    assert find_cell(apart, config, {"method.target_temperature"}) is None


@pytest.mark.parametrize("neighbours", [0, 1, 10])
def test_moco_has_one_number_for_every_number_of_neighbors(neighbours: int) -> None:
    config = run(method={"name": "moco", "num_neighbours": neighbours})
    assert "method.num_neighbours" in idle(config)
    assert found("neighbours", config) == 88.55


def test_zero_neighbors_are_compared_with_moco() -> None:
    config = run(method={"name": "moco", "relabel": "ascl", "num_neighbours": 0})
    assert found("neighbours", config) == 88.55
    assert found("small_datasets", config) == 86.18


def test_runs_of_real_configs_are_found() -> None:
    ascl = {"name": "moco", "relabel": "ascl"}
    assert found("tau_prime", run(method={**ascl, "target_temperature": 0.02})) == 89.82
    assert found("augmentation", run(method=ascl, augment={"key": "strong"})) == 85.97
    assert found("neighbours", run(method={**ascl, "num_neighbours": 2})) == 90.09
    assert found("byol", run(method={"name": "byol", "relabel": "ascl"})) == 90.49
    assert found("byol", run(method={"name": "byol", "relabel": "hard"})) is None


def test_the_temperature_sweep_finds_each_cell_of_the_table_it_names() -> None:
    spec = load_sweep(ROOT / "search_spaces" / "tau_prime.yaml")
    assert spec.table and spec.table.paper
    runs = [spec.config(cell.changes, seed=0) for cell in spec.cells()]
    values = [found(spec.table.paper, config) for config in runs]
    assert values == [cell.value for cell in find_table(spec.table.paper).cells]


def test_an_unknown_table_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"^no table of the paper named 'tau' .*; there are: "
    ) as it:
        find_table("tau")
    assert "(did you mean 'tau_prime'?)" in str(it.value)
    assert all(name in str(it.value) for name in SIZES)


def test_the_numbers_are_light_to_load() -> None:
    heavy = {"torch", "ray", "pandas", "pyarrow", "optuna", "scipy"}
    code = f"import sys, ascl_sweep.reproduction.compare\nassert not {heavy!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# ---------------------------------------------------------------- beside a table of ours


def with_paper(
    sweep_row: SweepRow, rows: Sequence[RunRow], options: Options | None = None
) -> AblationTable:
    found = build_table(sweep_row, rows, options, annotators=[annotate_table])
    assert found is not None
    return found


def test_at_the_papers_setting_values_are_compared() -> None:
    found = with_paper(EXAMPLE_SWEEPS[0], EXAMPLE_ROWS)
    assert found.like_the_paper and found.orderings == ()
    beside = {arm.label: arm for arm in found.arms}["ASCL, K = 1"]
    assert beside.paper is not None and beside.paper.value == 90.00
    assert beside.paper.difference == pytest.approx((beside.mean or 0) - 90.00)
    predicted = predict_run(list(beside.scores.values()))
    assert predicted is not None
    assert beside.paper.inside == (90.00 in predicted)


def test_the_prediction_interval_holds_a_further_run_at_any_number_of_seeds() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 10):
        runs = rng.normal(90, 0.3, (1000, n + 1))
        inside = [last in (predict_run(own) or ()) for *own, last in runs.tolist()]
        assert sum(inside) / len(inside) == pytest.approx(0.95, abs=0.02), n


@pytest.mark.parametrize("scores", [[], [90.0], [90.0, 90.0]])
def test_scores_without_a_spread_predict_nothing(scores: list[float]) -> None:
    assert predict_run(scores) is None


def test_fewer_than_three_arms_and_reference_arms_are_not_ranked() -> None:
    asked = sweep("it", (TEMPERATURE,), table=file_table(TEMPERATURE, paper="tau_prime"))

    def rows(*taus: float) -> list[RunRow]:
        changes = [{TEMPERATURE: tau, "epochs": 100} for tau in taus]
        return [row for change in changes for row in arm("it", change, [90 - change[TEMPERATURE]])]

    assert with_paper(asked, in_order(rows(0.01, 0.05))).orderings == ()
    found = with_paper(asked, in_order(rows(0.01, 0.05, 0.1)))
    assert [order.arms for order in found.orderings] == [3]
    assert "Arms with one seed count as much as others in Kendall's τ: " in "\n".join(found.remarks)


def test_supervised_training_is_not_ranked() -> None:
    asked = sweep("it", ("method.name",), table=file_table("method.name", paper="small_datasets"))
    names = ("supervised", "simclr", "simsiam", "ressl")
    rows = [
        row
        for score, name in enumerate(names, 80)
        for row in arm("it", {"method.name": name, "epochs": 100}, [score, score + 0.5])
    ]
    found = with_paper(asked, in_order(rows))
    assert [(order.data, order.arms) for order in found.orderings] == [("CIFAR-10", 3)]


def test_at_laptop_scale_only_the_order_is_compared() -> None:
    found = with_paper(EXAMPLE_SWEEPS[1], EXAMPLE_ROWS)
    assert not found.like_the_paper
    assert all(ours.paper is None for ours in found.arms)
    assert [(order.data, order.arms) for order in found.orderings] == [
        ("CIFAR-10", 5),
        ("CIFAR-100", 5),
    ]
    ours = [ours.mean for ours in found.arms]
    paper = [89.67, 89.82, 90.00, 88.91, 88.58]
    assert found.orderings[0].tau == stats.rank_correlation(ours, paper)  # type: ignore[arg-type]
    assert "only the order of the arms is compared with the paper" in "\n".join(found.remarks)


@pytest.mark.parametrize(
    ("changes", "options", "why"),
    [
        ({"epochs": 100}, {}, "epochs 100 instead of 200"),
        ({"batch_size": 64}, {}, "batch 64 instead of 256"),
        ({"encoder.width": 16}, {}, "width 16 instead of 64"),
        ({"data.train_size": 5000}, {}, "training images 5000 instead of all"),
        ({}, {"metric": "knn_top1"}, "online kNN top-1 instead of linear-probe top-1"),
    ],
)
def test_another_setting_than_the_papers_is_named(
    changes: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    asked = sweep("it", (TEMPERATURE,), table=file_table(TEMPERATURE, paper="tau_prime"))
    rows = [
        row
        for tau in (0.01, 0.05, 0.1)
        for row in arm("it", {TEMPERATURE: tau, **changes}, [90 - 10 * tau, 90.1 - 10 * tau])
    ]
    found = with_paper(asked, in_order(rows), Options(**options))
    assert f"The setting differs from the paper's ({why})" in "\n".join(found.remarks)
    assert [order.data for order in found.orderings] == ["CIFAR-10"], "only on the same data"
