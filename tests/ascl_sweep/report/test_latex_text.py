"""Any text is safe in LaTeX."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.report.latex_text import comment, escape, in_math, prose


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        ("τ' = 0.05", r"$\tau'=0.05$"),
        ("ASCL, K = 10", "ASCL, $K=10$"),
        ("lr = 0.06", "lr~=~0.06"),
        ("m = 1e-05", r"$m=1 \times 10^{-5}$"),
        ("K = 1.", "$K=1$."),
        ("K = 1.5b", "K~=~1.5b"),
        ("90.00 ± 0.12", r"90.00 $\pm$ 0.12"),
        ("50% of a_b & {c} #1 $2", r"50\% of a\_b \& \{c\} \#1 \$2"),
        ("a\\b^c~d", r"a\textbackslash{}b\textasciicircum{}c\textasciitilde{}d"),
        ("– −1 “x” a--b", "-- $-$1 ``x'' a-{}-b"),
        ("é Šidák ł 你\t.", r"\'{e} \v{S}id\'{a}k \texttt{latin small letter l with stroke} "
         r"\texttt{cjk unified ideograph-4f60} ."),
    ],
)  # fmt: skip
def test_signs_are_written_as_latex_commands(text: str, tex: str) -> None:
    assert escape(text) == tex


@given(st.text())
def test_escaped_text_is_ascii_on_one_line_and_closes_math(text: str) -> None:
    tex = escape(text)
    assert tex.isascii() and "\n" not in tex and "\r" not in tex
    assert len(re.findall(r"(?<!\\)\$", tex)) % 2 == 0, "math mode is closed"
    assert not re.search(r"(?<!\\)[%#&]", tex)


@given(st.text())
def test_a_comment_is_one_line(text: str) -> None:
    assert len(comment(text).splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "tex"),
    [("0.05", "0.05"), ("1.2e−5", r"1.2 \times 10^{-5}"), ("1e+20", r"1 \times 10^{20}")],
)
def test_powers_of_ten_are_written_out(number: str, tex: str) -> None:
    assert in_math(number) == tex


def test_variables_in_sentences_are_in_math_mode() -> None:
    text = prose("p-values over n = 3 seeds; n: pairs, with an é and Šidák.")
    assert text == r"$p$-values over $n=3$ seeds; $n$: pairs, with an \'{e} and \v{S}id\'{a}k."
