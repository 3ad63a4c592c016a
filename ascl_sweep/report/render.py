"""A report as text: Markdown, LaTeX, CSV and JSON, all written from the same values.

Each starts with the command that makes it again, so that `verify` can.
"""

import csv as csv_module
import io
import json as json_module
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascl_sweep.report import origin
from ascl_sweep.report.blocks import Cell, Section, Sheet
from ascl_sweep.report.document import document_of, opening
from ascl_sweep.report.plain import columns_of, long_rows, plain
from ascl_sweep.report.report import Report
from ascl_sweep.report.tex import latex_body, latex_sheet

__all__ = [
    "WRITERS",
    "Picture",
    "csv",
    "json",
    "latex",
    "latex_sheet",
    "markdown",
    "markdown_sheet",
]

FORMAT = 1
"""Of the JSON; a newer one may have other fields."""


@dataclass(frozen=True)
class Picture:
    """A figure that Markdown shows."""

    title: str
    caption: str
    file: Path


# ---------------------------------------------------------------- Markdown


def markdown(report: Report, pictures: Sequence[Picture] = (), beside: Path | None = None) -> str:
    """For GitHub and the like; pictures are named as seen from the folder that it is written to."""
    first = opening(report)
    parts = [escape(first)] if first else []
    for section in document_of(report):
        parts += _markdown_section(section)
    if pictures:
        parts.append("## Figures")
        parts += [_picture(picture, beside or Path()) for picture in pictures]
    body = "\n\n".join(parts)
    return f"<!-- {origin.sealed(origin.command(report, 'md'), body)} -->\n\n{body}\n"


def _markdown_section(section: Section) -> Iterator[str]:
    yield f"## {escape(section.title)}"
    for block in section.blocks:
        if isinstance(block, Sheet):
            yield markdown_sheet(block)
        else:
            if block.title:
                yield f"### {escape(block.title)}"
            yield "\n".join(f"- {escape(sentence)}" for sentence in block.items)


def markdown_sheet(sheet: Sheet) -> str:
    """One sheet: title and caption, the table, its notes."""
    caption = f" {escape('; '.join(sheet.caption))}." if sheet.caption else ""
    rules = ("---:" if side == "r" else ":---" for side in sheet.align)
    lines = [
        f"**{escape(sheet.title)}.**{caption}",
        "",
        f"| {' | '.join(map(escape, sheet.header))} |",
        f"| {' | '.join(rules)} |",
        *(f"| {' | '.join(map(_markdown_cell, row))} |" for row in sheet.rows),
    ]
    if sheet.notes:
        notes = (f"<sup>{mark}</sup> {escape(sentence)}" for mark, sentence in sheet.notes)
        lines += ["", "<br>\n".join(notes)]
    return "\n".join(lines)


def _markdown_cell(cell: Cell) -> str:
    text = escape(cell.text)
    text = f"**{text}**" if cell.bold else text
    return text + (f"<sup>{','.join(cell.marks)}</sup>" if cell.marks else "")


def escape(text: str) -> str:
    """Text as Markdown shows it, on one line."""
    text = re.sub(r"([\\`*_|<>~])|(?<=\])\(|&(?=#?\w+;)", lambda m: f"\\{m[0]}", text)
    return " ".join(text.split())


def _picture(picture: Picture, beside: Path) -> str:
    file = Path(os.path.relpath(picture.file, beside)).as_posix()
    alt = picture.caption.replace("[", "(").replace("]", ")")
    return f"![{escape(alt)}](<{file}>)\n\n**{escape(picture.title)}.** {escape(picture.caption)}"


# ---------------------------------------------------------------- LaTeX, CSV, JSON


def latex(report: Report) -> str:
    """Floats for a paper."""
    body = latex_body(opening(report), document_of(report))
    return f"% {origin.sealed(origin.command(report, 'latex'), body)}\n{body}"


def csv(report: Report) -> str:
    """The long table of every sweep, a row for each arm; below a line that starts with #."""
    rows = list(long_rows(report))
    out = io.StringIO()
    writer = csv_module.DictWriter(out, columns_of(report), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    body = out.getvalue()
    return f"# {origin.sealed(origin.command(report, 'csv'), body)}\n{body}"


def json(report: Report) -> str:
    """The whole report as data."""
    made = plain(report)
    first = origin.sealed(origin.command(report, "json"), canonical(made))
    data = {"ascl_sweep_report": FORMAT, "command": first, **made}
    return json_module.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def canonical(data: Mapping[str, Any]) -> str:
    """Data as text that does not hang on how a file lays it out."""
    return json_module.dumps(data, sort_keys=True)


WRITERS: Mapping[str, Callable[[Report], str]] = {
    "md": markdown,
    "latex": latex,
    "csv": csv,
    "json": json,
}
"""The formats that are nothing but text, by name."""
