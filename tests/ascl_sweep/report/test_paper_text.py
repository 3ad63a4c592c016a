"""The text for papers names the test, the family and the limits of a table's design."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.report.paper_text import (
    baseline_name,
    describe_marks,
    describe_methods,
    describe_search,
    describe_table,
)
from ascl_sweep.report.report import Report, build_report
from tests.stores import (
    ASCL,
    MOCO,
    RELABEL,
    arm,
    in_order,
    sweep,
    table,
    write,
)

BETTER = [90.0, 90.2, 90.1, 90.3, 90.2]
BASE = [88.0, 88.1, 88.2, 88.1, 88.2]


def made(folder: Path, *arms: Any, **digest: Any) -> AblationTable:
    rows = [row for each in arms for row in each]
    asked = sweep("it", (RELABEL,), table=table(RELABEL, baseline=MOCO), **digest)
    found = build_report(write(folder, [asked], in_order(rows))).sweeps[0].table
    assert found is not None
    return found


def two_arms(folder: Path, **digest: Any) -> AblationTable:
    return made(folder, arm("it", MOCO, BASE), arm("it", ASCL, BETTER), **digest)


def of(report: Report, name: str) -> AblationTable:
    (found,) = (each.table for each in report.sweeps if each.sweep.name == name)
    assert found is not None
    return found


def test_the_caption_names_metric_data_and_seeds_once(report: Report) -> None:
    assert describe_table(of(report, "tau_prime")) == (
        "Linear-probe top-1 (%) on the shapes test set at laptop scale (reduced data, network and "
        "epochs), mean ± SD over n = 3 seeds. Compared with τ' = 0.05, ‡: significantly worse "
        "(moderated paired t-test, 5% level, family-wise over 4 planned comparisons)."
    )


def test_a_table_without_significant_differences_says_so(tmp_path: Path) -> None:
    found = made(tmp_path, arm("it", MOCO, [88, 89, 90]), arm("it", ASCL, [90, 87, 91]))
    assert describe_marks(found).startswith("No arm differs significantly from MoCo (paired")


def test_one_seed_has_no_test(report: Report) -> None:
    found = of(report, "once")
    assert describe_marks(found) == ""
    assert "mean over n = 1 seed." in describe_table(found)
    assert "No arm is compared with a baseline." in describe_methods(found)


def test_methods_name_test_family_region_and_seeds(report: Report) -> None:
    text = describe_methods(of(report, "tau_prime"))
    for part in (
        *("moderated paired t-test (Smyth, 2004)", "df = 4.5 to 5.7", "All m = 4 planned"),
        *("Šidák", "hold simultaneously", "(TOST)", "±0.5 percentage points"),
        *("planned seeds: 0, 1, 2", "same for every seed", "α = 0.05"),
    ):
        assert part in text, part


def test_one_comparison_is_not_moderated_and_not_corrected(tmp_path: Path) -> None:
    text = describe_methods(two_arms(tmp_path))
    assert "two-sided paired t-test (df = 4)" in text
    assert "moderated" not in text and "Šidák" not in text


@pytest.mark.parametrize(
    ("digest", "parts"),
    [
        ({"looks": (3, 5), "seeds": (0, 1, 2, 3, 4)}, ["looks at 3, 5 seeds", "0.023, 0.027"]),
        ({"extensions": 1}, ["once after results", "an error of 2.5%", "the level 97.5%"]),
        (
            {"looks": (3, 5), "seeds": (0, 1, 2, 3, 4), "extensions": 1},
            ["share the family-wise error of 2.5%", "with the table before: at most 7.5%"],
        ),
    ],
)  # fmt: skip
def test_looks_and_extensions_are_disclosed(
    tmp_path: Path, digest: dict[str, Any], parts: list[str]
) -> None:
    text = describe_methods(two_arms(tmp_path, **digest))
    assert all(part in text for part in parts), text
    assert "have the level 95%" not in text


def test_lost_seeds_and_few_seeds_are_disclosed(report: Report) -> None:
    text = describe_methods(of(report, "neighbours"))
    assert "fewer than 3 paired seeds (1 of 4) have no verdict" in text
    assert "This concerns ASCL, K = 5" in text


def test_a_reference_is_named(tmp_path: Path) -> None:
    supervised = {"method.name": "supervised", RELABEL: "none"}
    arms = arm("it", MOCO, BASE), arm("it", ASCL, BETTER), arm("it", supervised, [95.0] * 3)
    assert "Supervised is a reference outside" in describe_methods(made(tmp_path, *arms))


def test_a_comparison_of_a_larger_family_is_disclosed(tmp_path: Path) -> None:
    found = two_arms(tmp_path)
    arms = [
        replace(a, comparison=replace(a.comparison, taken_from="big")) if a.comparison else a
        for a in found.arms
    ]
    text = describe_methods(replace(found, arms=tuple(arms)))
    assert "1 comparison of the table belongs to the larger family of the sweep big" in text


def test_a_common_system_names_the_baselines(tmp_path: Path) -> None:
    def pair(data: str) -> list[Any]:
        return [*arm("it", {**MOCO, "data.name": data}, BASE),
                *arm("it", {**ASCL, "data.name": data}, BETTER)]  # fmt: skip

    found = made(tmp_path, pair("cifar10"), pair("cifar100"))
    assert baseline_name(found) == "MoCo with all else equal"


def test_a_search_is_described(report: Report) -> None:
    (found,) = (each.search for each in report.sweeps if each.search)
    text = describe_search(found)
    assert re.search("9 configurations with one seed each.*holdout.*2 best configurations", text)
