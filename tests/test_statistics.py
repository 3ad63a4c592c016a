"""The simulation of the tables' inference: it decides as the package does, and the docs have it."""

import numpy as np
import pytest

from ascl_sweep.analysis.comparison import Arm, Design, Options
from ascl_sweep.analysis.inference import (
    ALPHA,
    estimate_pool,
    single_alpha,
    smallest_effect,
    spend_alpha,
)
from ascl_sweep.analysis.looks import compare_arms
from ascl_sweep.spec.metrics import METRICS
from benchmarks.simulation import SPREADS, draw, follow_looks, holm, p_values, significant
from benchmarks.statistics import LOOKS, SWEEPS, TABLES, power, sequential, wrong_tables
from benchmarks.verdicts import changes
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "statistics.md").read_text()
ERROR = 5.5
"""Percent of tables without effects that may contain a wrong decision."""


# ---------------------------------------------------------------- the same decisions


@pytest.mark.parametrize("kind", SPREADS)
@pytest.mark.parametrize("comparisons", [2, 4])
def test_the_simulation_has_the_p_values_of_the_package(kind: str, comparisons: int) -> None:
    drawn = draw(kind, 20, comparisons, 8, effect=1.0, correlation=0.5)
    used = np.random.default_rng(0).integers(3, 9, size=(20, comparisons))
    for table, counts, ours in zip(drawn, used, p_values(drawn, used), strict=True):
        pool = [dict(enumerate(row[:n].tolist())) for row, n in zip(table, counts, strict=True)]
        expected = [found and found.p for found in estimate_pool(pool)]
        assert ours.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", SPREADS)
def test_the_simulation_follows_looks_as_the_package_does(kind: str) -> None:
    drawn = draw(kind, 20, 4, LOOKS[-1], effect=1.5, correlation=0.5)
    found = follow_looks(drawn, LOOKS)
    design = Design(seeds=tuple(range(LOOKS[-1])), looks=LOOKS)
    assert len(np.unique(found.decided)) > 1
    for table, decided, spent in zip(drawn, found.decided, found.spent, strict=True):
        arms = [an_arm(i, row) for i, row in enumerate([0 * table[0], *table])]
        compared, _ = compare_arms(
            arms, {"arm": 0}, METRICS["probe_top1"], Options(region=0.0), design
        )
        made = [arm.comparison for arm in compared[1:] if arm.comparison]
        assert [c.estimate.n for c in made] == spent.tolist()
        assert [c.verdict != "undecided" for c in made] == (decided > 0).tolist()


def an_arm(number: int, scores: np.ndarray) -> Arm:
    config = {"arm": number}
    return Arm(
        label=str(number),
        values=config,
        config=config,
        idle=(),
        scores=dict(enumerate(scores.tolist())),
        planned=len(scores),
        mean=None,
        sd=None,
        interval=None,
        states={},
        epochs=0,
        device_hours=0.0,
        run_ids=(str(number),),
    )


def test_holms_correction_is_that_of_its_paper() -> None:
    """The smallest p times m, the next times m − 1, and so on until one is not significant."""
    from scipy.stats import ttest_1samp

    drawn = draw("equal", 50, 4, 5, effect=2.0)
    for table, ours in zip(drawn, holm(drawn), strict=True):
        ps = ttest_1samp(table, 0, axis=1).pvalue
        expected = np.zeros(4, bool)
        for rank, place in enumerate(ps.argsort()):
            if ps[place] * (4 - rank) > ALPHA:
                break
            expected[place] = True
        assert ours.tolist() == expected.tolist()


# ---------------------------------------------------------------- what the numbers promise


@pytest.mark.parametrize("comparisons", [4, 12])
@pytest.mark.parametrize("kind", ["equal", "one arm 3×", "baseline 3×", "stored spreads"])
def test_unequal_spreads_keep_the_error_of_a_table(kind: str, comparisons: int) -> None:
    drawn = draw(kind, TABLES // 2, comparisons, 3)
    wrong = 100 * significant(drawn).any(axis=1).mean()
    assert 1 < wrong < ERROR + 0.3


@pytest.mark.parametrize("kind", ["equal", "one arm 3×", "baseline 3×", "stored spreads"])
def test_looks_spend_the_error_of_a_sweep_once(kind: str) -> None:
    assert sequential(kind, 4, 0.0, 4000).wrong < ALPHA


def test_looks_that_spend_the_whole_error_each_are_wrong_too_often() -> None:
    """What alpha spending prevents."""
    assert sequential("equal", 4, 0.0, 4000, alphas=[ALPHA] * len(LOOKS)).wrong > 1.3 * ALPHA
    assert sum(spend_alpha(LOOKS)) == pytest.approx(ALPHA)


@pytest.mark.parametrize("looks", [(3, 5), LOOKS])
def test_the_smallest_effect_of_looks_is_found_four_times_in_five(looks: tuple[int, ...]) -> None:
    effect = smallest_effect(looks, 4)
    assert effect is not None
    assert sequential("equal", 4, effect, 4000, looks).found == pytest.approx(0.8, abs=0.04)


def test_intervals_of_a_table_cover_what_its_tests_accept() -> None:
    """Simultaneous coverage is one minus the error rate: shifting a table shifts its intervals."""
    drawn = draw("equal", 200, 4, 3)
    covered = []
    for table in drawn:
        pool = [dict(enumerate((row + shift).tolist())) for shift, row in enumerate(table)]
        intervals = [
            found.interval(single_alpha(ALPHA, 4)) for found in estimate_pool(pool) if found
        ]
        covered.append(all(ends and shift in ends for shift, ends in enumerate(intervals)))
    assert covered == (~significant(drawn).any(axis=1)).tolist()


# ---------------------------------------------------------------- the docs


def documented(title: str) -> list[dict[str, str]]:
    """Return the rows of the first table of a section, by column."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = section.split("\n\n|")[1].split("\n\n")[0]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("| ").split("|")] for line in table.split("\n")
    )
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.parametrize("kind", ["equal", "baseline 3×"])
def test_the_documented_error_rates_are_those_of_the_code(kind: str) -> None:
    (row,) = (row for row in documented("Error rate") if row["spreads"] == kind)
    assert f"{TABLES:,} tables per cell" in PAGE
    assert row["n=3, m=4"] == str(wrong_tables(kind, 3, 4, TABLES))


@pytest.mark.parametrize(("kind", "arm"), [("equal", "any"), ("one arm 3×", "another one")])
def test_the_documented_power_is_that_of_the_code(kind: str, arm: str) -> None:
    found = power(kind, 1 if arm == "any" else 2, 3, 4, 0.5, TABLES)
    rows = documented("Power")
    (row,) = (row for row in rows if (row["spreads"], row["better arm"]) == (kind, arm))
    assert row["m=4, r=0.5"] == f"{found} {found.ratio}"


def test_the_documented_sweeps_are_those_of_the_code() -> None:
    rows = {row["spreads"]: row for row in documented("Run until decided")}
    assert f"{SWEEPS:,} sweeps per cell" in PAGE
    assert rows["equal"]["m=4"] == f"{100 * sequential('equal', 4, 0.0, SWEEPS).wrong:.1f}"


def test_the_documented_verdicts_on_the_printed_tables_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "paper" / "README.md").read_text()
    laptop, cifar = (list(changes(report)) for report in ("laptop", "cifar10"))
    decided = [c for c in laptop if set(c.verdicts) <= {"better", "worse", "equivalent"}]
    assert [(c.row.sweep, c.row.arm.split(",")[0]) for c in decided] == [
        ("byol", "BYOL + ASCL"),
        ("imagenet", "BYOL (symmetric)"),
    ]
    for change in decided:
        for each in (change.found[0.5], change.found[1.0]):
            assert each.p is not None and each.interval is not None
            low, high = (
                f"{end:.2f}".replace("-", "−") for end in (each.interval.low, each.interval.high)
            )
            assert f"{each.p:.3f}" in page and f"[{low}, {high}]" in page
    depending = [c for c in laptop if c.kind == "depends on r"]
    assert f"{len(depending)} would become *worse*" in page
    for change in depending:
        limit = max(r for r, each in change.found.items() if each.verdict == "worse")
        assert f"up to {'r = ' if limit > 0.9 else ''}{limit:.2f}" in page
    kept = [c for c in laptop if c.kind == "keeps" and c.row.n > 1]
    assert f"{len(kept)} keep their verdict" in page
    assert f"{sum(c.kind == 'changes' for c in cifar)} change as listed" in page
