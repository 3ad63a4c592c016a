"""A report in LaTeX: each sheet a float that can be pasted into a paper.

Plain pdflatex with booktabs: whatever is not ASCII is written as a command.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from ascl_sweep.report.blocks import Cell, Section, Sheet, parts

PREAMBLE = r"% needs \usepackage{booktabs} in the preamble"
NAME = 30  # letters of a row's name that are set on one line
RAGGED = r"\raggedright "
LINE, SMALL_LINE = 80, 98  # letters of a line in footnotesize and in scriptsize
GAP = 2
_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "-": "-{}",  # where another follows, with which it would become a dash
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "''",
    "“": "``",
    "”": "''",
    "’": "'",
    "…": r"\dots{}",
    "–": "--",
    "—": "---",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\to$",
    "τ'": r"$\tau'$",
    "τ": r"$\tau$",
    "Δ": r"$\Delta$",
    "σ": r"$\sigma$",
    "√": r"$\surd$",
}
_LONGEST_FIRST = sorted(_SIGNS.keys() - {"-"}, key=len, reverse=True)
_SPECIAL = re.compile("|".join(["-(?=-)", *map(re.escape, _LONGEST_FIRST), "[^ -~]"]))


def latex_body(first: str | None, sections: Sequence[Section]) -> str:
    """Everything below the first line."""
    parts = [PREAMBLE, *([f"{escape(first)}\\par"] if first else [])]
    for section in sections:
        parts.append(f"\n% sweep {section.sweep}\n\\paragraph{{{escape(section.title)}}}")
        for block in section.blocks:
            if isinstance(block, Sheet):
                parts.append(latex_sheet(block))
            else:
                parts += [f"\\paragraph{{{escape(block.title)}}}"] if block.title else []
                parts += [f"{escape(sentence)}\\par" for sentence in block.items]
    return "\n".join(parts) + "\n"


def latex_sheet(sheet: Sheet) -> str:
    """One sheet as a float, with its caption above and its notes below."""
    return "\n".join(_float(sheet))


def _float(sheet: Sheet) -> Iterator[str]:
    caption = ". ".join([sheet.title, "; ".join(sheet.caption)] if sheet.caption else [sheet.title])
    yield f"% table {sheet.title}"
    yield r"\begin{table}[htbp]"
    widths = _widths(sheet)
    small = LINE < sum(widths) + GAP * (len(widths) - 1) <= SMALL_LINE
    size, space = ("scriptsize", 2.5) if small else ("footnotesize", 4)
    yield rf"\centering\{size}\setlength{{\tabcolsep}}{{{space}pt}}"
    yield rf"\caption{{{escape(caption)}.}}"
    yield rf"\label{{tab:{re.sub(r'[^A-Za-z0-9]+', '-', sheet.name)}}}\smallskip"
    # What is wider still is set in parts, one below the other.
    for i, columns in enumerate(parts(widths, SMALL_LINE if small else LINE, GAP)):
        if i:
            yield r"\par\medskip"
        yield from _tabular(sheet, [0, *columns])
    if sheet.notes:
        yield r"\par\smallskip\raggedright"
        for mark, sentence in sheet.notes:
            yield rf"\textsuperscript{{{mark}}}~{escape(sentence)}\par"
    yield r"\end{table}"


def _tabular(sheet: Sheet, columns: Sequence[int]) -> Iterator[str]:
    align = "".join(sheet.align[i] for i in columns)
    folded = any(len(row[0].text) > NAME for row in sheet.rows)
    if folded:
        align = r"p{0.33\linewidth}" + align[1:]
    yield rf"\begin{{tabular}}{{{align}}}"
    yield r"\toprule"
    yield _line([Cell(sheet.header[i]) for i in columns])
    yield r"\midrule"
    for row in sheet.rows:
        yield (RAGGED if folded else "") + _line([row[i] for i in columns])
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _widths(sheet: Sheet) -> list[int]:
    """Letters in each column, at most; a long name of a row is folded."""
    rows = [[len(cell.text) + len(cell.marks) for cell in row] for row in sheet.rows]
    columns = zip(*[list(map(len, sheet.header)), *rows], strict=True)
    first, *others = (max(column) for column in columns)
    return [min(first, NAME), *others]


def _line(cells: Sequence[Cell]) -> str:
    # In brackets, or a star, what follows the end of the line above is not text to LaTeX.
    text = re.sub(r"^[*\[]", r"{\g<0>}", " & ".join(map(_cell, cells)))
    return rf"{text} \\"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    text = rf"\textbf{{{text}}}" if cell.bold else text
    return text + (rf"\textsuperscript{{{','.join(cell.marks)}}}" if cell.marks else "")


def escape(text: str) -> str:
    """Text as LaTeX sets it."""
    text = _SPECIAL.sub(lambda found: _sign(found[0]), text)
    return text.replace(" = ", "~=~")  # a key and its value stay on one line


def _sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isspace():
        return " "
    plain = unicodedata.normalize("NFKD", sign)[0]  # é is e
    name = unicodedata.name(sign, f"U+{ord(sign):04X}").lower()
    return plain if plain.isascii() and plain.isalnum() else rf"\texttt{{{name}}}"
