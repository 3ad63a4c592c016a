"""What the ledger keeps of a sweep for its report."""

from optuna.distributions import json_to_distribution

from ascl_sweep.digest import Digest, digest_of
from ascl_sweep.spec import spec_of
from tests.ascl_sweep.test_agenda import GRID, OPTUNA, SEARCH

TABLE = "table: {rows: method.target_temperature, metric: knn_top1}\n"


def digest(text: str) -> Digest:
    return digest_of(spec_of(text, file="it.yaml"))


def test_a_digest_survives_its_json() -> None:
    for text in (GRID + TABLE, SEARCH, OPTUNA):
        assert Digest.of_json(digest(text).to_json()) == digest(text)


def test_what_an_older_version_did_not_write_has_its_default() -> None:
    assert Digest.of_json("") == Digest.of_json("{}") == Digest()
    assert Digest.of_json('{"search": true, "unknown": 1}') == Digest(search=True)


def test_it_has_what_a_table_asks_for() -> None:
    found = digest(GRID + TABLE)
    assert found.axes == ("method.target_temperature",)
    assert found.base == {"method.target_temperature": 0.05}
    assert found.table is not None and found.table["metric"] == "knn_top1"
    assert not found.search and found.stop is None and found.finalists is None


def test_it_has_the_arms_in_file_order() -> None:
    """By the runs of their first seed, which another sweep may have planned before."""
    spec = spec_of(GRID + "seeds: [7, 8]\n", file="it.yaml")
    first = [spec.config(cell.changes, seed=7).identity() for cell in spec.cells()]
    assert digest_of(spec).order == tuple(first)
    assert digest(SEARCH).order == ()


def test_it_has_what_a_search_asks_for() -> None:
    found = digest(SEARCH)
    assert found.search and found.finalists == 2 and found.per is None
    per = SEARCH.replace("finalists: 2", "finalists: 1, per: method.target_temperature")
    assert digest(per).per == "method.target_temperature"
    assert found.stop is not None and (found.stop["rule"], found.stop["grace"]) == ("asha", 1)
    drawn = digest(OPTUNA).distributions
    assert json_to_distribution(drawn["method.relabel"]).choices == ("none", "ascl")
