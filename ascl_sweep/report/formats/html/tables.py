"""HTML tables for the page and for notebooks."""

import json
import re
from collections.abc import Iterable, Iterator
from html import escape

from ascl_sweep.report.document import Section, Text, build_document, opening
from ascl_sweep.report.formats import latex, markdown
from ascl_sweep.report.report import Report
from ascl_sweep.report.tables import Cell, Table

FEW_COLUMNS = 4  # a table with more columns has nothing beside it
SHORT = 28  # row names up to this length stay on one line


def render_notebook(report: Report) -> str:
    """Render the tables of a report as HTML without styles and scripts."""
    parts = [f"<p>{escape_text(first)}</p>" if (first := opening(report)) else ""]
    for section in build_document(report):
        parts.append(f"<h3>{escape_text(section.title)}</h3>")
        for block in section.blocks:
            if isinstance(block, Text):
                parts += [f"<p>{escape_text(' '.join((block.title, *block.items)).strip())}</p>"]
            else:
                notes = "; ".join(f"[{mark}] {sentence}" for mark, sentence in block.notes)
                parts.append(
                    f"<table><caption>{escape_text(block.title)}</caption>{_grid(block)}</table>"
                )
                parts.append(f"<p><small>{escape_text(notes)}</small></p>" if notes else "")
    return "\n".join(filter(None, parts))


def escape_text(text: str) -> str:
    """Escape text for HTML and its attributes; all text from a store must pass through here."""
    return escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\ufffd", text))


def script_json(value: object) -> str:
    """Serialize a value for a script element; numbers must be finite because JSON has no NaN."""
    return escape_script(
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    )


def escape_script(json_text: str) -> str:
    """Escape `<`, so that JSON text cannot end its script element."""
    return json_text.replace("<", "\\u003c")


def render_cells(tag: str, attributes: Iterable[str], texts: Iterable[str]) -> str:
    both = zip(attributes, texts, strict=True)
    return "".join(f"<{tag} {attribute}>{escape_text(text)}</{tag}>" for attribute, text in both)


def render_blocks(section: Section, beside: str = "") -> Iterator[str]:
    """Render the blocks of a section.

    Args:
        section: The section.
        beside: HTML to show beside its first table, or below a wide one.
    """
    for block in section.blocks:
        if isinstance(block, Text):
            yield from [f"<h3>{escape_text(block.title)}</h3>"] if block.title else []
            kind = {"list": "said", "paragraph": "said", "footer": "provenance"}[block.kind]
            yield from (
                f'<p class="{kind}">{escape_text(sentence)}</p>' for sentence in _paragraphs(block)
            )
        else:
            table = _table(block, section.sweep)
            wide = " stacked" if len(block.header) > FEW_COLUMNS else ""
            yield f'<div class="beside{wide}">{table}{beside}</div>' if beside else table
            beside = ""


def _paragraphs(block: Text) -> tuple[str, ...]:
    """Return the sentences; those of a paragraph or footer are one paragraph."""
    return block.items if block.kind == "list" else (" ".join(block.items),)


def _table(table: Table, sweep: str) -> str:
    """Render a table with caption, notes and its LaTeX and Markdown sources."""
    title = escape_text(table.title.removeprefix(f"{sweep}: "))
    notes = "".join(
        f"<li><sup>{escape_text(mark)}</sup> {escape_text(sentence)}</li>"
        for mark, sentence in table.notes
    )
    short = "short" if all(len(row[0].text) <= SHORT for row in table.rows) else ""
    copies = {"latex": latex.render_table(table), "markdown": markdown.render_table(table)}
    return (
        f'<div class="table" id="table-{escape_text(table.name)}">'
        f'<div class="scroll" role="group" aria-label="{title}" tabindex="0">'
        f'<table class="{short}">'
        f"<caption><span>{title}</span></caption>{_grid(table)}</table></div>"
        + (
            f'<p class="caption">{escape_text(". ".join(table.caption))}.</p>'
            if table.caption
            else ""
        )
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + '<p class="copying">Copy as <button type="button" data-copy="latex">LaTeX</button> '
        '<button type="button" data-copy="markdown">Markdown</button></p>'
        f'<script type="application/json" class="copies">{script_json(copies)}</script></div>'
    )


def _grid(table: Table) -> str:
    numbers = ["number" if side == "r" else "" for side in table.align]
    head = render_cells("th", [f'scope="col" class="{kind}"' for kind in numbers], table.header)
    rows = []
    for first, *rest in table.rows:
        cells = [f'<th scope="row" class="{numbers[0]}">{_cell(first)}</th>']
        cells += [
            f'<td class="{kind}{" undecided" if cell.muted else ""}">{_cell(cell)}</td>'
            for kind, cell in zip(numbers[1:], rest, strict=True)
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"


def _cell(cell: Cell) -> str:
    marks = f"<sup>{escape_text(','.join(cell.marks))}</sup>" if cell.marks else ""
    text = f"<strong>{escape_text(cell.text)}</strong>" if cell.bold else escape_text(cell.text)
    return text + marks
