"""`report --verify` finds every changed line, and no other."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.analysis.comparison import Options
from ascl_sweep.contracts import RunRow, SweepRow
from ascl_sweep.report.formats.base import load_formats
from ascl_sweep.report.formats.json import VERSION
from ascl_sweep.report.provenance import (
    NotAReport,
    build_command,
    parse_baseline,
    parse_command,
)
from ascl_sweep.report.report import Report
from ascl_sweep.report.verify import Verification
from ascl_sweep.report.verify import verify as verify_text
from ascl_sweep.reproduction.section import PAPER
from ascl_sweep.store.store import Store
from tests.stores import (
    EXAMPLE_ROWS,
    EXAMPLE_SWEEPS,
    MOCO,
    RELABEL,
    TEMPERATURE,
    arm,
    in_order,
    paper_report,
    sweep,
    table,
    write,
)

WRITERS = load_formats()
FORMATS = ("md", "latex", "csv", "json")
COMPLETE = [row for row in EXAMPLE_ROWS if row.state == "done" and row.phase == "final"]


@pytest.fixture(scope="module")
def texts(report: Report) -> dict[str, str]:
    return {format: WRITERS[format].render(report) for format in FORMATS}


def verify(text: str, store: Store) -> Verification:
    return verify_text(text, store, [PAPER])


class Memory(Store):
    """A store in memory, with the methods that a report needs."""

    def __init__(self, rows: Iterable[RunRow]) -> None:
        super().__init__("memory")
        self._runs = {row.run_id: row for row in rows}

    def sweeps(self) -> dict[str, SweepRow]:
        return {row.name: row for row in EXAMPLE_SWEEPS}

    def runs(self) -> dict[str, RunRow]:
        return self._runs


MEMORY = Memory(EXAMPLE_ROWS)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_changed(texts: dict[str, str], store: Store, format: str) -> None:
    found = verify(texts[format], store)
    assert found.changes == () and not found.edited
    assert found.numbers > 100, "every number is recomputed"


@pytest.mark.parametrize("change", ["\r\n", " \n"])
def test_what_an_editor_does_to_the_ends_of_lines_is_no_edit(
    texts: dict[str, str], store: Store, change: str
) -> None:
    for format in ("md", "latex", "csv"):
        found = verify(texts[format].replace("\n", change), store)
        assert not found.edited and found.changes == (), format
    assert not verify("\ufeff" + texts["md"], store).edited
    assert not verify(json.dumps(json.loads(texts["json"])), store).edited


# ---------------------------------------------------------------- the store changed


@given(st.sampled_from(COMPLETE), st.sampled_from(FORMATS))
@settings(max_examples=40)
def test_a_score_that_changed_is_found(row: RunRow, format: str) -> None:
    assert row.probe_top1 is not None
    other = replace(row, probe_top1=row.probe_top1 + 0.01)
    found = verify(written(format), Memory(other if r is row else r for r in EXAMPLE_ROWS))
    assert not found.edited and found.changes
    assert all(change.old != change.new for change in found.changes)


def test_a_change_is_shown_as_the_old_line_and_the_new_one(tmp_path: Path) -> None:
    asked = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO))
    ours = arm("it", {RELABEL: "ascl"}, [90.0, 90.4, 90.1])
    rows = in_order([*arm("it", MOCO, [88.0, 88.2, 88.1]), *ours])
    store = write(tmp_path, [asked], rows)
    text = WRITERS["md"].render(paper_report(store))
    write(tmp_path, [], [replace(rows[4], probe_top1=0.904001)])
    assert verify(text, store).changes == (), "the rounded value is the same"
    write(tmp_path, [], [replace(rows[4], probe_top1=0.966)])
    findings, means, *legend, long = verify(text, store).changes
    assert findings.new and "Nothing is decided yet" in findings.new
    assert str(means) == "- | ASCL | **90.17 ± 0.21**<sup>†</sup> |\n+ | ASCL | 92.2 ± 3.8 |"
    assert next(line.old for line in legend if line.old).startswith("<sup>†</sup>")
    assert long.old and "| better |" in long.old
    assert long.new and "| undecided |" in long.new


@pytest.mark.parametrize("format", FORMATS)
def test_arms_that_came_and_went_are_shown(tmp_path: Path, format: str) -> None:
    asked = sweep("it", (TEMPERATURE,), seeds=(0,))
    rows = in_order([r for tau in (0.01, 0.05) for r in arm("it", {TEMPERATURE: tau}, [90.0])])
    store = write(tmp_path, [asked], rows)
    text = WRITERS[format].render(paper_report(store))
    new = in_order([*rows, *arm("it", {TEMPERATURE: 0.1}, [89.0])])
    write(tmp_path, [], [replace(new[0], sweeps=()), new[2]])
    changes = verify(text, store).changes
    assert any("0.01" in (c.old or "") and "0.01" not in (c.new or "") for c in changes)
    assert any("0.1" in (c.new or "") and "89.0" in (c.new or "") + str(changes) for c in changes)


# ---------------------------------------------------------------- the file changed

NUMBER = re.compile(r"\d+\.\d\d+(?:e-\d+)?")


@cache
def written(format: str) -> str:
    return WRITERS[format].render(paper_report(MEMORY))


@cache
def numbers_in(format: str) -> list[tuple[int, re.Match[str]]]:
    """Return every number with two decimals below the first line, with its line's index."""
    return [
        (i, found)
        for i, line in enumerate(written(format).splitlines())
        for found in NUMBER.finditer(line)
        if i and '"command"' not in line
    ]


@given(st.data(), st.sampled_from(FORMATS), st.sampled_from("123456789"))
@settings(max_examples=80)
def test_a_number_that_was_edited_is_found_and_no_other(
    data: st.DataObject, format: str, more: str
) -> None:
    i, found = data.draw(st.sampled_from(numbers_in(format)))
    place = found.start() + found[0].index(".") + 2
    lines = written(format).splitlines()
    line = lines[i]
    lines[i] = f"{line[:place]}{(int(line[place]) + int(more)) % 10}{line[place + 1 :]}"
    verified = verify("\n".join(lines), MEMORY)
    assert verified.edited
    (change,) = verified.changes
    assert change.new == line
    if format != "json":  # which is parsed and serialized again
        assert change.old == lines[i]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_file_is_not_accepted(
    texts: dict[str, str], store: Store, format: str, share: float
) -> None:
    text = texts[format][: int(share * len(texts[format]))]
    try:
        assert verify(text, store).edited
    except NotAReport as error:
        assert format == "json" and "truncated" in str(error)


def test_another_machines_last_digits_are_no_change(texts: dict[str, str], store: Store) -> None:
    for format in ("csv", "json"):
        text = re.sub(r"(\d\.\d{12,}?)\d(?=[,\n])", r"\g<1>5", texts[format])
        assert text != texts[format] and verify(text, store).changes == ()


@pytest.mark.parametrize(
    "text",
    ["", "\n", "# A readme\n\ntext", "% a comment\n", "{}", "[]", "{", "<html></html>",
     "<!-- x -->", '{"ascl_sweep_report": 1, "command": 5}',
     "# ascl-sweep report it --format csv\n", "\x00\x01",
     "<!-- ascl-sweep status # sha256 0123456789abcdef -->"],
)  # fmt: skip
def test_a_value_that_is_not_a_report_is_refused(store: Store, text: str) -> None:
    with pytest.raises(NotAReport):
        verify(text, store)


def test_a_newer_report_is_refused(texts: dict[str, str], store: Store) -> None:
    old, new = (f'"ascl_sweep_report": {version}' for version in (VERSION, VERSION + 1))
    newer = texts["json"].replace(old, new)
    with pytest.raises(NotAReport, match="upgrade"):
        verify(newer, store)


@pytest.mark.parametrize(
    "edit",
    [lambda line: line.replace("--epoch last", "--epoch"),
     lambda line: line.replace("--region 0.5", "--region much"),
     lambda line: line.replace("report ", "report 'x ")],
)  # fmt: skip
def test_a_command_that_was_edited_is_refused(
    texts: dict[str, str], store: Store, edit: Callable[[str], str]
) -> None:
    first, rest = texts["md"].split("\n", 1)
    with pytest.raises(NotAReport, match="edited"):
        verify(f"{edit(first)}\n{rest}", store)


def test_options_that_were_edited_are_noticed(texts: dict[str, str], store: Store) -> None:
    found = verify(texts["md"].replace("--region 0.5", "--region 9.5", 1), store)
    assert found.edited and found.changes


# ---------------------------------------------------------------- pages


@pytest.mark.parametrize(
    "tag", ['<script type="application/json" id="report">', "<script id=report type=text/json>"]
)
def test_a_page_is_verified_by_the_data_it_holds(
    texts: dict[str, str], store: Store, tag: str
) -> None:
    safe = texts["json"].replace("<", "\\u003c")
    page = f"<!doctype html>\n<html><script>1 < 2</script>{tag}{safe}</script></html>"
    found = verify(page, store)
    assert found.changes == () and not found.edited
    wrong = page.replace('"mean": 88.5,', '"mean": 98.5,')
    assert wrong != page and verify(wrong, store).edited


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
    line = build_command(Report("", options, tuple(found), ()), format)  # type: ignore[arg-type]
    assert len(line.splitlines()) == 1 and "-->" not in line
    read = parse_command(line)
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
