"""`report --verify`: it finds what changed, where it is, and nothing else."""

import csv
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.ledger import Ledger, RunRow, SweepRow
from ascl_sweep.report import render
from ascl_sweep.report.ablation import Options
from ascl_sweep.report.origin import command, parse, parse_baseline
from ascl_sweep.report.plain import COLUMNS
from ascl_sweep.report.report import Report, report_of
from ascl_sweep.report.verify import Change, NotAReport, verify
from tests.ledgers import (
    EXAMPLE_ROWS,
    EXAMPLE_SWEEPS,
    MOCO,
    RELABEL,
    TEMPERATURE,
    arm,
    example,
    in_order,
    sweep,
    table,
    write,
)

FORMATS = tuple(render.WRITERS)
GOLDEN = Path(__file__).parent / "golden"
COMPLETE = [row for row in EXAMPLE_ROWS if row.state == "done" and row.phase == "final"]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return example(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def texts(ledger: Ledger) -> dict[str, str]:
    made = report_of(ledger)
    return {format: write_it(made) for format, write_it in render.WRITERS.items()}


class Memory(Ledger):
    """A ledger of rows in memory, as far as a report reads one."""

    def __init__(self, rows: Iterable[RunRow]) -> None:
        super().__init__("memory")
        self._runs = {row.run_id: row for row in rows}

    def sweeps(self) -> dict[str, SweepRow]:
        return {row.name: row for row in EXAMPLE_SWEEPS}

    def runs(self) -> dict[str, RunRow]:
        return self._runs


MEMORY = Memory(EXAMPLE_ROWS)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_changed(texts: dict[str, str], ledger: Ledger, format: str) -> None:
    found = verify(texts[format], ledger)
    assert found.changes == () and not found.edited
    assert found.numbers > 100, "every number is recomputed"


@pytest.mark.parametrize("format", FORMATS)
def test_the_golden_reports_hold(ledger: Ledger, format: str) -> None:
    (file,) = GOLDEN.glob(f"*.{'tex' if format == 'latex' else format}")
    found = verify(file.read_text(encoding="utf-8"), ledger)
    assert found.changes == () and not found.edited


@pytest.mark.parametrize("change", ["\r\n", " \n"])
def test_what_an_editor_does_to_the_ends_of_lines_is_no_edit(
    texts: dict[str, str], ledger: Ledger, change: str
) -> None:
    for format in ("md", "latex", "csv"):
        found = verify(texts[format].replace("\n", change), ledger)
        assert not found.edited and found.changes == (), format
    assert not verify("\ufeff" + texts["md"], ledger).edited
    assert not verify(json.dumps(json.loads(texts["json"])), ledger).edited


# ---------------------------------------------------------------- the ledger changed


@given(st.sampled_from(COMPLETE), st.sampled_from(FORMATS))
@settings(max_examples=60)
def test_a_score_that_changed_is_found_in_its_sweep_and_nowhere_else(
    row: RunRow, format: str
) -> None:
    """At every arm whose numbers hang on it: its own, or those compared with it."""
    assert row.probe_top1 is not None
    other = replace(row, probe_top1=row.probe_top1 + 0.01)
    after = Memory(other if r is row else r for r in EXAMPLE_ROWS)
    found = verify(written(format), after)
    assert not found.edited
    claims = {"", "claims", "Claims"}  # what is said of them may hang on it too
    assert {change.sweep for change in found.changes} - claims == set(row.sweeps)
    assert any("mean" in change.column or "(" in (change.new or "") for change in found.changes)


def test_a_change_is_named_by_sweep_table_row_and_column(tmp_path: Path) -> None:
    asked = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO), seeds=(0, 1))
    rows = [*arm("it", MOCO, [88.0, 88.2]), *arm("it", {RELABEL: "ascl"}, [90.0, 90.4])]
    ledger = write(tmp_path, [asked], in_order(rows))
    text = render.markdown(report_of(ledger))
    write(tmp_path, [], [replace(in_order(rows)[3], probe_top1=0.904001)])
    assert verify(text, ledger).changes == (), "it rounds to the same"
    write(tmp_path, [], [replace(in_order(rows)[3], probe_top1=0.906)])
    means, long = "it, linear-probe top-1, ASCL", "it, linear-probe top-1, arm by arm, ASCL"
    assert [str(change) for change in verify(text, ledger).changes] == [
        f"{means}, linear-probe top-1 (%): **90.20 ± 0.28 (2)** → 90.30 ± 0.42 (2)",
        f"{long}, mean ± sd: **90.20 ± 0.28** → 90.30 ± 0.42",
        f"{long}, Δ: +2.10 → +2.20",
        f"{long}, 95% interval: [+0.83, +3.37] → [−0.34, +4.74]",
        f"{long}, p: 0.030 → 0.058",
        f"{long}, verdict: better → undecided",
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_arms_that_came_and_went_are_named_once(tmp_path: Path, format: str) -> None:
    asked = sweep("it", (TEMPERATURE,), seeds=(0,))
    rows = in_order([r for tau in (0.01, 0.05) for r in arm("it", {TEMPERATURE: tau}, [90.0])])
    ledger = write(tmp_path, [asked], rows)
    text = render.WRITERS[format](report_of(ledger))
    new = in_order([*rows, *arm("it", {TEMPERATURE: 0.1}, [89.0])])
    write(tmp_path, [], [replace(new[0], sweeps=()), new[2]])
    changes = verify(text, ledger).changes
    assert [c for c in changes if (c.row, c.column, c.new) == (_row(format, 0.01), "", None)]
    assert [c for c in changes if (c.row, c.column, c.old) == (_row(format, 0.1), "", None)]
    rows_named = [c for c in changes if c.row in (_row(format, 0.01), _row(format, 0.1))]
    tables = {c.table for c in rows_named}
    assert len(rows_named) == 2 * len(tables), "each once in each table"


def _row(format: str, tau: float) -> str:
    return rf"$\tau'$~=~{tau}" if format == "latex" else f"τ' = {tau}"


def test_a_table_that_appeared_is_named_once(tmp_path: Path) -> None:
    asked = sweep("it", (TEMPERATURE,))
    ledger = write(tmp_path, [asked], [])
    text = render.markdown(report_of(ledger))
    write(tmp_path, [], in_order(arm("it", {TEMPERATURE: 0.05}, [90.0, 91.0, 92.0])))
    changes = verify(text, ledger).changes
    assert Change("it", "linear-probe top-1", "", "", None, "") in changes
    assert "it, linear-probe top-1: appeared" in map(str, changes)
    assert not any(change.row not in ("", "text") for change in changes)


def test_a_sentence_that_changed_stands_beside_the_new_one(tmp_path: Path) -> None:
    rows = in_order(arm("it", {TEMPERATURE: 0.05}, [90.0, 91.0]))
    ledger = write(tmp_path, [sweep("it", (TEMPERATURE,), seeds=(0, 1))], rows)
    text = render.markdown(report_of(ledger))
    write(tmp_path, [], [replace(row, torch="2.15.0") for row in rows])
    (change,) = verify(text, ledger).changes
    assert change.row == "text" and change.old and change.new
    assert "torch 2.14.0" in change.old and "torch 2.15.0" in change.new


# ---------------------------------------------------------------- the file changed

NUMBER = re.compile(r"\d+\.\d\d+(?:e-\d+)?")


@cache
def written(format: str) -> str:
    return render.WRITERS[format](report_of(MEMORY))


@cache
def numbers_in(format: str) -> list[tuple[int, re.Match[str]]]:
    """Every number with two decimals below the first line, with its line's index."""
    return [
        (i, found)
        for i, line in enumerate(written(format).splitlines())
        for found in NUMBER.finditer(line)
        if i and '"command"' not in line and _is_value(format, line, found.start())
    ]


@given(st.data(), st.sampled_from(FORMATS), st.sampled_from("123456789"))
@settings(max_examples=80)
def test_a_number_that_was_edited_is_found_and_no_other(
    data: st.DataObject, format: str, more: str
) -> None:
    """Wherever it stands, but in the names of rows and columns."""
    i, found = data.draw(st.sampled_from(numbers_in(format)))
    place = found.start() + found[0].index(".") + 2
    lines = written(format).splitlines()
    line = lines[i]
    lines[i] = f"{line[:place]}{(int(line[place]) + int(more)) % 10}{line[place + 1 :]}"
    edited = lines[i][found.start() : found.end()]
    verified = verify("\n".join(lines), MEMORY)
    assert verified.edited
    (change,) = verified.changes
    assert change.old is not None
    if format == "json":
        assert float(change.old) == float(edited)
    else:
        assert edited in change.old


def _is_value(format: str, line: str, place: int) -> bool:
    """Whether a number stands in a cell or a sentence, and not in what names others."""
    before = line[:place]
    match format:
        case "md":
            header = "mean ± sd" in line or "| τ' = 0.01" in line
            return not line.startswith("|") or (before.count("|") > 1 and not header)
        case "latex":
            header = "mean" in line or r"$\tau'$~=~0.01 &" in line
            named = line.startswith(("%", r"\label", r"\setlength", r"\begin", r"\centering"))
            return not named and (not line.endswith(r"\\") or (" & " in before and not header))
        case "csv":
            return len(next(csv.reader([before]), ())) > COLUMNS.index("arm") + 1
        case _:
            return bool(re.search(r'"(mean|sd|delta|low|high|p|score|device_hours|\d)": $', before))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_file_that_was_cut_short_is_not_taken_for_whole(
    texts: dict[str, str], ledger: Ledger, format: str, share: float
) -> None:
    text = texts[format][: int(share * len(texts[format]))]
    try:
        assert verify(text, ledger).edited
    except NotAReport as error:
        assert format == "json" and "cut short" in str(error)


def test_a_file_cut_in_the_first_cell_of_a_row_is_not_taken_for_whole(
    texts: dict[str, str], ledger: Ledger
) -> None:
    text = texts["md"]
    assert verify(text[: text.rindex("\n| ") + 4], ledger).edited


@pytest.mark.parametrize(
    "text",
    ["", "\n", "# A readme\n\ntext", "% a comment\n", "{}", "[]", "{", "<html></html>",
     "<!-- x -->", '{"ascl_sweep_report": 1, "command": 5}',
     "# ascl-sweep report it --format csv\n", "\x00\x01",
     "<!-- ascl-sweep status # sha256 0123456789abcdef -->"],
)  # fmt: skip
def test_what_is_no_report_is_refused(ledger: Ledger, text: str) -> None:
    with pytest.raises(NotAReport):
        verify(text, ledger)


def test_a_newer_report_is_refused(texts: dict[str, str], ledger: Ledger) -> None:
    newer = texts["json"].replace('"ascl_sweep_report": 1', '"ascl_sweep_report": 2')
    with pytest.raises(NotAReport, match="upgrade"):
        verify(newer, ledger)


@pytest.mark.parametrize(
    "edit",
    [lambda line: line.replace("--epoch last", "--epoch"),
     lambda line: line.replace("--region 0.5", "--region much"),
     lambda line: line.replace("report ", "report 'x ")],
)  # fmt: skip
def test_a_command_that_was_edited_is_refused(
    texts: dict[str, str], ledger: Ledger, edit: Callable[[str], str]
) -> None:
    first, rest = texts["md"].split("\n", 1)
    with pytest.raises(NotAReport, match="edited"):
        verify(f"{edit(first)}\n{rest}", ledger)


def test_options_that_were_edited_are_noticed(texts: dict[str, str], ledger: Ledger) -> None:
    found = verify(texts["md"].replace("--region 0.5", "--region 9.5", 1), ledger)
    assert found.edited and found.changes


# ---------------------------------------------------------------- pages


@pytest.mark.parametrize(
    "tag", ['<script type="application/json" id="report">', "<script id=report type=text/json>"]
)
def test_a_page_is_verified_by_the_data_it_holds(
    texts: dict[str, str], ledger: Ledger, tag: str
) -> None:
    safe = texts["json"].replace("<", "\\u003c")
    page = f"<!doctype html>\n<html><script>1 < 2</script>{tag}{safe}</script></html>"
    found = verify(page, ledger)
    assert found.changes == () and not found.edited
    wrong = page.replace('"mean": 88.5,', '"mean": 98.5,')
    assert wrong != page and verify(wrong, ledger).edited


# ---------------------------------------------------------------- first lines

WORDS = st.text(min_size=1, max_size=12)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@given(
    st.lists(NAMES, min_size=1, max_size=3, unique=True),
    st.sampled_from([None, "knn_top1"]),
    st.sampled_from(["last", "best"]),
    st.dictionaries(NAMES, VALUES, max_size=3),
    st.floats(0, 100),
    st.sampled_from(FORMATS),
)
def test_a_command_is_read_as_it_was_written(
    names: list[str], metric: str | None, epoch: str, baseline: dict[str, object],
    region: float, format: str,
) -> None:  # fmt: skip
    options = Options(metric, epoch, baseline or None, region)  # type: ignore[arg-type]
    found = [type("Found", (), {"sweep": replace(EXAMPLE_SWEEPS[0], name=n)}) for n in names]
    line = command(Report("", options, tuple(found), ()), format)  # type: ignore[arg-type]
    assert len(line.splitlines()) == 1 and "-->" not in line
    read = parse(line)
    assert (read.format, list(read.sweeps)) == (format, names)
    assert read.options == options


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=none", "none"), ("a=null", None), ("a=1e-3", 0.001), ("a=0.05", 0.05), ("a=5", 5),
     ("a=true", True), ("a='5'", "5"), ("a = x=y", "x=y"), ("a=", None)],
)  # fmt: skip
def test_a_baselines_value_is_yaml(text: str, value: object) -> None:
    assert parse_baseline([text]) == {"a": value}
    assert type(parse_baseline([text])["a"]) is type(value)  # type: ignore[index]


@pytest.mark.parametrize(
    ("given_texts", "message"),
    [(["relabel"], "--baseline must be KEY=VALUE"), (["=none"], "--baseline must be KEY=VALUE"),
     (["a=1", "a=2"], "each key once"), (["a=[1, 2]"], "must be a word or a number"),
     (["a={"], "not YAML")],
)  # fmt: skip
def test_a_baseline_that_cannot_be_parsed_is_refused(given_texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_baseline(given_texts)


def test_no_baseline_is_none() -> None:
    assert parse_baseline([]) is None
