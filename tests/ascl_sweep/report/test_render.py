"""Formats: one report, written four ways; the golden ones are in `golden/`.

Where a change to them is meant, write them anew, and look at the difference:

    python -m tests.ascl_sweep.report.test_render
"""

import csv
import io
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from ascl_sweep.ledger import Ledger, RunRow
from ascl_sweep.report import render
from ascl_sweep.report.ablation import METRICS, Options
from ascl_sweep.report.blocks import Cell, Sheet, digits_of, parts, probability, signed
from ascl_sweep.report.document import document_of
from ascl_sweep.report.page import page
from ascl_sweep.report.plain import COLUMNS, long_rows, plain
from ascl_sweep.report.report import Report, report_of
from ascl_sweep.report.term import term
from ascl_sweep.report.tex import escape
from tests.ledgers import ASCL, RELABEL, TEMPERATURE, arm, example, in_order, sweep, table, write

GOLDEN = Path(__file__).parent / "golden"
FILES = {"md": "report.md", "latex": "report.tex", "csv": "report.csv", "json": "report.json"}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return example(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def report(ledger: Ledger) -> Report:
    return report_of(ledger)


def sheets(report: Report) -> Iterator[Sheet]:
    for section in document_of(report):
        yield from (block for block in section.blocks if isinstance(block, Sheet))


def test_the_writers_have_a_golden_report_each() -> None:
    assert FILES.keys() == render.WRITERS.keys()


@pytest.mark.parametrize("format", FILES)
def test_a_report_is_the_golden_one(report: Report, format: str) -> None:
    made = render.WRITERS[format](report)
    assert made == (GOLDEN / FILES[format]).read_text(encoding="utf-8")


@pytest.mark.parametrize("format", FILES)
def test_the_same_runs_give_the_same_file_wherever_they_lie(
    report: Report, format: str, tmp_path: Path
) -> None:
    elsewhere = report_of(example(tmp_path / "elsewhere"))
    assert elsewhere.store != report.store
    assert render.WRITERS[format](elsewhere) == render.WRITERS[format](report)


# ---------------------------------------------------------------- what every sheet has


def test_every_mean_has_its_n(report: Report) -> None:
    """In the compact table in brackets, in the long one in the column beside it."""
    for sheet in sheets(report):
        if sheet.name.endswith("-means"):
            for row in sheet.rows:
                for cell in row[1:]:
                    assert re.fullmatch(r"|(\d+\.\d\d( ± \d+\.\d\d)?|–) \(\d+(/\d+)?\)", cell.text)
        if sheet.name.endswith("-arms"):
            assert sheet.header[1:3] == ("seeds", "mean ± sd")
            assert all(re.fullmatch(r"\d+/\d+", row[1].text) for row in sheet.rows)


def test_a_cell_without_complete_runs_says_what_is_missing(report: Report) -> None:
    (means,) = [sheet for sheet in sheets(report) if sheet.name == "broken-means"]
    assert [row[1].text for row in means.rows] == ["88.17 ± 0.21 (3)", "– (0/3)", "– (0/3)"]


def test_every_mark_has_its_note_and_every_note_its_mark(report: Report) -> None:
    for sheet in sheets(report):
        marks = {mark for row in sheet.rows for cell in row for mark in cell.marks}
        assert marks == {mark for mark, _ in sheet.notes}, sheet.name


def test_only_what_a_verdict_holds_for_is_bold(report: Report) -> None:
    bold = {
        (sheet.name, cell.text)
        for sheet in sheets(report)
        for row in sheet.rows
        for cell in row
        if cell.bold
    }
    assert bold == {
        ("neighbours-means", "90.01 ± 0.10 (3)"),
        ("neighbours-means", "90.50 ± 0.13 (2/3)"),
        ("neighbours-arms", "90.01 ± 0.10"),
        ("neighbours-arms", "90.50 ± 0.13"),
    }


def test_no_two_sheets_have_the_same_name(report: Report) -> None:
    names = [sheet.name for sheet in sheets(report)]
    assert len(set(names)) == len(names)


def test_every_line_of_a_sheet_is_as_long_as_its_header(report: Report) -> None:
    for sheet in sheets(report):
        assert {len(row) for row in sheet.rows} == {len(sheet.header)} == {len(sheet.align)}


def test_a_laptop_report_says_so_in_its_heading(report: Report) -> None:
    sections = [section for section in document_of(report) if section.sweep]
    for section, found in zip(sections, report.sweeps, strict=True):
        assert ("laptop scale" in section.title) == (found.sweep.scale == "laptop")


def test_a_search_is_never_mixed_with_a_table(report: Report) -> None:
    """Its scores stand under a heading of their own, which says what they are."""
    (section,) = (section for section in document_of(report) if section.sweep == "search")
    place = [getattr(block, "title", "") for block in section.blocks].index("The search")
    assert "scored on the holdout" in section.blocks[place].items[0]  # type: ignore[union-attr]
    before = [block for block in section.blocks[:place] if isinstance(block, Sheet)]
    assert [sheet.name for sheet in before] == ["search-means", "search-arms"]
    (means, _) = before
    assert len(means.rows) == 2, "finalists only"


def test_a_search_without_audits_says_that_false_stops_are_not_known(tmp_path: Path) -> None:
    rows = [replace(row, phase="search") for row in arm("it", ASCL, [90.0])]
    asked = sweep("it", (TEMPERATURE,), search=True, stop={"rule": "median", "grace": 9})
    text = render.markdown(report_of(write(tmp_path, [asked], in_order(rows))))
    assert "No audited run is complete" in text


def test_a_sweep_without_runs_is_named(tmp_path: Path) -> None:
    text = render.markdown(report_of(write(tmp_path, [sweep("it")], [])))
    assert "## it" in text and "It has no runs yet." in text


def test_unread_files_are_told_of_in_every_format(report: Report) -> None:
    damaged = replace(report, problems=("/secret/place/00000001.parquet was skipped",))
    for format in ("md", "latex"):
        text = render.WRITERS[format](damaged)
        assert "1 file of the ledger could not be read" in text and "/secret" not in text
    assert json.loads(render.json(damaged))["unread_files"] == 1


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("p", "shown"),
    [(None, "–"), (1.0, "1.0"), (0.25, "0.25"), (0.1, "0.10"), (0.04213, "0.042"),
     (0.00026, "0.00026"), (0.0000123, "1.2e−5"), (0.0, "0.0")],
)  # fmt: skip
def test_p_has_two_significant_digits(p: float | None, shown: str) -> None:
    assert probability(p) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.456, "+0.46"), (-0.456, "−0.46"), (-0.001, "0.00"), (0.0, "0.00")]
)
def test_a_difference_has_its_sign_unless_it_is_none(value: float, shown: str) -> None:
    assert signed(value, 2) == shown


@pytest.mark.parametrize(
    ("metric", "means", "digits"),
    [("probe_top1", [90.0], 2), ("loss", [6.2, 5.1], 3), ("confidence", [0.83], 4),
     ("images_per_second", [1600.0], 0), ("loss", [], 3)],
)  # fmt: skip
def test_numbers_have_the_digits_that_say_something(
    metric: str, means: list[float], digits: int
) -> None:
    assert digits_of(METRICS[metric], means) == digits


# ---------------------------------------------------------------- Markdown


def test_markdown_tables_are_well_formed(report: Report) -> None:
    """Every line has as many cells as the rule below the header."""
    tables = re.findall(r"(?m)(?:^\|.*\|\n)+", render.markdown(report))
    assert len(tables) == len(list(sheets(report)))
    for text in tables:
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines()]
        assert len({len(line) for line in lines}) == 1
        assert all(re.fullmatch(r" :---| ---:|:--- | :--- | ---: ", rule) for rule in lines[1])


@given(st.text(min_size=1))
def test_no_text_breaks_a_markdown_table(text: str) -> None:
    sheet = Sheet("it", "it", ("a", "b"), "lr", ((Cell(text), Cell(text, True, ("a",))),))
    *_, line = render.markdown_sheet(sheet).split("\n")
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
    assert "\n" not in line and "<!--" not in line


def test_pictures_are_named_as_seen_from_the_file(report: Report, tmp_path: Path) -> None:
    picture = render.Picture("Curves", "kNN over epochs [n = 3]", tmp_path / "figures" / "a b.svg")
    text = render.markdown(report, [picture], tmp_path / "docs")
    assert "](<../figures/a b.svg>)" in text


# ---------------------------------------------------------------- LaTeX


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        ("τ' = 0.05", r"$\tau'$~=~0.05"),
        ("90.00 ± 0.12", r"90.00 $\pm$ 0.12"),
        ("50% of a_b & {c} #1 $2", r"50\% of a\_b \& \{c\} \#1 \$2"),
        ("a\\b^c~d", r"a\textbackslash{}b\textasciicircum{}c\textasciitilde{}d"),
        ("– −1 “x” a--b", "-- $-$1 ``x'' a-{}-b"),
        ("é 你\t.", r"e \texttt{cjk unified ideograph-4f60} ."),
    ],
)
def test_signs_are_written_as_latex_commands(text: str, tex: str) -> None:
    assert escape(text) == tex


@given(st.text())
def test_latex_is_plain_ascii(text: str) -> None:
    assert escape(text).isascii()


def test_wide_sheets_are_set_in_parts(report: Report) -> None:
    for sheet in sheets(report):
        if sheet.name.endswith("-arms"):
            text = render.latex_sheet(sheet)
            assert text.count(r"\begin{tabular}") == 2
            assert text.count(r"\begin{table}") == 1


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(1, 100))
def test_parts_hold_every_column_once_and_fit_if_they_can(widths: list[int], width: int) -> None:
    found = list(parts(widths, width))
    assert [column for part in found for column in part] == list(range(1, len(widths)))
    for part in found:
        assert len(part) == 1 or widths[0] + sum(2 + widths[i] for i in part) <= width


def hostile(folder: Path) -> Report:
    """Names that mean something to LaTeX and to Markdown."""
    odd = ["50% & more_of #1", r"\input{x}", "$x^2$ ~ {a}", "[brackets] *stars*", "a|b `c` <d>",
           "“τ'” – − ± Δ × é ł 你", "a very long word " * 8]  # fmt: skip
    rows = [
        row for name in odd for row in arm("od--d", {RELABEL: "x", "method.name": name}, [1, 2])
    ]
    return report_of(write(folder, [sweep("od--d", ("method.name",))], in_order(rows)))


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
@pytest.mark.parametrize("which", ["example", "hostile"])
def test_latex_compiles(report: Report, which: str, tmp_path: Path) -> None:
    made = report if which == "example" else hostile(tmp_path / "store")
    (tmp_path / "report.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs}\begin{document}"
        + "\n" + render.latex(made) + r"\end{document}", encoding="utf-8",
    )  # fmt: skip
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    if which == "example":
        wide = [float(points) for points in re.findall(r"\((\d+\.\d+)pt too wide", done.stdout)]
        assert max(wide, default=0) < 10, "no table sticks out of the page"


# ---------------------------------------------------------------- CSV and JSON


def number(text: str) -> float | None:
    return float(text) if text else None


def test_csv_has_the_numbers_of_json(report: Report) -> None:
    first, *lines = render.csv(report).splitlines()
    assert first.startswith("# ascl-sweep report ")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    data = json.loads(render.json(report))
    found = [(s["name"], a) for s in data["sweeps"] if s["table"] for a in s["table"]["arms"]]
    assert [(row["sweep"], row["arm"]) for row in rows] == [(s, a["label"]) for s, a in found]
    for row, (_, ours) in zip(rows, found, strict=True):
        against, beside = ours["comparison"] or {}, ours["paper"] or {}
        assert row["seeds"].split() == list(ours["scores"])
        for name in ("mean", "sd", "n", "planned", "device_hours", "epochs"):
            assert number(row[name]) == ours[name], name
        for name in ("delta", "low", "high", "wins", "p", "corrected_p"):
            assert number(row[name]) == against.get(name), name
        assert row["verdict"] == (against.get("verdict") or "")
        assert number(row["paper"]) == beside.get("value")
        assert number(row["difference"]) == beside.get("difference")
        for state in ("stopped", "diverged", "failed"):
            assert int(row[state]) == ours["states"].get(state, 0)


def test_the_long_table_has_every_column_in_every_row(report: Report) -> None:
    assert all(tuple(row) == COLUMNS for row in long_rows(report))


def test_json_holds_every_score_by_seed(report: Report) -> None:
    data = json.loads(render.json(report))
    for found, sweep_report in zip(data["sweeps"], report.sweeps, strict=True):
        for ours, each in zip(
            found["table"]["arms"],
            sweep_report.table.arms if sweep_report.table else (),
            strict=True,
        ):
            assert {int(s): score for s, score in ours["scores"].items()} == each.scores


def test_json_names_no_machine_and_no_place(report: Report) -> None:
    text = render.json(report)
    assert report.store not in text and "data.root" not in text


def test_what_is_plain_is_plain_all_through(report: Report) -> None:
    def check(value: Any) -> None:
        assert not is_dataclass(value)
        if isinstance(value, dict):
            assert all(type(key) is str for key in value)
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)
        else:
            assert isinstance(value, str | int | float | bool | None), value

    check(plain(report)["sweeps"])


# ---------------------------------------------------------------- the terminal


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_nothing_sticks_out_of_the_terminal_and_no_number_is_broken(
    report: Report, width: int
) -> None:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    for part in term(report):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    shown = "\n".join(line.rstrip() for line in lines)
    for sheet in sheets(report):
        for row in sheet.rows:
            for cell in row[1:]:
                assert cell.text in shown, f"{cell.text} of {sheet.name} is on one line"


def test_a_long_name_is_folded_after_a_comma(tmp_path: Path) -> None:
    keys = {"method.momentum": 0.99, "optim.lr": 0.1, "optim.weight_decay": 0.001}
    rows = [*arm("it", keys, [1, 2]), *arm("it", {k: v / 2 for k, v in keys.items()}, [1, 2])]
    made = report_of(write(tmp_path, [sweep("it", tuple(keys))], in_order(rows)))
    console = Console(width=80, file=io.StringIO(), color_system=None)
    for part in term(made):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert re.search(r"(?m)^m = 0.99, lr = 0.1, .*\nweight decay = 0.001 ", text)


# ---------------------------------------------------------------- what a step costs


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Four methods on two datasets, of which the last is an older version's."""

    def rows(name: str, relabel: str, **cost: Any) -> Iterator[RunRow]:
        for data, score in (("cifar10", 88.0), ("cifar100", 60.0)):
            changes = {"method.name": name, RELABEL: relabel, "data.name": data}
            yield from arm("it", changes, [score, score + 0.1], **cost)

    asked = sweep(
        "it",
        ("method.name", RELABEL, "data.name"),
        table=table("method.name", columns="data.name", baseline={"method.name": "moco"}),
        seeds=(0, 1),
    )
    found = [
        *rows("moco", "none", backprops=1, ema=True, images_per_second=512.0, peak_memory_gb=4.25),
        *rows("simclr", "none", backprops=2, ema=False, images_per_second=2e5, peak_memory_gb=0.05),
        *rows("byol", "ascl", backprops=2, ema=True),
        *rows("ressl", "none"),
    ]
    return report_of(write(tmp_path_factory.mktemp("methods"), [asked], in_order(found)))


def test_methods_have_their_costs_in_both_shapes(methods: Report) -> None:
    means, long = list(sheets(methods))
    assert means.header == ("method", "BackProp", "EMA", "CIFAR-10", "CIFAR-100")
    shown = {row[0].text: tuple(cell.text for cell in row[1:3]) for row in means.rows}
    assert shown == {
        "MoCo": ("1x", "Yes"),
        "SimCLR": ("2x", "No"),
        "BYOL + ASCL": ("2x", "Yes"),
        "ReSSL": ("–", "–"),
    }
    place = long.header.index("BackProp")
    assert long.header[place : place + 4] == ("BackProp", "EMA", "ms/step", "memory")
    shown = {row[0].text: tuple(c.text for c in row[place : place + 4]) for row in long.rows}
    assert shown["MoCo, CIFAR-10"] == ("1x", "Yes", "500", "4.25")
    assert shown["SimCLR, CIFAR-100"] == ("2x", "No", "1.28", "0.0500")
    assert shown["ReSSL, CIFAR-10"] == ("–", "–", "–", "–")


def test_a_row_of_several_methods_shows_each_cost_once(tmp_path: Path) -> None:
    asked = sweep(
        "it",
        ("method.name", "optim.lr"),
        table=table("optim.lr", columns="method.name", baseline={"method.name": "moco"}),
    )
    rows = [
        row
        for name, cost in (("moco", 1), ("simclr", 2), ("byol", 2))
        for lr in (0.03, 0.06)
        for row in arm("it", {"method.name": name, "optim.lr": lr}, [88.0], backprops=cost)
    ]
    means, _ = sheets(report_of(write(tmp_path, [asked], in_order(rows))))
    assert [row[1].text for row in means.rows] == ["1x, 2x", "1x, 2x"]


def test_every_format_has_the_costs(methods: Report) -> None:
    markdown = render.markdown(methods)
    assert "| method | BackProp | EMA | CIFAR-10 | CIFAR-100 |" in markdown
    assert "| MoCo | 1x | Yes | 88.05" in markdown
    assert re.search(r"MoCo & 1x & Yes & 88.05", render.latex(methods))
    _, *lines = render.csv(methods).splitlines()
    first = next(csv.DictReader(lines))
    wanted = {"backprops": "1", "ema": "True", "step_ms": "500.0", "memory_gb": "4.25"}
    assert {name: first[name] for name in wanted} == wanted
    ours = json.loads(render.json(methods))["sweeps"][0]["table"]["arms"]
    assert ours[0]["cost"] == {"backprops": 1, "ema": True, "step_ms": 500.0, "memory_gb": 4.25}
    console = Console(width=100, file=io.StringIO(), color_system=None)
    for part in term(methods):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    assert re.search(r"MoCo +1x +Yes +88.05", console.file.getvalue())
    assert re.search(r"<th [^>]*>BackProp</th>", page(methods, Ledger("nowhere")))


def test_no_format_has_costs_where_there_is_one_method(report: Report) -> None:
    for write_it in render.WRITERS.values():
        assert not re.search("BackProp|backprops|step_ms|memory", write_it(report))


# ---------------------------------------------------------------- options


def test_the_first_line_names_every_option(ledger: Ledger) -> None:
    options = Options("knn_top1", "best", {RELABEL: "ascl", "optim.lr": 0.06}, 1.5)
    text = render.markdown(report_of(ledger, ["neighbours", "once"], options))
    assert text.splitlines()[0].startswith(
        "<!-- ascl-sweep report neighbours once --format md --metric knn_top1 --epoch best "
        "--region 1.5 --baseline method.relabel=ascl --baseline optim.lr=0.06 # sha256 "
    )


def test_metrics_of_epochs_can_be_reported(tmp_path: Path) -> None:
    """After the last epoch, also of a run whose epochs came in several files."""
    rows = in_order(arm("it", ASCL, [90.0, 91.0]))
    ledger = write(tmp_path, [sweep("it", (TEMPERATURE,))], rows)
    for epoch in (2, 1, 3):
        with ledger.writer() as writer:
            for i, row in enumerate(rows):
                writer.put_epoch(row.run_id, {"epoch": epoch, "purity": 0.1 * epoch + 0.01 * i})
    found = report_of(ledger, options=Options(metric="purity")).sweeps[0].table
    assert found is not None
    assert found.arms[0].scores == {0: pytest.approx(30.0), 1: pytest.approx(31.0)}


def test_a_table_may_ask_for_a_metric_of_epochs(tmp_path: Path) -> None:
    rows = in_order(arm("it", ASCL, [90.0]))
    asked = sweep("it", (TEMPERATURE,), table=table(RELABEL, metric="confidence"))
    ledger = write(tmp_path, [asked], rows)
    with ledger.writer() as writer:
        writer.put_epoch(rows[0].run_id, {"epoch": 1, "confidence": 0.25})
    assert "0.2500 (1/3)" in render.markdown(report_of(ledger))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        golden = report_of(example(folder))
    for name, file in FILES.items():
        (GOLDEN / file).write_text(render.WRITERS[name](golden), encoding="utf-8")
