"""Recompute an earlier report from the ledger, and name every number that is another now.

A report says which command made it. The same is made again in the same format, both are read back
into cells, and cells are compared by the names of their sweep, table, row and column.
"""

import csv
import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from ascl_sweep.ledger import Ledger
from ascl_sweep.report import origin
from ascl_sweep.report.render import FORMAT, WRITERS, canonical
from ascl_sweep.report.report import report_of

Place = tuple[str, str, str, str]  # sweep, table, row, column
ROUNDING = 1e-9
"""Relative difference of two numbers at full precision that is another machine's arithmetic."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-−]?\d+)?")
_OPENINGS = {"<!--": "md", "%": "latex", "#": "csv", "{": "json"}


class NotAReport(ValueError):
    """A file that is none, or not whole enough to be read."""


@dataclass(frozen=True)
class Change:
    """A place of a report that is not what it was; None where it was or is not there."""

    sweep: str
    table: str
    row: str
    column: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.sweep, self.table, self.row, self.column)))
        if self.new is None:
            return f"{place}: vanished{f', was {self.old}' if self.old else ''}"
        if self.old is None:
            return f"{place}: appeared{f', is {self.new}' if self.new else ''}"
        return f"{place}: {self.old} → {self.new}"


@dataclass(frozen=True)
class Verification:
    """What became of a report."""

    numbers: int
    """How many were recomputed."""
    changes: tuple[Change, ...]
    edited: bool
    """Whether the file itself is not as it was written."""


@dataclass
class Content:
    """What a report says: its cells by sweep, table, row and column, and the sentences between."""

    cells: dict[Place, str] = field(default_factory=dict)
    said: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def say(self, sweep: str, table: str, text: str) -> None:
        if text.strip():
            self.said.setdefault((sweep, table), []).extend(text.strip().split("; "))

    def numbers(self) -> int:
        texts = [*self.cells.values(), *(t for texts in self.said.values() for t in texts)]
        return sum(len(_NUMBER.findall(text)) for text in texts)


def verify(text: str, ledger: Ledger) -> Verification:
    """Hold an earlier report against the ledger; raises NotAReport if it is none."""
    text = text.removeprefix("\ufeff")
    text = _json_in_page(text) or text
    format = next((f for opening, f in _OPENINGS.items() if text.startswith(opening)), "")
    line, body = _json_parts(text) if format == "json" else _text_parts(text, format)
    found = origin.unsealed(line)
    if not format or found is None:
        raise NotAReport("it does not start as a report does, with the command that made it")
    command, checksum = found
    try:
        made = origin.parse(command)
    except (ValueError, KeyError) as error:
        raise NotAReport(f"the command in its first line was edited: {command}") from error
    report = report_of(ledger, made.sweeps, made.options)
    before, now = (_READERS[format](t) for t in (text, WRITERS[format](report)))
    return Verification(
        numbers=now.numbers(),
        changes=tuple(_changes(before, now)),
        edited=made.format != format or not origin.intact(command, checksum, body),
    )


# ---------------------------------------------------------------- first lines


def _text_parts(text: str, format: str) -> tuple[str, str]:
    """The command of a text's first line, and what stands below it."""
    line, _, body = text.partition("\n")
    if format == "md":
        line = line.strip().removeprefix("<!--").removesuffix("-->")
        body = body.lstrip()
    return line.lstrip("%#"), body


def _json_parts(text: str) -> tuple[str, str]:
    data = _json(text)
    made = data.pop("ascl_sweep_report", None)
    if isinstance(made, int) and made > FORMAT:
        raise NotAReport(f"it has report format {made}, this version reads {FORMAT}; upgrade")
    return str(data.pop("command", "")), canonical(data)


def _json(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise NotAReport(f"it was cut short or edited, so that it is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise NotAReport("it is no report")
    return data


def _json_in_page(text: str) -> str | None:
    """The numbers of a page, which it holds once more as data."""
    if not re.match(r"\s*<(!doctype|html)", text, re.IGNORECASE):
        return None
    for attributes, content in re.findall(r"(?s)<script\b([^>]*)>(.*?)</script>", text):
        if re.search(r"\bid=[\"']?report[\"']?(\s|$)", attributes):
            return str(content).strip()
    return None


# ---------------------------------------------------------------- reading back

Event = tuple[str, Any]  # a sweep, a table, a part of it, a row's cells, or a text


def _lines(text: str) -> list[str]:
    """All but the first; what an editor does to their ends is no change."""
    return [line.rstrip() for line in text.splitlines()[1:]]


def _markdown(text: str) -> Iterator[Event]:
    for line in _lines(text):
        if line == "## Figures":  # pictures are drawn, not recomputed
            return
        if line.startswith("## "):
            yield "sweep", _unescaped(line[3:]).split(" ")[0]
        elif line.startswith("### "):
            yield "table", _unescaped(line[4:])
        elif found := re.fullmatch(r"\*\*(.+)\.\*\*(.*)", line):
            yield "table", _unescaped(found[1])
            yield "text", _unescaped(found[2])
        elif line.startswith("| "):
            cells = [_unescaped(c.strip()) for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            if cells and "---" not in line:  # none where a file was cut in a row's first cell
                yield "row", cells
        else:
            yield "text", _unescaped(line.removeprefix("- ").removesuffix("<br>"))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _latex(text: str) -> Iterator[Event]:
    for line in _lines(text):
        kind, _, name = line.removeprefix("% ").partition(" ")
        if line.startswith("% "):
            if kind in ("sweep", "table"):
                yield kind, name
        elif line.startswith(r"\begin{tabular}"):
            yield "part", None
        elif line.endswith(r" \\"):
            yield "row", line.removesuffix(r" \\").split(" & ")
        elif found := re.fullmatch(r"\\caption\{(.*)\}", line):
            yield "text", found[1]
        elif not line.startswith("\\") or line.startswith(r"\textsuperscript"):
            yield "text", line.removesuffix(r"\par")


_MARK = re.compile(r"<sup>.*?</sup>|\\textsuperscript\{.*?\}|^\\raggedright ")


def _content(events: Iterable[Event]) -> Content:
    """The cells of a text in which every sweep, table and row has a line of its own."""
    content, sweep, table = Content(), "", ""
    header: list[str] | None = None
    seen: Counter[str] = Counter()
    for kind, given in events:
        if kind == "sweep":
            sweep, table = given, ""
        elif kind == "table":
            table = given.removeprefix(f"{sweep}: ")
        elif kind == "text":
            content.say(sweep, table, given)
        elif kind == "row" and header is not None:
            row = _MARK.sub("", given[0])
            seen[row] += 1
            name = row if seen[row] == 1 else f"{row} ({seen[row]})"
            for column, cell in zip(header, given, strict=False):
                content.cells[sweep, table, name, column] = cell
            continue
        # Whatever is no row of a table ends it.
        header, seen = given if kind == "row" else None, Counter()
    return content


def _of_csv(text: str) -> Content:
    content = Content()
    for row in csv.DictReader(_lines(text)):
        for column, cell in row.items():
            place = (str(row.get("sweep")), "arms", str(row.get("arm")), str(column))
            content.cells[place] = str(cell or "")
    return content


def _of_json(text: str) -> Content:
    content, data = Content(), _json(text)
    for name, sweep in _named(data.get("sweeps")):
        for path, value in _leaves(sweep):
            table, *rest = path
            lists = rest[:1] in (["arms"], ["trials"], ["orderings"]) and len(rest) > 1
            row, column = (rest[1], rest[2:]) if lists else ("".join(rest[:1]), rest[1:])
            shown = json.dumps(value, ensure_ascii=False)
            content.cells[name, table, row, ".".join(column)] = shown
    for name, claim in _named(data.get("claims")):
        for path, value in _leaves(claim):
            shown = json.dumps(value, ensure_ascii=False)
            content.cells["claims", name, path[0], ".".join(path[1:])] = shown
    return content


def _named(items: Any) -> Iterator[tuple[str, Any]]:
    """The items of a list by their names, if they have any."""
    for i, item in enumerate(items if isinstance(items, list) else ()):
        names = item if isinstance(item, dict) else {}
        place = f"{names['row']}, {names['column']}" if {"row", "column"} <= names.keys() else None
        own = (names.get(key) for key in ("run_id", "name", "label", "data", "what"))
        yield next((str(name) for name in (place, *own) if name), str(i)), item


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(tree, list):
        for name, value in _named(tree):
            yield from _leaves(value, (*path, name))
    else:
        yield path, tree


_READERS: Mapping[str, Callable[[str], Content]] = {
    "md": lambda text: _content(_markdown(text)),
    "latex": lambda text: _content(_latex(text)),
    "csv": _of_csv,
    "json": _of_json,
}


# ---------------------------------------------------------------- comparing


def _changes(old: Content, new: Content) -> Iterator[Change]:
    """What differs, place by place; of a row, column or table that is gone or new, only that."""
    told: set[Place] = set()
    wholes = _wholes(old), _wholes(new)
    for place in dict.fromkeys([*old.cells, *new.cells]):
        before, now = old.cells.get(place), new.cells.get(place)
        if before is not None and now is not None:
            if not _same(before, now):
                yield Change(*place, before, now)
            continue
        other = wholes[1] if now is None else wholes[0]
        largest = next((whole for whole in _around(place) if whole not in other), None)
        if largest is None:
            yield Change(*place, before, now)
        elif largest not in told:
            told.add(largest)
            yield Change(*largest, "" if now is None else None, "" if before is None else None)
    for said in dict.fromkeys([*old.said, *new.said]):
        if (*said, "", "") not in told:
            yield from _said(said, old.said.get(said, []), new.said.get(said, []))


def _around(place: Place) -> Iterator[Place]:
    """What a cell is part of, the largest first."""
    sweep, table, row, column = place
    yield sweep, "", "", ""
    yield sweep, table, "", ""
    yield sweep, table, row, ""
    yield sweep, table, "", column


def _wholes(content: Content) -> set[Place]:
    places: list[Place] = [*content.cells, *((*place, "", "") for place in content.said)]
    return {whole for place in places for whole in _around(place)}


def _same(a: str, b: str) -> bool:
    try:
        return a == b or math.isclose(float(a), float(b), rel_tol=ROUNDING, abs_tol=1e-12)
    except ValueError:
        return False


def _said(place: tuple[str, str], old: list[str], new: list[str]) -> Iterator[Change]:
    """Sentences that changed, each beside the one that took its place."""
    for kind, i, j, k, m in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if kind != "equal":
            for before, now in zip_longest(old[i:j], new[k:m]):
                yield Change(*place, "text", "", before, now)
