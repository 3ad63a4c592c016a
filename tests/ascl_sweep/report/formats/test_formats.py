"""Report formats. Expected outputs are in `golden/`.

After an intended change, regenerate the golden reports and review the diff:

    python -m tests.ascl_sweep.report.formats.test_formats
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from ascl_sweep.analysis.comparison import Arm, Options
from ascl_sweep.cli import app
from ascl_sweep.contracts import RunRow
from ascl_sweep.report import formats
from ascl_sweep.report.checklist import render_checklist
from ascl_sweep.report.document import build_document
from ascl_sweep.report.figures.forest import forest
from ascl_sweep.report.formats import json as json_format
from ascl_sweep.report.formats import markdown
from ascl_sweep.report.formats.base import Picture, Target, load_formats
from ascl_sweep.report.formats.terminal import render_parts
from ascl_sweep.report.provenance import open_seal
from ascl_sweep.report.report import Report, build_report
from ascl_sweep.report.tables import Cell, Table, precision_of, probability, signed, split_columns
from ascl_sweep.spec.metrics import METRICS
from ascl_sweep.store.store import Store
from tests.stores import (
    ASCL,
    EXAMPLE_SWEEPS,
    RELABEL,
    TEMPERATURE,
    arm,
    example,
    in_order,
    paper_report,
    sweep,
    write,
)
from tests.stores import table as file_table

GOLDEN = Path(__file__).parent.parent / "golden"
FORMATS = load_formats()
FILES = {"md": "report.md", "latex": "report.tex", "csv": "report.csv", "json": "report.json"}


def tables(report: Report) -> Iterator[Table]:
    for section in build_document(report):
        yield from (block for block in section.blocks if isinstance(block, Table))


@pytest.mark.parametrize("format", FILES)
def test_a_report_is_the_golden_one(report: Report, format: str) -> None:
    made = FORMATS[format].render(report)
    assert made == (GOLDEN / FILES[format]).read_text(encoding="utf-8")


# ---------------------------------------------------------------- what every format does


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_keeps_the_contract(report: Report, store: Store, name: str) -> None:
    """It renders every arm, and reads its own output back with a valid checksum."""
    format = FORMATS[name]
    assert format.name == name and all(suffix.startswith(".") for suffix in format.suffixes)
    text = format.render(report, Target(store))
    assert all(name in text for name in ("neighbours", "MoCo", "Hard", "ASCL", "88.5", "90.0"))
    assert "holdout" in text
    stored = format.read(text)
    if not format.suffixes:
        assert stored is None, "terminal output cannot be verified"
        return
    assert stored is not None
    opened = open_seal(stored.header, stored.covered)
    assert opened is not None and opened[1], "unchanged since it was written"
    assert sum(other.read(text) is not None for other in FORMATS.values()) == 1
    assert format.read("") is None


OTHER = """
class Names:
    name = "names"
    suffixes = (".names",)

    def render(self, report, target=None):
        return "".join(f"{found.sweep.name}\\n" for found in report.sweeps)

    def read(self, text):
        return None


FORMAT = Names()
"""


def test_a_format_is_added_by_adding_a_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line finds the new format by its suffix, here outside the package's folder."""
    (tmp_path / "names.py").write_text(OTHER)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{formats.__name__}.names", raising=False)
    assert FORMATS.keys() | {"names"} == load_formats().keys()
    out = tmp_path / "it.names"
    said = CliRunner().invoke(app, ["report", "--store", store.address, "--out", str(out)])
    assert said.exit_code == 0, said.stderr
    assert out.read_text().split() == [row.name for row in EXAMPLE_SWEEPS]


@pytest.mark.parametrize("format", FILES)
def test_the_same_runs_give_the_same_file_wherever_they_lie(
    report: Report, format: str, tmp_path: Path
) -> None:
    elsewhere = paper_report(example(tmp_path / "elsewhere"))
    assert elsewhere.store != report.store
    assert FORMATS[format].render(elsewhere) == FORMATS[format].render(report)


def arms_of(report: Report) -> list[Arm]:
    return [each for found in report.sweeps if found.table for each in found.table.arms]


def numbers_in(text: str) -> tuple[set[tuple[str, ...]], set[tuple[str, ...]]]:
    """Every mean with its SD, and every interval."""
    text = re.sub(r"<[^>]*>", "|", text.replace("−", "-")).replace("±", "+-")
    text = text.replace(r"\pm", "+-").replace("\\", "")
    return (
        set(re.findall(r"(-?\d[\d.]*) \+- (\d[\d.]*)", text)),
        set(re.findall(r"\[([+-]?\d[\d.]*), ([+-]?\d[\d.]*)\]", text)),
    )


@settings(max_examples=10, deadline=None, phases=[Phase.generate])
@given(
    metric=st.sampled_from(["probe_top1", "images_per_second"]),
    mean=st.floats(0.1, 95),
    sds=st.lists(st.floats(-4, 1).map(lambda power: 10**power), min_size=3, max_size=3),
    shift=st.floats(-3, 3),
)
def test_every_format_prints_the_same_numbers(
    metric: str, mean: float, sds: list[float], shift: float
) -> None:
    """Markdown, the terminal, HTML, LaTeX and the checklist have one rule for decimals."""
    rows = []
    for i, (relabel, sd) in enumerate(zip(("none", "hard", "ascl"), sds, strict=True)):
        scores = [mean + i * shift + z * sd for z in (-1.1, 0.2, 0.9, -0.3)]
        rows += [
            replace(row, images_per_second=score, probe_top1=score / 100)
            for row, score in zip(arm("it", {RELABEL: relabel}, scores), scores, strict=True)
        ]
    asked = sweep(
        "it",
        (RELABEL,),
        seeds=range(4),
        search=True,
        table=file_table(RELABEL, metric, baseline={RELABEL: "none"}),
    )
    with tempfile.TemporaryDirectory() as folder:
        made = build_report(write(folder, [asked], in_order(rows)))
    console = Console(width=400)
    with console.capture() as captured:
        for part in render_parts(made):
            console.print(part)
    means, intervals = numbers_in(FORMATS["md"].render(made))
    compared = [c for each in arms_of(made) if (c := each.comparison) is not None]
    assert means and bool(intervals) == any(c.inference.interval for c in compared)
    if metric == "probe_top1":
        assert all(len(each.partition(".")[2]) <= 2 for pair in means for each in pair)
    for text in (captured.get(), made._repr_html_(), FORMATS["latex"].render(made)):
        assert numbers_in(text) == (means, intervals)
    assert numbers_in(render_checklist("neurips", made))[0] == means
    plot = forest(made.sweeps[0])
    assert plot is not None and plot.panels[0].forest is not None
    assert numbers_in(" ".join(row.text for row in plot.panels[0].forest.rows))[1] == intervals


# ---------------------------------------------------------------- what every table has


def test_every_mean_has_its_n(report: Report) -> None:
    """Once in the caption if it is the same for all arms, else in each cell in parentheses."""
    for table in tables(report):
        if table.name.endswith("-means"):
            once = re.search(r"n = \d+( of \d+)? seeds?\)", table.caption[0])
            assert once or "(number of seeds in parentheses)" in table.caption[0]
            n = "" if once else r" \(\d+(/\d+)?\)"
            for row in table.rows:
                for cell in row[1:]:
                    assert re.fullmatch(rf"|(\d+\.\d+( ± \d+\.\d+)?|–){n}", cell.text)
        if table.name.endswith("-arms"):
            assert table.header[1:3] == ("seeds", "mean ± SD")
            assert all(re.fullmatch(r"\d+/\d+", row[1].text) for row in table.rows)


def test_a_cell_without_complete_runs_states_what_is_missing(report: Report) -> None:
    (means,) = [table for table in tables(report) if table.name == "broken-means"]
    assert [row[1].text for row in means.rows] == ["88.17 ± 0.21 (3)", "– (0/3)", "– (0/3)"]


def test_every_mark_has_its_note_and_every_note_its_mark(report: Report) -> None:
    for table in tables(report):
        marks = {mark for row in table.rows for cell in row for mark in cell.marks}
        assert marks == {mark for mark, _ in table.notes}, table.name


def test_only_what_a_verdict_holds_for_is_bold(report: Report) -> None:
    bold = {
        (table.name, cell.text)
        for table in tables(report)
        for row in table.rows
        for cell in row
        if cell.bold
    }
    assert bold == {
        ("neighbours-means", "90.01 ± 0.10 (3)"),
        ("neighbours-arms", "90.01 ± 0.10"),
    }


def test_no_two_tables_have_the_same_name(report: Report) -> None:
    names = [table.name for table in tables(report)]
    assert len(set(names)) == len(names)


def test_every_line_of_a_table_is_as_long_as_its_header(report: Report) -> None:
    for table in tables(report):
        assert {len(row) for row in table.rows} == {len(table.header)} == {len(table.align)}


def test_the_heading_of_a_laptop_report_states_its_scale(report: Report) -> None:
    sections = [s for s in build_document(report) if s.sweep and not s.appendix]
    for section, found in zip(sections, report.sweeps, strict=True):
        assert ("laptop scale" in section.title) == (found.sweep.scale == "laptop")


def test_a_search_is_never_mixed_with_a_table(report: Report) -> None:
    """Its scores have their own heading, which states how they were measured."""
    section, appendix = (each for each in build_document(report) if each.sweep == "search")
    place = [getattr(block, "title", "") for block in section.blocks].index("Search")
    assert "scored on the holdout" in section.blocks[place].items[0]  # type: ignore[union-attr]
    before = [block for block in section.blocks[:place] if isinstance(block, Table)]
    (means,) = before
    assert means.name == "search-means" and len(means.rows) == 2, "finalists only"
    after = [block for block in appendix.blocks if isinstance(block, Table)]
    assert [table.name for table in after] == [
        *("search-arms", "search-search", "search-expected-best")
    ]


def test_a_search_without_audits_reports_false_stops_as_unknown(tmp_path: Path) -> None:
    rows = [replace(row, phase="search") for row in arm("it", ASCL, [90.0])]
    asked = sweep("it", (TEMPERATURE,), search=True, stop={"rule": "median", "grace": 9})
    text = FORMATS["md"].render(build_report(write(tmp_path, [asked], in_order(rows))))
    assert "The rate of false stops is unknown" in text


def test_a_sweep_without_runs_is_named(tmp_path: Path) -> None:
    text = FORMATS["md"].render(build_report(write(tmp_path, [sweep("it")], [])))
    assert "## it" in text and "No runs yet." in text


def test_unread_files_are_reported_in_every_format(report: Report) -> None:
    damaged = replace(report, problems=("/secret/place/00000001.parquet was skipped",))
    for format in ("md", "latex"):
        text = FORMATS[format].render(damaged)
        assert "1 file of the store could not be read" in text and "/secret" not in text
    assert json.loads(FORMATS["json"].render(damaged))["unread_files"] == 1


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
    assert precision_of(METRICS[metric], means).plain == digits


# ---------------------------------------------------------------- wide tables


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(1, 100))
def test_parts_hold_every_column_once_and_fit_if_they_can(widths: list[int], width: int) -> None:
    found = list(split_columns(widths, width))
    assert [column for part in found for column in part] == list(range(1, len(widths)))
    for part in found:
        assert len(part) == 1 or widths[0] + sum(2 + widths[i] for i in part) <= width


# ---------------------------------------------------------------- Markdown


def test_markdown_tables_are_well_formed(report: Report) -> None:
    """Every line has the same number of cells."""
    found = re.findall(r"(?m)(?:^\|.*\|\n)+", FORMATS["md"].render(report))
    assert len(found) == len(list(tables(report)))
    for text in found:
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines()]
        assert len({len(line) for line in lines}) == 1
        assert all(re.fullmatch(r" :---| ---:|:--- | :--- | ---: ", rule) for rule in lines[1])


@given(st.text(min_size=1))
def test_no_text_breaks_a_markdown_table(text: str) -> None:
    table = Table("it", "it", ("a", "b"), "lr", ((Cell(text), Cell(text, True, ("a",))),))
    *_, line = markdown.render_table(table).split("\n")
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
    assert "\n" not in line and not re.search(r"(?<!\\)(?:\\\\)*<!--", line)


@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\x0b"])
def test_a_sweeps_name_from_another_store_stays_text(tmp_path: Path, end: str) -> None:
    name = f"it{end}\x1b[2J--><script>"
    rows = [replace(row, sweeps=(name,)) for row in arm("it", ASCL, [90.0, 91.0])]
    made = build_report(write(tmp_path, [replace(sweep("it"), name=name)], in_order(rows)))
    first = FORMATS["md"].render(made).splitlines()[0]
    assert first.count("-->") == 1 and first.endswith(" -->")
    assert not any("\x1b" in FORMATS[each].render(made) for each in ("md", "term"))
    shown = FORMATS["term"].render(made)
    assert not re.search(r"[\r\x0b\u2028]", shown) and "<script>" in shown


def test_pictures_are_named_as_seen_from_the_file(report: Report, tmp_path: Path) -> None:
    picture = Picture("Curves", "kNN over epochs [n = 3]", tmp_path / "figures" / "a b.svg")
    text = FORMATS["md"].render(report, Target(None, tmp_path / "docs", [picture]))
    assert "](<../figures/a b.svg>)" in text


# ---------------------------------------------------------------- JSON


def test_json_holds_every_score_by_seed(report: Report) -> None:
    data = json.loads(FORMATS["json"].render(report))
    for found, sweep_report in zip(data["sweeps"], report.sweeps, strict=True):
        assert sweep_report.table is not None
        for ours, each in zip(found["table"]["arms"], sweep_report.table.arms, strict=True):
            assert {int(s): score for s, score in ours["scores"].items()} == each.scores


def test_json_names_no_machine_and_no_path(report: Report) -> None:
    text = FORMATS["json"].render(report)
    assert report.store not in text and "data.root" not in text


def test_what_is_plain_is_plain_all_through(report: Report) -> None:
    data = json_format.report_data(report)["sweeps"]
    assert json.loads(json.dumps(data)) == data, "no tuples, non-text keys or dataclasses"


# ---------------------------------------------------------------- the terminal


def on_terminal(report: Report, width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        for part in render_parts(report):
            console.print(part)
    return captured.get()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_nothing_sticks_out_of_the_terminal_and_no_number_is_broken(
    report: Report, width: int
) -> None:
    lines = on_terminal(report, width).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    shown = "\n".join(line.rstrip() for line in lines)
    for table in tables(report):
        for row in table.rows:
            for cell in row[1:]:
                assert cell.text in shown, f"{cell.text} of {table.name} is on one line"


def test_a_long_name_is_folded_after_a_comma(tmp_path: Path) -> None:
    keys = {"method.momentum": 0.99, "optim.lr": 0.1, "optim.weight_decay": 0.001}
    rows = [*arm("it", keys, [1, 2]), *arm("it", {k: v / 2 for k, v in keys.items()}, [1, 2])]
    made = build_report(write(tmp_path, [sweep("it", tuple(keys))], in_order(rows)))
    text = on_terminal(made, 80)
    assert re.search(r"(?m)^m = 0.99, lr = 0.1, .*\nweight decay = 0.001 ", text)


# ---------------------------------------------------------------- what a step costs


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Four methods on two datasets; the last was run with an older version."""

    def rows(name: str, relabel: str, **cost: Any) -> Iterator[RunRow]:
        for data, score in (("cifar10", 88.0), ("cifar100", 60.0)):
            changes = {"method.name": name, RELABEL: relabel, "data.name": data}
            yield from arm("it", changes, [score, score + 0.1], **cost)

    asked = sweep(
        "it",
        ("method.name", RELABEL, "data.name"),
        table=file_table("method.name", columns="data.name", baseline={"method.name": "moco"}),
        seeds=(0, 1),
    )
    found = [
        *rows("moco", "none", backprops=1, ema=True, images_per_second=512.0, peak_memory_gb=4.25),
        *rows("simclr", "none", backprops=2, ema=False, images_per_second=2e5, peak_memory_gb=0.05),
        *rows("byol", "ascl", backprops=2, ema=True),
        *rows("ressl", "none"),
    ]
    return build_report(write(tmp_path_factory.mktemp("methods"), [asked], in_order(found)))


def test_methods_have_their_costs_in_both_shapes(methods: Report) -> None:
    means, _, long = list(tables(methods))
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
        table=file_table("optim.lr", columns="method.name", baseline={"method.name": "moco"}),
    )
    rows = [
        row
        for name, cost in (("moco", 1), ("simclr", 2), ("byol", 2))
        for lr in (0.03, 0.06)
        for row in arm("it", {"method.name": name, "optim.lr": lr}, [88.0], backprops=cost)
    ]
    means, *_ = tables(build_report(write(tmp_path, [asked], in_order(rows))))
    assert [row[1].text for row in means.rows] == ["1x, 2x", "1x, 2x"]


def test_every_format_has_the_costs(methods: Report) -> None:
    markdown = FORMATS["md"].render(methods)
    assert "| method | BackProp | EMA | CIFAR-10 | CIFAR-100 |" in markdown
    assert "| MoCo | 1x | Yes | 88.05" in markdown
    assert re.search(r"MoCo & 1x & Yes & 88.05", FORMATS["latex"].render(methods))
    ours = json.loads(FORMATS["json"].render(methods))["sweeps"][0]["table"]["arms"]
    assert ours[0]["cost"] == {"backprops": 1, "ema": True, "step_ms": 500.0, "memory_gb": 4.25}
    assert re.search(r"MoCo +1x +Yes +88.05", on_terminal(methods, 100))
    assert re.search(
        r"<th [^>]*>BackProp</th>", FORMATS["html"].render(methods, Target(Store("nowhere")))
    )


def test_no_format_has_costs_where_there_is_one_method(report: Report) -> None:
    for name in FILES.keys() - {"csv"}:
        text = FORMATS[name].render(report)
        assert not re.search("BackProp|backprops|step_ms|memory", text)


# ---------------------------------------------------------------- options


def test_the_first_line_names_every_option(store: Store) -> None:
    options = Options("knn_top1", "best", {RELABEL: "ascl", "optim.lr": 0.06}, 1.5)
    text = FORMATS["md"].render(build_report(store, ["neighbours", "once"], options))
    assert text.splitlines()[0].startswith(
        "<!-- ascl-sweep report neighbours once --format md --metric knn_top1 --epoch best "
        "--region 1.5 --baseline method.relabel=ascl --baseline optim.lr=0.06 # sha256 "
    )


def test_metrics_of_epochs_can_be_reported(tmp_path: Path) -> None:
    """The value after the last epoch, also if several files hold a run's epochs."""
    rows = in_order(arm("it", ASCL, [90.0, 91.0]))
    store = write(tmp_path, [sweep("it", (TEMPERATURE,))], rows)
    for epoch in (2, 1, 3):
        with store.writer() as writer:
            for i, row in enumerate(rows):
                writer.put_epoch(row.run_id, {"epoch": epoch, "purity": 0.1 * epoch + 0.01 * i})
    found = build_report(store, options=Options(metric="purity")).sweeps[0].table
    assert found is not None
    assert found.arms[0].scores == {0: pytest.approx(30.0), 1: pytest.approx(31.0)}


def test_a_table_may_ask_for_a_metric_of_epochs(tmp_path: Path) -> None:
    rows = in_order(arm("it", ASCL, [90.0]))
    asked = sweep("it", (TEMPERATURE,), table=file_table(RELABEL, metric="confidence"))
    store = write(tmp_path, [asked], rows)
    with store.writer() as writer:
        writer.put_epoch(rows[0].run_id, {"epoch": 1, "confidence": 0.25})
    text = FORMATS["md"].render(build_report(store))
    assert "| 0.2500 |" in text and "(n = 1 of 3 seeds)" in text


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        golden = paper_report(example(folder))
    for name, file in FILES.items():
        (GOLDEN / file).write_text(FORMATS[name].render(golden), encoding="utf-8")
