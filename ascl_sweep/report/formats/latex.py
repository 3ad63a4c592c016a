"""LaTeX for pasting into a paper: per sweep a bare tabular, a caption, methods and an appendix.

The file contains no floats. It also compiles as it is, read by `\\input` in a document that loads
booktabs, longtable and siunitx. Non-ASCII characters are written as commands.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ascl_sweep.analysis.caption import describe_provenance
from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.contracts import RunState
from ascl_sweep.report.document import opening
from ascl_sweep.report.formats.base import CommentedFormat, Target
from ascl_sweep.report.latex_text import comment, escape, in_math, prose, row_line
from ascl_sweep.report.paper_text import (
    baseline_name,
    comparisons_of,
    describe_methods,
    describe_search,
    describe_table,
    family_of,
    usual_n,
)
from ascl_sweep.report.report import Report, SweepReport
from ascl_sweep.report.sweep_tables import arms_table, means_table, paper_table
from ascl_sweep.report.tables import NONE, VERDICT_SIGNS, Cell, Number, Table

PREAMBLE = r"% Needs \usepackage{booktabs,longtable,siunitx} in the preamble (siunitx 3)."
NAME = 24  # letters of an arm's name that fit on one line of the appendix
LINE, SMALL_LINE = 60, 84  # letters per line of a page in normalsize and footnotesize


class Latex(CommentedFormat):
    name = "latex"
    suffixes = (".tex",)
    comment = ("%", "")

    def render_body(self, report: Report, target: Target) -> str:
        warning = opening(report)
        lines = [PREAMBLE, *([comment(f"warning: {warning}")] if warning else [])]
        for found in report.sweeps:
            lines += ["", *_sweep(found)]
        return "\n".join(lines) + "\n"


FORMAT = Latex()


def _sweep(found: SweepReport) -> Iterator[str]:
    yield comment(f"sweep {found.sweep.name} ({found.sweep.scale} scale)")
    done = [row for row in found.runs if row.state == RunState.DONE]
    if done:
        yield comment(describe_provenance(done))
    table = found.table
    if table is None:
        yield "% no finished runs for a table"
        return
    yield "% main table: paste it into a table environment"
    shown = means_table(table)
    yield from _main_table(table, shown)
    yield "\n% caption:"
    yield prose(describe_table(table))
    for mark, note in shown.notes:
        if mark not in VERDICT_SIGNS.values():
            yield f"$^{{{_math_mark(mark)}}}${escape(note)}{'' if note.endswith('.') else '.'}"
    yield "\n% statistical methods:"
    search = f" {describe_search(found.search)}" if found.search and found.search.trials else ""
    yield rf"\paragraph{{Statistical methods.}} {prose(describe_methods(table) + search)}"
    if any(comparison.inference.p is not None for comparison in comparisons_of(table)):
        yield "\n% appendix: all comparisons"
        yield from _appendix(table)


# ---------------------------------------------------------------- the main table


@dataclass(frozen=True)
class SNumber:
    """A number of an S column, with the superscript after it."""

    mean: str
    sd: str = ""
    after: str = ""
    bold: bool = False

    @classmethod
    def of(cls, cell: Cell, marks: Sequence[str] = ()) -> "SNumber":
        """Return a cell's number, in ASCII."""
        number = cell.number or Number(cell.text)
        mean, sd = (text.replace("−", "-") for text in (number.mean, number.sd))
        after = f"$^{{{','.join(marks)}}}$" if marks else ""
        return cls("" if mean == NONE else mean, sd, after, cell.bold)

    @property
    def in_column(self) -> str:
        if not self.mean:
            return f"{{--{self.after}}}"
        bold = r"\bfseries " if self.bold else ""
        spread = f" +- {self.sd}" if self.sd else ""
        after = f" {{{self.after}}}" if self.after else ""
        return f"{bold}{self.mean}{spread}{after}"

    @property
    def in_math(self) -> str:
        """The number outside of an S column."""
        if not self.mean:
            return f"--{self.after}"
        text = self.mean + (rf" \pm {self.sd}" if self.sd else "")
        text = rf"\mathbf{{{text}}}" if self.bold else text
        return f"${text}${self.after}"


def _main_table(table: AblationTable, shown: Table) -> Iterator[str]:
    """Yield the lines of a tabular with one mean per cell of the grid."""
    grid, usual = table.grid, usual_n(table.arms)
    first = len(shown.header) - len(grid.columns)  # columns with the row's name and costs
    numbers = {}
    for (i, j), index in grid.places.items():
        cell, n = shown.rows[i][first + j], table.arms[index].n
        marks = [*map(_math_mark, cell.marks), *([f"({n})"] if n != usual else [])]
        numbers[index] = SNumber.of(cell, marks)
    width = sum(2 + max(map(len, column)) for column in zip(*_texts(shown), strict=True))
    if width > SMALL_LINE:
        yield r"% wide: use table*, or put the tabular into \resizebox{\linewidth}{!}{...}"
    if width > LINE:
        yield r"{\footnotesize\setlength{\tabcolsep}{3pt}"
    yield rf"\begin{{tabular}}{{{'l' * first}%"
    yield f"  *{{{len(grid.columns)}}}{{{_number_column(numbers.values())}}}}}"
    yield r"\toprule"
    heads = [f"{{{escape(head)}}}" for head in grid.columns]
    yield row_line([*map(escape, shown.header[:first]), *heads])
    yield r"\midrule"
    for i, row in enumerate(shown.rows):
        cells = [escape(cell.text) for cell in row[:first]]
        places = [grid.places.get((i, j)) for j in range(len(grid.columns))]
        for place, same in groupby(places):
            cells += _cells(None if place is None else numbers[place], len(list(same)))
        yield row_line(cells)
    yield r"\bottomrule"
    yield r"\end{tabular}" + ("}" if width > LINE else "")


def _texts(shown: Table) -> Iterator[Sequence[str]]:
    yield shown.header
    for row in shown.rows:
        yield [cell.text + ",".join(cell.marks) for cell in row]


def _cells(number: SNumber | None, span: int) -> list[str]:
    """Return the cells of an arm: one that spans all columns if it does not use their key."""
    if number is None:
        return ["{}"] * span
    if span == 1:
        return [number.in_column]
    return [rf"\multicolumn{{{span}}}{{c}}{{{number.in_math}}}"]


def _math_mark(mark: str) -> str:
    return rf"\mathrm{{{mark}}}" if mark.isalpha() else escape(mark).strip("$")


def _number_column(numbers: Iterable[SNumber], plus: bool = False) -> str:
    """Return an S column that is wide enough for these numbers."""
    found = [number for number in numbers if number.mean]
    # The widest number has the most digits before the point and the most after it.
    whole = max((len(n.mean.partition(".")[0].strip("+-")) for n in found), default=1)
    part = max((len(n.mean.partition(".")[2]) for n in found), default=0)
    sign = "+" if plus else "-" if any(n.mean.startswith("-") for n in found) else ""
    spread = "(2)" if any(n.sd for n in found) else ""
    words = [f"table-format={sign}{whole}{f'.{part}' if part else ''}{spread}"]
    words += ["separate-uncertainty", "table-align-uncertainty=false"] if spread else []
    words += ["detect-weight"] if any(n.bold for n in found) else []
    words += ["retain-explicit-plus"] if plus else []
    longest = max((n.after for n in found), key=len, default="")
    if longest:
        words += ["table-align-text-after=false", f"table-space-text-post={{{longest}}}"]
    return f"S[{', '.join(words)}]"


# ---------------------------------------------------------------- the appendix

APPENDIX = {
    **{"arm": "arm", "seeds": "$n$", "mean ± SD": r"{mean $\pm$ SD}", "Δ": r"{$\Delta$}"},
    **{"interval": "interval", "p": "$p$", "verdict": "verdict"},
}
"""Columns of the long table, and their titles in the appendix."""


def _appendix(table: AblationTable) -> Iterator[str]:
    """Yield the lines of a longtable with all comparisons."""
    shown = arms_table(table)
    columns = [shown.header.index(title) for title in APPENDIX]
    rows = [[row[column] for column in columns] for row in shown.rows]
    published = paper_table(table)
    papers = {name.text: escape(value.text) for name, value, *_ in published.rows}
    long = any(len(arm.label) > NAME for arm in table.arms)
    name = r">{\raggedright\arraybackslash}p{0.24\linewidth}" if long else "l"
    yield r"{\footnotesize\setlength{\tabcolsep}{3pt}"
    yield rf"\begin{{longtable}}{{{name}r%"
    yield f"  {_number_column(SNumber.of(row[2]) for row in rows)}%"
    yield f"  {_number_column((SNumber.of(row[3]) for row in rows), plus=True)}%"
    yield f"  rrl{'r' if papers else ''}}}"
    yield rf"\caption{{{prose(_appendix_caption(table, bool(papers)))}}}\\"
    yield r"\toprule"
    yield row_line([*APPENDIX.values(), *(["paper"] if papers else [])])
    yield r"\midrule"
    yield r"\endhead"
    for arm, seeds, mean, delta, interval, p, verdict in rows:
        yield row_line(
            [
                *(escape(arm.text), escape(seeds.text)),
                *(SNumber.of(mean).in_column, SNumber.of(delta).in_column),
                *(_math(interval.text), _math(p.text), escape(verdict.text)),
                *([papers.get(arm.text, "--")] if papers else []),
            ]
        )
    yield r"\bottomrule"
    yield r"\end{longtable}}"


def _appendix_caption(table: AblationTable, paper: bool) -> str:
    family = family_of(table)
    over = f", simultaneous over {family} planned comparisons" if family > 1 else ""
    level = "" if table.design.looks or table.design.extensions else "95% "
    return (
        f"Difference Δ from {baseline_name(table)}, paired by seed, with {level}interval and p"
        f"{over}; n: finished/planned seeds, all finished ones in mean ± SD"
        f"{'; paper: published value' if paper else ''}."
    )


def _math(text: str) -> str:
    return escape(text) if text == NONE else f"${in_math(text)}$"


# ---------------------------------------------------------------- any table


def render_table(table: Table) -> str:
    """Render a table of a document as a bare tabular, with its caption and notes as text."""
    caption = ". ".join([table.title, *table.caption])
    lines = [
        rf"\begin{{tabular}}{{{table.align}}}",
        r"\toprule",
        row_line(list(map(escape, table.header))),
        r"\midrule",
        *(row_line(list(map(_cell, row))) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        "\n% caption:",
        f"{escape(caption)}.",
        *(f"{_raised(mark)}~{escape(text)}" for mark, text in table.notes),
    ]
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    text = rf"\textbf{{{text}}}" if cell.bold else text
    return text + (_raised(",".join(cell.marks)) if cell.marks else "")


def _raised(marks: str) -> str:
    return rf"\textsuperscript{{{escape(marks)}}}"
