"""The paper's numbers: those of its TeX, each found by the runs it is to be held against."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl.config import RunConfig
from ascl.methods import method_names
from ascl_sweep import labels
from ascl_sweep.agenda import config_values
from ascl_sweep.paper import COMMON, TABLES, Cell, PaperTable, find, table
from ascl_sweep.spec import load_spec

ROOT = Path(__file__).parents[2]
TEX = ROOT.parent / "shared" / "paper" / "ascl.tex"
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
    """The rows of each table in the paper's TeX, by label: the bare texts of their cells."""
    if not TEX.exists():
        pytest.skip(f"the paper's TeX is not at {TEX}")
    text = re.sub(r"(?m)(?<!\\)%.*", "", TEX.read_text(encoding="utf-8"))
    tables = {}
    for body in re.findall(r"(?s)\\begin\{table\*?\}(.*?)\\end\{table\*?\}", text):
        label = re.search(r"\\label\{(.*?)\}", body)
        assert label
        body = body[body.index(r"\begin{tabular}") : body.rindex(r"\end{tabular}")]
        body = re.sub(r"~?\\cite\{.*?\}|\\[a-z]*(rule|line)(\(l\))?(\{[\d-]+\})?", "", body)
        body = re.sub(r"\\multicolumn\{\d\}\{c\}|\\multirow\{\d\}\{\*\}", "", body)
        body = re.sub(r"\\textbf|[{}$]", "", body)
        rows = [[cell.strip() for cell in row.split("&")] for row in body.split(r"\\")]
        tables[label[1]] = rows
    return tables


def run(**sections: Any) -> RunConfig:
    return RunConfig.of({"data": {"name": "cifar10"}, **sections})


def idle(config: RunConfig) -> set[str]:
    return {f"method.{key}" for key in config.method.inert()}


def found(name: str, config: RunConfig) -> float | None:
    cell = find(table(name), config_values(config), idle(config))
    return None if cell is None else cell.value


def marked(name: str, words: str) -> list[Cell]:
    """The cells of a table that carry the footnote with these words."""
    paper = table(name)
    (key,) = [key for key, text in paper.footnotes.items() if words in text]
    return [cell for cell in paper.cells if key in cell.notes]


def test_methods_are_called_as_the_paper_prints_them() -> None:
    for name in ("small_datasets", "imagenet", "byol"):
        for cell in table(name).cells:
            printed = re.sub(r"\((Ours|\*)\)", "", cell.row)
            assert labels.system(cell.where) == printed
    assert set(method_names()) <= labels.METHODS.keys()


def test_the_tables_have_all_their_cells() -> None:
    assert {name: len(paper.cells) for name, paper in TABLES.items()} == SIZES
    assert all(paper.name == name for name, paper in TABLES.items())


@pytest.mark.parametrize("name", SIZES)
def test_every_number_is_the_paper_s_in_its_order(name: str) -> None:
    paper = table(name)
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
    head, *rows = [row for row in printed()[table(name).label] if len(row) > 1]
    first = head.index("BackProp")
    theirs = {row[0]: (row[first], row[first + 1].capitalize()) for row in rows}  # one has "NO"
    assert table(name).costs == theirs
    assert list(table(name).costs) == list(dict.fromkeys(cell.row for cell in table(name).cells))


def test_no_two_cells_of_a_table_are_one_place() -> None:
    for name, paper in TABLES.items():
        places = Counter((cell.row, cell.column) for cell in paper.cells)
        runs = Counter(tuple(sorted(cell.where.items())) for cell in paper.cells if cell.matched)
        assert {*places.values(), *runs.values()} == {1}, name


def test_every_footnote_is_used_and_every_mark_has_one() -> None:
    for name, paper in TABLES.items():
        assert paper.footnotes.keys() == {k for cell in paper.cells for k in cell.notes}, name


def test_a_footnote_is_one_sentence_of_numbers_that_the_paper_has() -> None:
    values = {f"{cell.value:.2f}" for _, cell in CELLS}
    for text in (COMMON, *(text for paper in TABLES.values() for text in paper.footnotes.values())):
        assert re.fullmatch(r"[A-Z0-9][^\n]*[^.]\.", text) and ". " not in text, text
        assert set(re.findall(r"\d\d\.\d\d", text)) <= values, text


def test_what_the_footnotes_say_of_the_numbers_is_so() -> None:
    first = {(cell.row, cell.column): cell.value for cell in table("small_datasets").cells}
    by_k = {(cell.row, cell.column): cell.value for cell in table("neighbours").cells}
    worse = {c for r, c in by_k if r == "AHCL" and by_k["AHCL", c] < by_k["Hard", c]}
    assert worse == {"CIFAR10 K=2", "CIFAR10 K=5", "CIFAR10 K=10"}
    assert worse == {cell.column for cell in marked("neighbours", "AHCL is always better")}
    assert all(by_k[row, "CIFAR10 K=10"] > by_k["MoCo", "CIFAR10"] for row in ("Hard", "AHCL"))
    assert first["ASCL(Ours)", "CIFAR-10"] == by_k["ASCL", "CIFAR10 K=5"] != 90.00
    lone = first["ASCL(Ours)", "CIFAR-100"]
    assert [paper.name for paper, cell in CELLS if cell.value == lone] == ["small_datasets"]


def test_what_the_authors_did_not_train_is_marked() -> None:
    rows = {cell.row for cell in table("small_datasets").cells} - {"ReSSL(*)", "ASCL(Ours)"}
    assert {cell.row for cell in marked("small_datasets", "copied this from")} == rows
    assert len(marked("small_datasets", "copied this from")) == 4 * len(rows)


@pytest.mark.parametrize("name", ["augmentation", "neighbours", "tau_prime"])
def test_ablations_say_where_the_first_table_differs(name: str) -> None:
    at_stake = [cell for cell in table(name).cells if cell.value in (90.00, 90.55, 65.46)]
    assert marked(name, "For ASCL on CIFAR-10") == at_stake


@pytest.mark.parametrize(
    ("name", "changes", "value"),
    [
        ("small_datasets", {"method.name": "simsiam", "data.name": "stl10"}, 87.47),
        ("small_datasets", {"method.name": "supervised", "data.name": "tiny_imagenet"}, 59.26),
        ("small_datasets", {"method.name": "ressl", "data.name": "cifar100"}, 64.31),
        ("augmentation", {"augment.key": "strong", "epochs": 800}, 91.45),
        ("augmentation", {"augment.key": "weak", "epochs": 200, "method.relabel": "none"}, 88.55),
        ("neighbours", {"method.relabel": "hard", "method.num_neighbours": 10}, 89.99),
        ("neighbours", {"method.relabel": "ahcl", "method.num_neighbours": 5}, 89.92),
        ("imagenet", {"data.name": "imagenet"}, 71.5),
        ("imagenet", {"data.name": "imagenet", "method.name": "localagg"}, 58.8),
        ("tau_prime", {"data.name": "cifar100", "method.target_temperature": 0.08}, 64.26),
        ("tau_prime", {"data.name": "stl10", "method.target_temperature": 0.08}, None),
        ("byol", {"data.name": "cifar100", "method.name": "byol", "batch_size": 512}, 60.37),
        ("byol", {"data.name": "cifar10", "method.name": "byol", "batch_size": 512}, None),
    ],
)
def test_a_run_finds_its_number(name: str, changes: dict[str, object], value: float) -> None:
    base = {"data.name": "cifar10", "method.name": "moco", "method.relabel": "ascl"}
    cell = find(table(name), base | changes)
    assert (cell and cell.value) == value


def test_every_cell_is_found_by_what_it_asks_for_and_by_nothing_less() -> None:
    for paper, cell in CELLS:
        if cell.matched:
            assert find(paper, cell.where) is cell
        for key in cell.where:
            assert find(paper, {k: v for k, v in cell.where.items() if k != key}) is None


def test_reproduced_numbers_go_before_copied_ones_which_a_footnote_gives() -> None:
    paper = table("small_datasets")
    copied = [cell for cell in paper.cells if not cell.matched]
    assert {cell.row for cell in copied} == {"ReSSL"}
    for cell in copied:
        fairer = find(paper, cell.where)
        assert fairer and fairer.row == "ReSSL(*)"
        assert any(f"{cell.value:.2f}" in paper.footnotes[key] for key in fairer.notes)


@given(
    st.sampled_from(CELLS),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()),
    st.sets(st.text()),
)
def test_other_keys_change_nothing(
    where: tuple[PaperTable, Cell], others: dict[str, object], idle: set[str]
) -> None:
    paper, cell = where
    asked = {key for cell in paper.cells for key in cell.where}
    others = {key: value for key, value in others.items() if key not in asked}
    others |= {"seed": 1, "optim.lr": 0.03, "preset": "code"}
    plain = find(paper, cell.where)
    assert plain is not None
    assert find(paper, {**others, **cell.where}, (idle | others.keys()) - asked) is plain


def test_one_is_one_point_nought_but_not_true() -> None:
    where: dict[str, object] = {"data.name": "cifar10", "method.name": "moco"}
    where["method.relabel"] = "ascl"
    assert find(table("neighbours"), {**where, "method.num_neighbours": 1.0})
    assert find(table("neighbours"), {**where, "method.num_neighbours": True}) is None


def test_cells_that_differ_in_idle_keys_alone_must_agree() -> None:
    cells = tuple(
        Cell(
            {"method.relabel": "hard", "method.target_temperature": value}, 89.5, "Hard", str(value)
        )
        for value in (0.05, 0.1)
    )
    paper = PaperTable("it", "It", "tab:it", cells, {})
    config = {"method.relabel": "hard", "method.target_temperature": 0.02}
    assert find(paper, config) is None
    assert find(paper, config, {"method.target_temperature"}) is cells[0]
    assert find(paper, {"method.relabel": "hard"}, {"method.target_temperature"}) is cells[0]
    assert find(paper, config, {"seed"}) is None
    apart = replace(paper, cells=(cells[0], replace(cells[1], value=89.6)))
    assert find(apart, config, {"method.target_temperature"}) is None


@pytest.mark.parametrize("neighbours", [0, 1, 10])
def test_moco_has_one_number_whatever_its_neighbours(neighbours: int) -> None:
    config = run(method={"name": "moco", "num_neighbours": neighbours})
    assert "method.num_neighbours" in idle(config)
    assert found("neighbours", config) == 88.55


def test_zero_neighbours_are_held_against_moco() -> None:
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
    spec = load_spec(ROOT / "search_spaces" / "tau_prime.yaml")
    assert spec.table and spec.table.paper
    runs = [spec.config(cell.changes, seed=0) for cell in spec.cells()]
    values = [found(spec.table.paper, config) for config in runs]
    assert values == [cell.value for cell in table(spec.table.paper).cells]


def test_an_unknown_table_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"^no table of the paper named 'tau' .*; there are: "
    ) as it:
        table("tau")
    assert "(did you mean 'tau_prime'?)" in str(it.value)
    assert all(name in str(it.value) for name in SIZES)


def test_the_numbers_are_light_to_load() -> None:
    heavy = {"torch", "ray", "pandas", "pyarrow", "optuna", "scipy"}
    code = f"import sys, ascl_sweep.paper\nassert not {heavy!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
