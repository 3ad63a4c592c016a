"""Markdown, as GitHub renders it."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ascl_sweep.report.document import Section, Text, build_document, opening
from ascl_sweep.report.formats.base import CommentedFormat, Picture, Target
from ascl_sweep.report.provenance import StoredReport
from ascl_sweep.report.report import Report
from ascl_sweep.report.tables import Cell, Table
from ascl_sweep.text import printable

FIGURES = "## Figures"


class Markdown(CommentedFormat):
    name = "md"
    suffixes = (".md", ".markdown")
    comment = ("<!--", " -->\n")

    def render_body(self, report: Report, target: Target) -> str:
        """Render a report; paths of pictures are relative to the target's folder."""
        first = opening(report)
        parts = [escape(first)] if first else []
        for section in build_document(report):
            parts += _section(section)
        if target.pictures:
            parts.append(FIGURES)
            parts += [_picture(picture, target.folder) for picture in target.pictures]
        return "\n\n".join(parts) + "\n"

    def read(self, text: str) -> StoredReport | None:
        """Split a report, without its figures, which are not recomputed."""
        found = super().read(text)
        if found is None:
            return None
        return replace(found, body=re.split(rf"(?m)^{FIGURES}\s*$", found.body)[0].strip())


FORMAT = Markdown()


def _section(section: Section) -> Iterator[str]:
    yield f"## {escape(section.title)}"
    for block in section.blocks:
        if isinstance(block, Table):
            yield render_table(block)
        else:
            if block.title:
                yield f"### {escape(block.title)}"
            yield _text(block)


def _text(block: Text) -> str:
    if block.kind == "paragraph":
        return " ".join(map(escape, block.items))
    if block.kind == "footer":
        return f"<sub>{' '.join(map(escape, block.items))}</sub>"
    return "\n".join(f"- {escape(sentence)}" for sentence in block.items)


def render_table(table: Table) -> str:
    """Render a table with its title, caption and notes."""
    caption = f" {escape('. '.join(table.caption))}." if table.caption else ""
    rows = (map(_cell, row) for row in table.rows)
    lines = [f"**{escape(table.title)}.**{caption}", "", *_grid(table.header, table.align, rows)]
    if table.notes:
        notes = (f"<sup>{escape(mark)}</sup> {escape(sentence)}" for mark, sentence in table.notes)
        lines += ["", "<br>\n".join(notes)]
    return "\n".join(lines)


def render_texts(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render texts as a table without caption."""
    return "\n".join(_grid(header, "l" * len(header), (map(escape, row) for row in rows)))


def _grid(header: Iterable[str], align: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table whose cells are Markdown."""
    rules = ["---:" if side == "r" else ":---" for side in align]
    for line in (map(escape, header), rules, *rows):
        yield f"| {' | '.join(line)} |"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    text = f"**{text}**" if cell.bold else text
    return text + (f"<sup>{escape(','.join(cell.marks))}</sup>" if cell.marks else "")


def escape(text: str) -> str:
    """Escape text for Markdown, on one line."""
    text = printable(" ".join(text.split()))
    return re.sub(r"([\\`*_|<>~])|(?<=\])\(|&(?=#?\w+;)", lambda m: f"\\{m[0]}", text)


def _picture(picture: Picture, beside: Path) -> str:
    file = Path(os.path.relpath(picture.file, beside)).as_posix()
    alt = picture.caption.replace("[", "(").replace("]", ")")
    return f"![{escape(alt)}](<{file}>)\n\n**{escape(picture.title)}.** {escape(picture.caption)}"
