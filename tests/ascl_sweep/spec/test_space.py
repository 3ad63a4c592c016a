"""Spaces: the listed and excluded cells, their order, and the corner cells of a search."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ascl.config import flat, nested
from ascl_sweep.spec.domains import Cell, Domain, canonical, corner_cells, in_order
from ascl_sweep.spec.space import Space

KEYS = ("optim.lr", "epochs", "method.momentum", "data.name")
values = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)
axes = st.dictionaries(st.sampled_from(KEYS), values, min_size=1)
flat_spaces = st.one_of(
    axes.map(lambda a: {"grid": a}),
    axes.map(lambda a: {"one_factor": a}),
    axes.map(lambda a: {"zip": {k: (v * 4)[:4] for k, v in a.items()}}),
    axes.map(lambda a: {"leave_one_out": {f"no {k}": {k: v[0]} for k, v in a.items()}}),
)
spaces = flat_spaces | st.lists(flat_spaces, min_size=1, max_size=3).map(lambda s: {"union": s})


def cells(space: dict[str, Any], base: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [dict(cell.changes) for cell in Space.model_validate(space).cells(base or {})]


@given(axes)
def test_a_grid_has_the_product_of_its_values_and_its_first_key_varies_slowest(
    axes: dict[str, list[int]],
) -> None:
    found = cells({"grid": axes})
    assert len(found) == math.prod(map(len, axes.values()))
    places = [tuple(axes[key].index(cell[key]) for key in axes) for cell in found]
    assert all(a < b for a, b in pairwise(places))


def test_zip_goes_row_by_row() -> None:
    assert cells({"zip": {"a": [1, 2], "b": ["x", "x"]}}) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "x"},
    ]


def test_one_factor_has_the_base_once_and_then_each_key_alone() -> None:
    assert cells({"one_factor": {"a": [1, 2], "b": [3]}}) == [{}, {"a": 1}, {"a": 2}, {"b": 3}]


def test_leave_one_out_lists_the_full_method_first_and_names_each_ablation() -> None:
    space = Space.model_validate(
        {"leave_one_out": {"soft labels": {"a": "hard"}, "bank": {"b": 0, "c": 1}}}
    )
    found = [(cell.name, dict(cell.changes)) for cell in space.cells({})]
    assert found == [("", {}), ("soft labels", {"a": "hard"}), ("bank", {"b": 0, "c": 1})]


def test_no_space_is_the_base_alone() -> None:
    assert cells({}) == [{}]


@given(spaces)
def test_a_count_is_what_is_listed(space: dict[str, Any]) -> None:
    assert Space.model_validate(space).form.count() == len(cells(space))


@given(st.lists(flat_spaces, min_size=1, max_size=3))
def test_a_union_is_its_spaces_one_after_the_other(parts: list[dict[str, Any]]) -> None:
    assert cells({"union": parts}) == [cell for part in parts for cell in cells(part)]


@given(spaces, st.sampled_from(KEYS), st.integers(0, 9))
def test_exclude_takes_out_what_it_matches_and_nothing_else(
    space: dict[str, Any], key: str, value: int
) -> None:
    base = dict.fromkeys(KEYS, 0)
    left = cells({**space, "exclude": [{key: value}]}, base)
    assert left == [cell for cell in cells(space) if cell.get(key, 0) != value]


def test_exclude_matches_all_of_its_keys_and_any_of_its_values() -> None:
    space = {"grid": {"a": [1, 2], "b": [1, 2, 3]}, "exclude": [{"a": 2, "b": [1, 3]}]}
    assert cells(space) == [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 2, "b": 2}]


@given(spaces)
def test_the_same_space_lists_the_same_cells(space: dict[str, Any]) -> None:
    assert cells(space) == cells(space)


@given(spaces)
def test_every_changed_key_has_its_axis(space: dict[str, Any]) -> None:
    read = Space.model_validate(space)
    known = {(axis.key, canonical(value)) for axis in read.axes() for value in axis.values}
    assert {(k, canonical(v)) for cell in read.cells({}) for k, v in cell.changes.items()} == known


def test_cells_are_equal_by_what_they_mean() -> None:
    assert Cell({"a": 1, "b": [1]}) == Cell({"b": [1.0], "a": 1.0})
    assert len({Cell({"a": 1}), Cell({"a": 1.0}), Cell({"a": True}), Cell({"a": "1"})}) == 3


@given(st.dictionaries(st.sampled_from(KEYS), st.integers()))
def test_nested_and_flat_undo_each_other(changes: dict[str, int]) -> None:
    assert flat(nested(changes)) == changes


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ({"grid": {"a": []}}, "must list at least one value"),
        ({"grid": {"a": [1, 2, 1.0]}}, "must list each value once, got 1.0 twice"),
        ({"grid": {}}, "must name at least one key"),
        ({"grid": {"a": [{"b": 1}]}}, "must be a plain value"),
        ({"zip": {"a": [1], "b": [1, 2]}}, "the same length, got a 1, b 2"),
        ({"grid": {"a": [1]}, "zip": {"a": [1]}}, "exactly one of grid, .*, got grid, zip"),
        ({"exclude": [{"a": 1}]}, "exactly one of grid, .*, got none"),
        ({"grid": {"a": [1]}, "exclude": [{}]}, "must name at least one key"),
        ({"union": []}, "must list at least one value"),
        (
            {"union": [{"optuna": {"domains": {"a": {"choice": [1]}}}}]},
            "a union cannot contain optuna, which lists no cells",
        ),
        (
            {"optuna": {"domains": {"a": {"choice": [1]}}}, "exclude": [{"a": 1}]},
            "does not work with optuna; use `when` in a domain",
        ),
        ({"grid": {str(i): list(range(100)) for i in range(9)}}, "at most 100,000 cells, got 1,0"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(space: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Space.model_validate(space)


# -- domains


@pytest.mark.parametrize(
    ("domain", "sentence"),
    [
        ({"uniform": [1, 1]}, r"low must be below high, got \[1.0, 1.0\]"),
        ({"uniform": [2, 1]}, "low must be below high"),
        ({"log_uniform": [0, 1]}, "low must be above 0 on a logarithmic scale"),
        ({"int": [0, 9], "log": True}, "low must be above 0 on a logarithmic scale"),
        ({"int": [1.5, 9]}, "must be whole numbers"),
        ({"int": [1, 9], "step": 0.5}, "must be whole numbers"),
        ({"int": [1, 9], "step": 9}, "step must be at most high − low"),
        ({"uniform": [0, 1], "step": 0}, "greater than 0"),
        ({"log_uniform": [1, 2], "step": 0.1}, "`step` is allowed only with uniform, or"),
        ({"int": [1, 9], "log": True, "step": 2}, "`step` is allowed only with"),
        ({"uniform": [1, 2], "log": True}, "use log_uniform"),
        ({"choice": []}, "at least one value"),
        ({"choice": ["a", "a"]}, "each value once"),
        ({"uniform": [1]}, r"must be two finite numbers \[low, high\], got \[1\]"),
        ({"uniform": ["a", "b"]}, "must be two finite numbers"),
        ({"uniform": [0, float("inf")]}, "must be two finite numbers"),
        ({"int": [1, 2], "choice": [1]}, "exactly one of uniform, log_uniform, choice, int"),
        ({}, "got none"),
    ],
)
def test_a_domain_that_makes_no_sense_is_refused(domain: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Domain.model_validate(domain)


def test_a_domain_describes_itself() -> None:
    rate = Domain.model_validate({"log_uniform": [1, 10]})
    assert (rate.kind, rate.low, rate.high) == ("log_uniform", 1.0, 10.0)
    assert isinstance(rate.low, float)
    count = Domain.model_validate({"int": [2, 10], "step": 4})
    assert (count.kind, count.low, count.high, count.ends) == ("int", 2, 10, (2, 6, 10))
    assert isinstance(count.low, int)
    word = Domain.model_validate({"choice": ["a", None, 3]})
    assert (word.kind, word.choices, word.ends) == ("choice", ("a", None, 3), ("a", None, 3))


def domains(**given: dict[str, Any]) -> dict[str, Domain]:
    return {key: Domain.model_validate(domain) for key, domain in given.items()}


def test_every_key_comes_after_those_its_condition_looks_at() -> None:
    found = domains(
        c={"choice": [1], "when": {"b": 1}},
        b={"choice": [1], "when": {"a": 1}},
        a={"choice": [1]},
        x={"choice": [1], "when": {"x": 1}},
    )
    placed, circular = in_order(found)
    assert (list(placed), circular) == (["a", "b", "c"], ["x"])


def test_the_proof_shows_both_ends_of_every_domain_under_its_condition() -> None:
    placed, _ = in_order(
        domains(
            kind={"choice": ["none", "hard", "ascl"]},
            tau={"log_uniform": [0.01, 0.2], "when": {"kind": ["ascl", "soft"]}},
            sharp={"int": [1, 9], "when": {"kind": "ascl", "fixed": 7}},
            never={"int": [1, 9], "when": {"fixed": 8}},
        )
    )
    points = [dict(cell.changes) for cell in corner_cells(placed, {"fixed": 7})]
    for key, domain in placed.items():
        shown = {point[key] for point in points if key in point}
        assert shown == (set() if key == "never" else set(domain.ends))
    assert all(("tau" in point) == (point["kind"] == "ascl") for point in points)
    assert {"kind": "none"} in points
    assert {"kind": "ascl", "tau": 0.2, "sharp": 9} in points
