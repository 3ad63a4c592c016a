"""Sweep metadata that the store keeps for reports."""

import json
from typing import Any

import pytest
from optuna.distributions import json_to_distribution

from ascl_sweep.spec.summary import SeedPlan, SweepSummary, summarize_sweep
from ascl_sweep.spec.sweep import parse_sweep
from tests.ascl_sweep.search.test_study import GRID, OPTUNA, SEARCH

TABLE = "table: {rows: method.target_temperature, metric: knn_top1}\n"


def summary(text: str) -> SweepSummary:
    return summarize_sweep(parse_sweep(text, file="it.yaml"))


def test_a_summary_survives_its_json() -> None:
    for text in (GRID + TABLE, SEARCH, OPTUNA):
        assert SweepSummary.of_json(summary(text).to_json()) == summary(text)


def test_what_an_older_version_did_not_write_has_its_default() -> None:
    assert SweepSummary.of_json("") == SweepSummary.of_json("{}") == SweepSummary()
    assert SweepSummary.of_json('{"search": true, "unknown": 1}') == SweepSummary(search=True)


@pytest.mark.parametrize(
    ("stop", "text", "rungs"),
    [
        ({"rule": "asha", "grace": 20, "factor": 3.0}, "ASHA, grace 20 epochs, factor 3", (20, 60)),
        ({"rule": "median", "grace": 20}, "median rule, grace 20 epochs", (20,)),
        ({"rule": "keep_top", "share": 0.125, "at": 40}, "keep the best 12.5% at epoch 40", (40,)),
    ],
)
def test_a_rule_that_an_older_version_wrote_is_described(
    stop: dict[str, Any], text: str, rungs: tuple[int, ...]
) -> None:
    old = {"metric": "knn_top1", "grace": 1, "factor": 3, "share": 0.1, "at": 1, "audit": 0.05}
    found = SweepSummary.of_json(json.dumps({"search": True, "stop": old | stop})).stop
    assert found is not None and found.describe().startswith(text)
    assert found.rungs(100) == rungs


def test_it_has_what_a_table_asks_for() -> None:
    found = summary(GRID + TABLE)
    assert found.axes == ("method.target_temperature",)
    assert found.base == {"method.target_temperature": 0.05}
    assert found.table is not None and found.table["metric"] == "knn_top1"
    assert not found.search and found.stop is None and found.finalists is None


def test_it_has_the_arms_in_file_order() -> None:
    """Arms are identified by the run of their first seed, which another sweep may share."""
    spec = parse_sweep(GRID + "seeds: [7, 8]\n", file="it.yaml")
    first = [spec.config(cell.changes, seed=7).identity() for cell in spec.cells()]
    assert summarize_sweep(spec).order == tuple(first)
    assert summary(SEARCH).order == ()


def test_it_has_the_looks_of_a_sweep_until_decided() -> None:
    found = summary(GRID + "seeds: {until: decided, at_most: 6}\n")
    assert (found.seeds, found.looks, found.extensions) == ((0, 1, 2, 3, 4, 5), (3, 5, 6), 0)
    assert SweepSummary.of_json(found.to_json()) == found
    assert summary(GRID + "seeds: [0, 1]\n").looks == ()


def test_it_has_the_changes_of_the_seeds_at_every_scale() -> None:
    now, laptop = SeedPlan((0, 1, 3), (), 2, (2,)), SeedPlan((0, 1, 2), (3,), 1)
    spec = parse_sweep(GRID + "seeds: [0, 1, 3]\n", file="it.yaml")
    found = SweepSummary.of_json(summarize_sweep(spec, now, {"laptop": laptop}).to_json())
    assert found.seed_plan == now and found.other_scales == {"laptop": laptop}


def test_it_has_what_a_search_asks_for() -> None:
    found = summary(SEARCH)
    assert found.search and found.finalists == 2 and found.per is None
    per = SEARCH.replace("finalists: 2", "finalists: 1, per: method.target_temperature")
    assert summary(per).per == "method.target_temperature"
    assert found.stop is not None and found.stop.rule == "asha"
    assert found.stop.describe() == "ASHA, grace 1 epochs, factor 3, one bracket"
    assert found.stop.rungs(9) == (1, 3)
    drawn = summary(OPTUNA).distributions
    assert json_to_distribution(drawn["method.relabel"]).choices == ("none", "ascl")
