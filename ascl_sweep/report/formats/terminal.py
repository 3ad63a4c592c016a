"""Text for a terminal; tables fit its width."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from ascl_sweep.report.document import Section, build_document, opening
from ascl_sweep.report.formats.base import DEFAULT_TARGET, Format, Target
from ascl_sweep.report.provenance import StoredReport
from ascl_sweep.report.report import Report
from ascl_sweep.report.tables import Cell, Table, split_columns
from ascl_sweep.text import printable

GAP = 2
SHARE = 3  # row names longer than 1/SHARE of the width are wrapped
NARROW = 20
WORDS = 5  # a row name with more words between commas is treated as a sentence


class Terminal(Format):
    name = "term"
    suffixes = ()

    def render(self, report: Report, target: Target = DEFAULT_TARGET) -> str:
        """Render a report for stdout, with colors if the terminal supports them."""
        console = Console(highlight=False)
        with console.capture() as captured:
            for part in render_parts(report):
                console.print(part)
        return captured.get()

    def read(self, text: str) -> StoredReport | None:
        return None


FORMAT = Terminal()


def render_parts(report: Report) -> Iterator[RenderableType]:
    """Render a report part by part."""
    first = opening(report)
    if first:
        yield _rich(first, style="yellow")
    for section in build_document(report):
        yield from _section(section)


def _section(section: Section) -> Iterator[RenderableType]:
    yield _rich(section.title, style="bold underline")
    for block in section.blocks:
        yield ""
        if isinstance(block, Table):
            yield _rich(block.title, style="bold")
            yield Fitting(block)
            if block.caption:
                yield _rich(f"{'. '.join(block.caption)}.", style="dim")
            for mark, sentence in block.notes:
                yield _rich(f"{_mark(mark)} {sentence}", style="dim")
        else:
            if block.title:
                yield _rich(block.title, style="bold")
            style = "dim" if block.kind == "footer" else ""
            items = block.items if block.kind == "list" else (" ".join(block.items),)
            yield from (_rich(sentence, style=style) for sentence in items)
    yield ""


@dataclass(frozen=True)
class Fitting:
    """A table split into parts that fit the terminal, each with the row names."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Padding]:
        table, width = self.table, options.max_width
        names = [_wrap_name(_text(row[0]), max(NARROW, width // SHARE)) for row in table.rows]
        widths = [
            max([_narrowest(title), *(cell_len(_text(row[i])) for row in table.rows)])
            for i, title in enumerate(table.header)
        ]
        first = [line for name in names for line in name.splitlines()]
        widths[0] = max([_narrowest(table.header[0]), *map(cell_len, first)])
        for columns in split_columns(widths, width, GAP):
            grid = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
            for i in (0, *columns):
                side = "right" if table.align[i] == "r" else "left"
                title = "\n".join(_wrapped(table.header[i], widths[i]))
                grid.add_column(_rich(title), justify=side)  # type: ignore[arg-type]
            for name, row in zip(names, table.rows, strict=True):
                grid.add_row(_rich(name), *(_styled(row[i]) for i in columns))
            yield Padding(grid, (0, 0, 1, 0))


def _wrap_name(name: str, width: int) -> str:
    """Wrap a row's name after commas, so that τ' = 0.05 stays together.

    A sentence is wrapped between any two words.
    """
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
    """Return the smallest width at which a title fits in two lines."""
    tried = (_wrapped(title, width) for width in range(1, len(title) + 1))
    return max(map(cell_len, next(lines for lines in tried if len(lines) <= 2)))


def _wrapped(title: str, width: int) -> list[str]:
    return textwrap.wrap(title, width, break_long_words=False, break_on_hyphens=False)


def _text(cell: Cell) -> str:
    signs = "".join(mark for mark in cell.marks if not mark.isalpha())
    letters = [mark for mark in cell.marks if mark.isalpha()]
    return cell.text + signs + (f" {_mark(','.join(letters))}" if letters else "")


def _mark(mark: str) -> str:
    return f"[{mark}]" if mark[0].isalpha() else mark


def _rich(text: str, style: str = "") -> RichText:
    """Return text of the store without control characters."""
    return RichText(printable(text), style=style)


def _styled(cell: Cell) -> RichText:
    return _rich(_text(cell), style="bold" if cell.bold else "dim" if cell.muted else "")
