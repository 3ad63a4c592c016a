"""Tables of effects and ranks state what was compared, with how many seeds and datasets."""

from dataclasses import replace

import numpy as np
import pytest

from ascl_sweep.analysis.comparison import DATASET
from ascl_sweep.analysis.factorial import MOST_INTERACTIONS, factorials
from ascl_sweep.contracts import RunState
from ascl_sweep.report.effects import effects_table, ranks_table
from ascl_sweep.report.tables import Table
from tests.ascl_sweep.analysis.test_datasets import FOUR, PROBE, a_table, ranked
from tests.ascl_sweep.analysis.test_factorial import (
    BASE,
    CUBE,
    EPOCHS,
    RELABEL,
    K,
    a_grid,
    an_arm,
)


def rows_of(table: Table | None) -> list[dict[str, str]]:
    assert table is not None
    assert len(table.align) == len(table.header)
    assert len(table.caption) <= 2
    for row in table.rows:
        assert len(row) == len(table.header)
    texts = [[cell.text for cell in row] for row in table.rows]
    return [dict(zip(table.header, row, strict=True)) for row in texts]


def a_cube(effect: float, interaction: float = 0.0) -> np.ndarray:
    scores = 80 + np.random.default_rng(0).normal(0, 0.2, (2, 2, 2, 5))
    scores[1] += effect
    scores[1, 1] += interaction
    return scores


# ---------------------------------------------------------------- effects


def test_an_effect_is_shown_with_its_verdict() -> None:
    table = effects_table("it", factorials(a_grid(CUBE, a_cube(3, 4)), BASE, PROBE, 0.5), PROBE)
    rows = {row["effect"]: row for row in rows_of(table)}
    main = rows["ASCL vs MoCo"]
    assert (main["kind"], main["seeds"], main["verdict"]) == ("main effect", "5", "better")
    assert float(main["Δ"]) == pytest.approx(5, abs=0.3)
    both = next(
        row
        for name, row in rows.items()
        if name.startswith("(ASCL vs MoCo) × (") and "strong" in name
    )
    assert (both["kind"], both["verdict"]) == ("interaction", "better than additive")
    assert float(both["Δ"]) == pytest.approx(4, abs=0.5)
    assert len(rows) == 6


def test_the_caption_states_both_families_and_the_grid() -> None:
    table = effects_table("it", factorials(a_grid(CUBE, a_cube(1)), BASE, PROBE, 0.5), PROBE)
    assert table is not None
    assert table.caption[0].endswith("additive: within ±0.5 points")
    assert "3 main effects and, separately, over 3 interactions" in table.caption[1]
    assert table.caption[1].endswith("grid: method (2) × key view (2) × epochs (2)")


def test_arms_outside_the_grid_are_named() -> None:
    levels = {RELABEL: ("hard", "ahcl", "ascl"), K: (1, 2)}
    arms = [an_arm({RELABEL: "none"}, [1.0]), *a_grid(levels, np.zeros((3, 2, 1)))]
    table = effects_table("it", factorials(arms, BASE, PROBE, 0.5), PROBE)
    assert table is not None and table.caption[1].endswith(", without none")


def test_effects_of_several_datasets_have_a_dataset_column() -> None:
    levels = {DATASET: ("cifar10", "cifar100"), RELABEL: ("none", "ascl"), EPOCHS: (200, 800)}
    found = factorials(a_grid(levels, np.zeros((2, 2, 2, 3))), BASE, PROBE, 0.5)
    rows = rows_of(effects_table("it", found, PROBE))
    assert [row["dataset"] for row in rows] == ["CIFAR-10"] * 3 + ["CIFAR-100"] * 3


def test_an_effect_without_complete_seeds_is_shown_without_numbers() -> None:
    arms = a_grid(CUBE, np.full((2, 2, 2, 3), None))
    rows = rows_of(effects_table("it", factorials(arms, BASE, PROBE, 0.5), PROBE))
    assert {(row["seeds"], row["Δ"], row["verdict"]) for row in rows} == {("0", "–", "–")}


def test_too_many_interactions_are_omitted_and_the_caption_says_so() -> None:
    levels = {EPOCHS: range(16), K: range(16)}
    assert MOST_INTERACTIONS < 15 * 15
    found = factorials(a_grid(levels, np.zeros((16, 16, 1))), BASE, PROBE, 0.5)
    table = effects_table("it", found, PROBE)
    assert table is not None and "too many interactions" in table.caption[1]
    assert len(table.rows) == 30


def test_no_grid_no_table() -> None:
    assert effects_table("it", (), PROBE) is None


# ---------------------------------------------------------------- ranks


def test_ranks_are_shown_with_their_datasets_and_test() -> None:
    table = ranks_table("it", ranked(a_table(FOUR)), PROBE)
    first, second, _ = rows_of(table)
    assert first == {
        **{"system": "BYOL", "mean rank": "1.00", "CIFAR-10": "1", "CIFAR-100": "1"},
        **{"STL-10": "1", "Tiny ImageNet": "1", "baseline": "MoCo", "P(improvement)": "1.00"},
        "95% bootstrap": "–",
    }
    assert second["P(improvement)"] == "–"
    assert "on 4 datasets" in table.caption[0] and "χ² = 8.00, p = 0.018" in table.caption[0]


def test_two_datasets_have_no_test_in_the_caption() -> None:
    table = ranks_table("it", ranked(a_table({k: v[:2] for k, v in FOUR.items()})), PROBE)
    assert "no test" in table.caption[0] and "Friedman" not in table.caption[0]


def test_excluded_systems_are_named_in_the_caption() -> None:
    found = ranked(a_table({**FOUR, "simclr": [[70.0], [71.0], [], [72.0]]}))
    assert "without SimCLR" in ranks_table("it", found, PROBE).caption[0]


def test_a_system_with_lost_seeds_has_a_note() -> None:
    arms = [
        replace(arm, unscored={9: RunState.DIVERGED})
        if arm.config["method.name"] == "byol"
        else arm
        for arm in a_table(FOUR)
    ]
    table = ranks_table("it", ranked(arms), PROBE)
    assert table.rows[0][0].marks == (table.notes[0][0],)
    assert "flatters" in table.notes[0][1]
    assert rows_of(table)[0]["95% bootstrap"] not in ("–", "[1.00, 1.00]")
