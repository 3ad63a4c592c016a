"""Warnings about varied keys without effect."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ascl_sweep.spec.effects import find_axes_without_effect
from ascl_sweep.spec.sweep import load_sweep, parse_sweep
from tests.ascl_sweep.spec.test_sweep import FILES, grid, search


def warnings(given: Any) -> list[str]:
    text = yaml.safe_dump({"name": "s", **given})
    return list(map(str, find_axes_without_effect(parse_sweep(text, file="s.yaml"))))


def test_an_axis_without_effect_names_its_line_the_cause_and_the_fix() -> None:
    space = grid(augment__strength=[0.4, 0.8], method__num_neighbours=[0, 1, 5])
    assert warnings({"base": {"epochs": 3}, "space": space}) == [
        "s.yaml:9: space.grid.method.num_neighbours: has no effect with method.relabel none, so "
        "its 3 values give the same runs; set base.method.relabel to hard, ahcl or ascl"
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"space": grid(eval__probe_epochs=[10, 20]), "base": {"eval.probe": "none"}},
            "with eval.probe none, so its 2 values give the same runs; set base.eval.probe to ",
        ),
        (
            {
                "space": grid(method__consistency_temperature=[0.1, 0.2]),
                "base": {"method": {"name": "co2", "consistency_weight": 0.0}},
            },
            "with method.consistency_weight 0.0, so",
        ),
        (
            {"space": {"one_factor": {"method.target_temperature": [0.1], "optim.lr": [0.1]}}},
            "space.one_factor.method.target_temperature: has no effect with method.relabel none",
        ),
        (
            {"space": {"zip": {"method.num_neighbours": [1, 2], "optim.lr": [0.1, 0.2]}}},
            "space.zip.method.num_neighbours: has no effect with method.relabel none",
        ),
        (
            search(optim__lr={"uniform": [0.1, 0.2]}, method__num_neighbours={"int": [1, 3]}),
            "domains.method.num_neighbours: has no effect with method.relabel none",
        ),
    ],
)
def test_an_axis_without_effect_is_found_in_every_space(given: Any, sentence: str) -> None:
    (found,) = warnings(given)
    assert sentence in found


@pytest.mark.parametrize(
    "space",
    [
        grid(method__relabel=["none", "ascl"], method__num_neighbours=[1, 5]),
        grid(method__num_neighbours=[1]),
        grid(preset=["paper", "code"], method__name=["moco", "byol"]),
        {"one_factor": {"method.relabel": ["ascl"], "optim.lr": [0.1]}},
    ],
)
def test_an_axis_with_an_effect_in_some_cell_gives_no_warning(space: Any) -> None:
    assert warnings({"space": space}) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_search_space_has_an_axis_without_effect(path: Path) -> None:
    assert list(find_axes_without_effect(load_sweep(path))) == []
