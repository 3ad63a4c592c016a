"""Laws of errors: all issues at once, with file and line."""

from ascl.errors import ConfigError, Issue, unknown_name


def test_issues_are_sorted_by_line_and_a_missing_key_points_at_its_parent() -> None:
    config_error = ConfigError([Issue("b.x", "must be given"), Issue("a", "wrong")])
    located = config_error.at("f.yaml", {"a": 1, "b": 4})
    assert str(located) == "f.yaml:1: a: wrong\nf.yaml:4: b.x: must be given"


def test_an_unknown_name_lists_the_known_ones() -> None:
    assert unknown_name("method", "mocco", ["moco", "byol"]) == (
        "no method named 'mocco' (did you mean 'moco'?); there are: byol, moco"
    )
