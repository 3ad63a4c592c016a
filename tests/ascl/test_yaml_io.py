"""Laws of reading YAML: numbers, lines, and never a traceback."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl.errors import ConfigError
from ascl.yaml_io import parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("1E5", 1e5), ("-2e3", -2e3), (".5", 0.5), ("1.", 1.0), ("12", 12)]
    + [
        ("1.5e-3", 1.5e-3),
        ("e3", "e3"),
        ("1e", "1e"),
        ("0.1.2", "0.1.2"),
        ("1:30", "1:30"),
        ("010", "010"),
    ],
)
def test_numbers_are_numbers(text: str, value: object) -> None:
    assert parse_yaml(text)[0] == value


def test_every_key_knows_its_line() -> None:
    _, lines = parse_yaml("a: 1\nb:\n  c: 2\n  d: [x,\n    y]\n")
    assert lines == {"a": 1, "b": 2, "b.c": 3, "b.d": 4, "b.d.0": 4, "b.d.1": 5}


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(ConfigError, match=r"b\.c: given twice, first on line 2") as caught:
        parse_yaml("b:\n  c: 1\n  c: 2\n")
    assert caught.value.issues[0].line == 3


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "a: b: c",
        "\t- x",
        "*nowhere",
        "!!python/name:os.system x",
        "!!bool abc",
        "!!timestamp abc",
    ],
)
def test_text_that_is_not_plain_yaml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not YAML"):
        parse_yaml(text)


@given(st.text(max_size=60) | st.text("ab:-[]{}&*!|>'\"#%@ \n\t0.e", max_size=40))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    try:
        parse_yaml(text)
    except ConfigError as config_error:
        assert config_error.issues


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse_yaml("[" * 5000 + "]" * 5000)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: cannot be read: No such file"):
        read_yaml(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml: cannot be read: not UTF-8"):
        read_yaml(tmp_path / "binary.yaml")
