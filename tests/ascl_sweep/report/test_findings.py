"""Findings: at most three sentences that state what is decided and what is not."""

import re
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.analysis.table import AblationTable, build_table
from ascl_sweep.contracts import RunRow, Scalar
from ascl_sweep.report.findings import describe_findings
from tests.stores import ASCL, EXAMPLE_ROWS, EXAMPLE_SWEEPS, MOCO, RELABEL, arm, in_order, run
from tests.stores import sweep as sweep_row
from tests.stores import table as file_table

HARD: Mapping[str, Scalar] = {RELABEL: "hard"}
BASE = [88.0, 88.2, 88.1]


def built(rows: list[RunRow], **digest: Any) -> AblationTable:
    asked = sweep_row("it", (RELABEL,), table=file_table(RELABEL, baseline=MOCO), **digest)
    found = build_table(asked, in_order(rows))
    assert found is not None
    return found


def findings(rows: list[RunRow], **digest: Any) -> str:
    sentences = describe_findings(built(rows, **digest))
    assert len(sentences) <= 3
    return " ".join(sentences)


def test_decided_comparisons_have_effect_and_interval() -> None:
    text = findings(
        [*arm("it", MOCO, BASE), *arm("it", ASCL, [91.0, 91.3, 91.1]), *arm("it", HARD, BASE)]
    )
    assert re.search(r"better: ASCL \(\+3\.0\d \[\+\d\.\d+, \+\d\.\d+\]\)", text), text
    assert "2 planned comparisons with MoCo" in text


def test_a_table_that_decides_nothing_states_it_with_the_largest_effect_and_seeds() -> None:
    text = findings(
        [*arm("it", MOCO, BASE), *arm("it", ASCL, [88.9, 88.4, 89.2]), *arm("it", HARD, BASE)]
    )
    assert text.startswith("Nothing is decided yet (2 planned comparisons with MoCo). The largest")
    assert "difference is ASCL: +0.7" in text
    assert re.search(r"About \d+ further seeds? per arm would decide", text)


def test_an_interim_look_is_stated() -> None:
    rows = [*arm("it", MOCO, BASE), *arm("it", ASCL, [88.9, 88.4, 89.2])]
    planned = {"seeds": tuple(range(8)), "looks": (3, 5, 8)}
    assert findings(rows, **planned).startswith("Interim look at 3 of at most 8 seeds: ")
    rows += [run("it", MOCO, 3, 88.2), run("it", ASCL, 3, 89.0)]
    assert findings(rows, **planned).startswith("Interim look at 5 of at most 8 seeds (so far 4): ")
    assert "Interim" not in findings(rows)


def test_missing_and_failed_seeds_are_stated() -> None:
    rows = [*arm("it", MOCO, BASE), *arm("it", ASCL, [90.0, 90.2])]
    assert "1 planned seed is missing" in findings([*rows, run("it", ASCL, 2)])
    failed = findings([*rows, run("it", ASCL, 2, state="failed")])
    assert "iverged or failed seeds prevent a verdict on ASCL" in failed
    assert "missing" not in failed


def test_two_seeds_have_no_verdict_and_the_findings_state_what_one_needs() -> None:
    rows = [*arm("it", MOCO, [88.0]), *arm("it", ASCL, [90.0])]
    text = findings(rows, seeds=(0,))
    assert "A verdict needs at least 3 paired seeds" in text and "+2.00 points (n = 1)" in text


def test_a_table_without_results_or_comparisons_states_it() -> None:
    assert findings([run("it", ASCL, 0)]) == "Nothing is decided: no run is complete."
    alone = findings(arm("it", ASCL, BASE))
    assert alone == "Nothing is decided: no arm is compared with a baseline."


def test_the_findings_of_the_example_agree_with_its_verdicts() -> None:
    for asked in EXAMPLE_SWEEPS:
        found = build_table(asked, EXAMPLE_ROWS)
        assert found is not None
        text = " ".join(describe_findings(found))
        decided = [a for a in found.arms if a.comparison and a.comparison.verdict not in
                   (None, "undecided")]  # fmt: skip
        assert text.startswith("Nothing is decided") == (not decided)


gains = st.lists(st.integers(-300, 300).map(lambda n: n / 100), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(gains, min_size=1, max_size=5))
def test_every_decided_effect_among_the_largest_is_named(arms: list[list[float]]) -> None:
    rows = arm("it", MOCO, [88.0, 88.3, 87.9, 88.6])
    for i, own in enumerate(arms):
        rows += arm("it", {RELABEL: f"r{i}"}, [88 + gain for gain in own])
    found = built(rows, seeds=(0, 1, 2, 3))
    text = " ".join(describe_findings(found))
    for verdict in ("better", "worse", "equivalent"):
        own = [a for a in found.arms if a.comparison and a.comparison.verdict == verdict]
        assert (f"{verdict}: " in text) == bool(own)
        largest = sorted(own, key=lambda a: -abs(a.comparison.estimate.mean if a.comparison else 0))
        assert all(a.label in text for a in largest[:3])
