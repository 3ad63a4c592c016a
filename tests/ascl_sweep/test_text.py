"""Text formatting for messages."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.text import one_line, printable


def test_an_error_is_always_one_line() -> None:
    assert one_line(ValueError("\n first \n\n last\n")) == "first"
    assert one_line(ValueError("\n first \n\n last\n"), last=True) == "last"
    assert one_line(ValueError(" ")) == "ValueError"


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b[31;1m", "\x1b[2J", "\x1b[?25l", "\x9b0m",  # color, clear, hide the cursor
        "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x9d52;c;Zm9v\x9c",  # title, link, clipboard
        "\x1bP1$r\x1b\\", "\x1bc", "\x1b(0", "\x1b", "\x1b[", "\x1b]0;cut off",
        "\b", "\r", "\x00", "\x7f", "\x85", "\u202e", "\u2028",
    ],
)  # fmt: skip
def test_escape_sequences_are_removed(sequence: str) -> None:
    assert printable(f"a{sequence}\tb\nc").replace("0;cut off", "") == "a\tb\nc"


@given(st.text())
def test_printable_text_has_no_control_character(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    assert all(c in "\t\n" or unicodedata.category(c) != "Cc" for c in shown)


@given(st.text(st.characters(exclude_categories=("C", "Zl", "Zp"))))
def test_other_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text
