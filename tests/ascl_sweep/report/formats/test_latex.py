"""LaTeX: what is pasted into a paper compiles, aligns and says what the table shows."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.report.document import build_document
from ascl_sweep.report.formats import latex
from ascl_sweep.report.latex_text import escape
from ascl_sweep.report.report import Report, build_report
from ascl_sweep.report.tables import Cell, Table
from tests.stores import (
    ASCL,
    MOCO,
    NEIGHBOURS,
    RELABEL,
    arm,
    in_order,
    run,
    sweep,
    table,
    write,
)


def has_siunitx() -> bool:
    if not (shutil.which("pdflatex") and shutil.which("kpsewhich")):
        return False
    return subprocess.run(["kpsewhich", "siunitx.sty"], capture_output=True).returncode == 0


needs_latex = pytest.mark.skipif(
    not has_siunitx(), reason="pdflatex with siunitx (texlive-science) is not installed"
)


@pytest.fixture(scope="module")
def tex(report: Report) -> str:
    return latex.FORMAT.render(report)


def part(tex: str, sweep: str) -> str:
    """The lines of one sweep."""
    return tex.split(f"% sweep {sweep} ")[1].split("\n% sweep ")[0]


def of_arms(folder: Path, *arms: object, columns: str | None = None) -> str:
    rows = [row for each in arms for row in each]  # type: ignore[attr-defined]
    asked = sweep("it", (RELABEL,), table=table(RELABEL, columns=columns, baseline=MOCO))
    return latex.FORMAT.render(build_report(write(folder, [asked], in_order(rows))))


# ---------------------------------------------------------------- the main table


def test_there_are_no_floats(tex: str) -> None:
    assert r"\begin{table}" not in tex and r"\label" not in tex
    assert tex.count(r"\begin{tabular}") == 5


def test_an_arm_that_does_not_use_the_columns_key_spans_them(tex: str) -> None:
    assert r"MoCo & \multicolumn{2}{c}{$88.51 \pm 0.11$} \\" in part(tex, "neighbours")


def test_decimals_follow_the_uncertainty(tex: str) -> None:
    """Two significant digits of the SD; the mean has the same decimals."""
    text = part(tex, "neighbours")
    assert "Hard & 88.60 +- 0.10 & 89.4 +- 1.4" in text
    assert r"Hard, $K=5$ & 3/3 & 89.4 +- 1.4 & +0.9 & $[-5.6, +7.3]$" in text


def test_a_percentage_has_at_most_two_decimals(tmp_path: Path) -> None:
    """A small SD of three seeds does not show that the mean is known to 0.001 points."""
    text = of_arms(tmp_path, arm("it", MOCO, [88.40, 88.41, 88.42]), arm("it", ASCL, [90, 91, 90]))
    assert "MoCo & 88.41 +- 0.01" in text and r"ASCL & \bfseries 90.33 +- 0.58" in text


def test_a_table_that_is_wider_than_a_page_says_so(tmp_path: Path) -> None:
    ours = [
        row for k in range(1, 10) for row in arm("it", {**ASCL, NEIGHBOURS: k}, [90.0, 91.0, 90.5])
    ]
    text = of_arms(tmp_path, arm("it", MOCO, [88.0, 88.1, 88.3]), ours, columns=NEIGHBOURS)
    assert r"% wide: use table*" in text and r"\multicolumn{9}{c}" in text


def test_marks_show_verdicts_and_other_numbers_of_seeds(tex: str) -> None:
    text = part(tex, "neighbours")
    assert r"\bfseries 90.01 +- 0.10 {$^{\dagger}$}" in text
    assert r"90.50 +- 0.13 {$^{*,\mathrm{a},\mathrm{b},\mathrm{c},(2)}$}" in text
    assert r"41.40 +- 0.62 {$^{\ddagger}$}" in part(tex, "tau_prime")


def test_equal_numbers_of_seeds_are_named_once(tex: str) -> None:
    text = part(tex, "tau_prime").split("% statistical methods")[0]
    assert text.count("$n=3$") == 1 and "(3)" not in text and "superscript" not in text


def test_an_equivalent_arm_has_its_mark(tmp_path: Path) -> None:
    moco, ours = [88.4, 88.6, 88.5, 88.7, 88.5], [88.41, 88.62, 88.5, 88.69, 88.52]
    text = of_arms(tmp_path, arm("it", MOCO, moco), arm("it", ASCL, ours))
    assert r"{$^{\approx}$}" in text
    assert r"Compared with MoCo, $\approx$: equivalent within $\pm$0.5 points" in text


def test_a_one_row_table_with_many_columns_is_set_smaller(tex: str) -> None:
    assert r"{\footnotesize" in part(tex, "tau_prime").split(r"\begin{tabular}")[0]
    assert r"{\footnotesize" not in part(tex, "neighbours").split(r"\begin{tabular}")[0]


def test_a_symbol_and_its_value_are_in_math_mode(tex: str) -> None:
    assert r"method & {$K=1$} & {$K=5$} \\" in tex
    assert r"{$\tau'=0.05$}" in tex


def test_a_cell_without_runs_is_empty(tmp_path: Path) -> None:
    ours = {RELABEL: "ascl", NEIGHBOURS: 1}, {RELABEL: "hard", NEIGHBOURS: 5}
    rows = [arm("it", changes, [90.0, 91.0]) for changes in ours]
    text = of_arms(tmp_path, *rows, columns=NEIGHBOURS)
    assert re.search(r"ASCL & 90\.50 \+- 0\.71 & \{\} \\", text)


# ---------------------------------------------------------------- text around it


def test_the_caption_has_at_most_two_sentences(tex: str) -> None:
    for caption in re.findall(r"(?m)^% caption:\n(.*)$", tex):
        assert len(re.findall(r"\.(?= |$)", caption)) <= 2
        assert caption[0].isupper()


def test_provenance_is_in_comments_only(tex: str) -> None:
    shown = "\n".join(line for line in tex.splitlines() if not line.startswith("%"))
    assert "% Software and hardware: commit 0123456, fedcba9, ascl-sweep 0.1.0, torch 2.14.0" in tex
    assert not re.search("torch|A100|sha256|ascl-sweep", shown)


def test_the_appendix_has_every_arm(tex: str, report: Report) -> None:
    for found in report.sweeps:
        text = part(tex, found.sweep.name)
        assert found.table is not None
        if r"\begin{longtable}" in text:
            rows = text.split(r"\endhead")[1].count(r" \\")
            assert rows == len(found.table.arms)
    assert tex.count(r"\begin{longtable}") == 3, "where there are tests"


def test_unfinished_sweeps_are_comments(tmp_path: Path) -> None:
    text = latex.FORMAT.render(build_report(write(tmp_path, [sweep("it")], [])))
    assert all(line.startswith("%") or not line for line in text.splitlines())


# ---------------------------------------------------------------- escaping


@given(st.text(min_size=1))
def test_no_text_breaks_a_row(text: str) -> None:
    sheet = Table("it", "it", ("a", "b"), "lr", ((Cell(text), Cell(text, True, ("a",))),))
    row = latex.render_table(sheet).split("\\midrule\n")[1].split("\n")[0]
    assert row.endswith(r" \\") and len(re.findall(r"(?<!\\)&", row)) == 1


def test_a_document_table_is_a_bare_tabular(report: Report) -> None:
    """The HTML page copies tables in this form."""
    for section in build_document(report):
        for block in section.blocks:
            if isinstance(block, Table):
                text = latex.render_table(block)
                assert text.startswith(r"\begin{tabular}") and r"\begin{table}" not in text
                assert all(escape(head) in text for head in block.header)


@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\x0b"])
def test_a_sweeps_name_from_another_store_stays_in_comments(tmp_path: Path, end: str) -> None:
    name = f"it{end}\\input{{/etc/passwd}}{end}\x1b[2J"
    rows = [replace(row, sweeps=(name,)) for row in arm("it", ASCL, [90.0, 91.0])]
    made = build_report(write(tmp_path, [replace(sweep("it"), name=name)], in_order(rows)))
    text = latex.FORMAT.render(made)
    assert not any(r"\input" in line for line in text.splitlines() if line[:1] != "%")
    assert "\x1b" not in text


def test_software_from_another_store_stays_in_comments(tmp_path: Path) -> None:
    odd = {"device": "x\n\\input{/etc/passwd}", "torch": "1\r\\input{a}"}
    text = of_arms(tmp_path, arm("it", ASCL, [90.0, 91.0], **odd))
    assert not any(r"\input" in line for line in text.splitlines() if line[:1] != "%")


# ---------------------------------------------------------------- compiling


def hostile(folder: Path) -> Report:
    """Names with special characters of LaTeX and Markdown, and extreme numbers."""
    odd = ["50% & more_of #1", r"\input{x}", "$x^2$ ~ {a}", "[brackets] *stars*", "a|b `c` <d>",
           "“τ'” – − ± Δ × é ł 你 K = 3", "a very long word " * 8]  # fmt: skip
    rows = [
        row for name in odd for row in arm("od--d", {RELABEL: "x", "method.name": name}, [1, 2, 4])
    ]
    rows += arm("od--d", {RELABEL: "x", "method.name": "equal"}, [0.001, 0.001, 0.001])
    rows += [run("od--d", {RELABEL: "x", "method.name": "none"}, 0, state="failed")]
    asked = sweep("od--d", ("method.name",), table=table("method.name", baseline={
        "method.name": odd[0]}))  # fmt: skip
    return build_report(write(folder, [asked], in_order(rows)))


@pytest.mark.slow
@needs_latex
@pytest.mark.parametrize("which", ["example", "hostile", "copies"])
def test_latex_compiles(report: Report, which: str, tmp_path: Path) -> None:
    made = hostile(tmp_path / "store") if which == "hostile" else report
    body = latex.FORMAT.render(made)
    if which == "copies":
        blocks = [block for section in build_document(report) for block in section.blocks]
        body = "\n\n".join(latex.render_table(b) for b in blocks if isinstance(b, Table))
    (tmp_path / "report.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs,longtable,siunitx}\begin{document}"
        f"\n{body}\n\\end{{document}}", encoding="utf-8",
    )  # fmt: skip
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "siunitx Warning" not in done.stdout
    if which == "example":
        wide = [float(points) for points in re.findall(r"\((\d+\.\d+)pt too wide", done.stdout)]
        assert max(wide, default=0) < 10, "no table exceeds the page width"


def test_where_seeds_are_missing_the_mean_agrees_with_the_difference(tmp_path: Path) -> None:
    """As on the page: the baseline's mean plus Δ, with a mark."""
    moco, ours = [88.0, 88.2, 88.4, 84.0], [90.0, 90.3, 90.4]
    text = of_arms(tmp_path, arm("it", MOCO, moco), arm("it", ASCL, ours))
    main = text.split("% caption:")[0]
    assert "89.18" in main and "*" in main and "90.23" not in main


def test_an_interval_never_rounds_to_the_zero_that_it_excludes(tmp_path: Path) -> None:
    moco, ours = [80.0, 81.0, 82.0, 83.0], [83.31, 86.93, 84.2, 91.13]
    text = of_arms(tmp_path, arm("it", MOCO, moco), arm("it", ASCL, ours))
    found = re.findall(r"\$\[([+-][\d.]+), ([+-][\d.]+)\]\$", text)
    assert found and not any(float(end) == 0 for ends in found for end in ends)
