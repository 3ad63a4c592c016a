"""A report for a terminal: as wide as it is, and no wider."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ascl_sweep.report.blocks import Cell, Section, Sheet, parts
from ascl_sweep.report.document import document_of, opening
from ascl_sweep.report.report import Report

GAP = 2
SHARE = 3  # a row's name takes one in so many parts of the width before it is folded
NARROW = 20
WORDS = 5  # of a name between its commas; one with more is a sentence


def term(report: Report) -> Iterator[RenderableType]:
    """What to print, part by part."""
    first = opening(report)
    if first:
        yield Text(first, style="yellow")
    for section in document_of(report):
        yield from _section(section)


def _section(section: Section) -> Iterator[RenderableType]:
    yield Text(section.title, style="bold underline")
    for block in section.blocks:
        yield ""
        if isinstance(block, Sheet):
            yield Text(block.title, style="bold")
            yield Fitting(block)
            if block.caption:
                yield Text(f"{'; '.join(block.caption)}.", style="dim")
            for mark, sentence in block.notes:
                yield Text(f"[{mark}] {sentence}", style="dim")
        else:
            if block.title:
                yield Text(block.title, style="bold")
            yield from map(Text, block.items)
    yield ""


@dataclass(frozen=True)
class Fitting:
    """A sheet in as many parts as it takes, each with the rows' names, for none to be wrapped."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Padding]:
        sheet, width = self.sheet, options.max_width
        names = [_folded(_text(row[0]), max(NARROW, width // SHARE)) for row in sheet.rows]
        widths = [
            max([_narrowest(title), *(cell_len(_text(row[i])) for row in sheet.rows)])
            for i, title in enumerate(sheet.header)
        ]
        first = [line for name in names for line in name.splitlines()]
        widths[0] = max([_narrowest(sheet.header[0]), *map(cell_len, first)])
        for columns in parts(widths, width, GAP):
            table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
            for i in (0, *columns):
                side = "right" if sheet.align[i] == "r" else "left"
                title = "\n".join(_wrapped(sheet.header[i], widths[i]))
                table.add_column(Text(title), justify=side)  # type: ignore[arg-type]
            for name, row in zip(names, sheet.rows, strict=True):
                table.add_row(Text(name), *(_styled(row[i]) for i in columns))
            yield Padding(table, (0, 0, 1, 0))


def _folded(name: str, width: int) -> str:
    """A row's name in lines that end after a comma: τ' = 0.05 stays together. A sentence is
    folded between any two words."""
    if any(part.count(" ") >= WORDS for part in name.split(", ")):
        return "\n".join(_wrapped(name, width))
    lines = [""]
    for part in name.split(", "):
        joined = f"{lines[-1]}, {part}" if lines[-1] else part
        if lines[-1] and cell_len(joined) > width - 1:
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] = joined
    return "\n".join(lines)


def _narrowest(title: str) -> int:
    """The width at which a title takes no more than two lines."""
    tried = (_wrapped(title, width) for width in range(1, len(title) + 1))
    return max(map(cell_len, next(lines for lines in tried if len(lines) <= 2)))


def _wrapped(title: str, width: int) -> list[str]:
    return textwrap.wrap(title, width, break_long_words=False, break_on_hyphens=False)


def _text(cell: Cell) -> str:
    return cell.text + (f" [{','.join(cell.marks)}]" if cell.marks else "")


def _styled(cell: Cell) -> Text:
    return Text(_text(cell), style="bold" if cell.bold else "")
