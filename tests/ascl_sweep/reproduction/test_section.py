"""The report's section on the paper's claims."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascl_sweep.report.document import Text
from ascl_sweep.report.report import Appendix, build_report
from ascl_sweep.report.tables import Table
from ascl_sweep.reproduction.claims import CLAIMS
from ascl_sweep.reproduction.section import PAPER
from ascl_sweep.store.store import Store
from tests.stores import ASCL, MOCO, RELABEL, arm, example, sweep, write


def appendix(store: Store) -> Appendix:
    (found,) = build_report(store, extensions=[PAPER]).appendices
    return found


@pytest.fixture
def speeds(tmp_path: Path) -> Store:
    """MoCo and ASCL with curves: ASCL learns faster, becomes confident and is 2% slower."""
    rows = []
    for changes, speed in ((MOCO, 1000), (ASCL, 980)):
        for i, row in enumerate(arm("learning_speed", changes, [50.0, 50.1, 49.9])):
            rows.append(replace(row, images_per_second=speed * (1 + i * speed * 1e-6)))
    store = write(tmp_path / "results", [sweep("learning_speed")], rows)
    with store.writer() as writer:
        for i, row in enumerate(rows):
            ours = row.config["method.relabel"] == "ascl"
            for epoch in range(1, 11):
                knn = 0.03 * epoch + 0.02 * ours + 0.001 * (i * i % 5)
                sure = (
                    {"confidence": 0.05 * epoch * (1 + 0.01 * int(row.config["seed"] or 0))}
                    if ours
                    else {}
                )
                writer.put_epoch(row.run_id, {"epoch": epoch, "knn_top1": knn, **sure})
    return store


def test_scores_of_curves_and_costs_are_read_from_the_store(speeds: Store) -> None:
    found = {str(entry["claim"]): entry for entry in appendix(speeds).data}
    (grows,) = (entry for text, entry in found.items() if "confidence" in text)
    assert grows["outcome"] == "supported"
    (duel,) = grows["comparisons"]  # type: ignore[misc]
    assert duel["mean"] == pytest.approx(100 * 0.05 * (9.5 - 1.5) * 1.01)
    (cost,) = (entry for text, entry in found.items() if "negligible" in text)
    assert (cost["outcome"], "busy machines" in str(cost["note"])) == ("supported", True)
    (few,) = (entry for text, entry in found.items() if "few epochs" in text)
    assert (few["outcome"], len(few["comparisons"])) == ("inconclusive", 1)  # type: ignore[arg-type]
    (section,) = appendix(speeds).sections
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    (row,) = (cells for cells in table.rows if "negligible" in cells[0].text)
    assert row[-3].text.startswith("−2.0") and row[-3].text.endswith("%")


@pytest.mark.parametrize(
    ("digest", "level"),
    [
        ({}, None),
        ({"seeds": (0, 1, 2, 3, 4), "looks": (3, 5)}, "2.5%"),
        ({"extensions": 2}, "1.25%"),
    ],
)
def test_a_claim_on_seeds_that_results_have_chosen_states_its_level(
    tmp_path: Path, digest: dict[str, Any], level: str | None
) -> None:
    rows = [*arm("neighbours", MOCO, [88.0, 88.1, 88.4]), *arm("neighbours", ASCL, [90.0] * 3)]
    store = write(tmp_path, [sweep("neighbours", (RELABEL,), **digest)], rows)
    (section,) = appendix(store).sections
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    notes = [text for _, text in table.notes if "instead of 5%" in text]
    assert notes == (
        [f"Tested at {level} instead of 5%, because results decided on the seeds."] if level else []
    )


def test_settled_claims_are_listed_apart_and_not_counted(tmp_path: Path) -> None:
    for section in appendix(example(tmp_path)).sections:
        (table,) = (block for block in section.blocks if isinstance(block, Table))
        first, *others = (block for block in section.blocks if isinstance(block, Text))
        assert first.items[0].startswith(f"Of {len(table.rows)} claim")
        listed = {row[0].text for row in table.rows}
        settled = {claim.text for claim in CLAIMS if claim.settled}
        assert listed and not listed & settled
        assert all(any(text in item for text in settled) for t in others for item in t.items)


def test_counts_of_outcomes_add_up_to_the_number_of_claims(tmp_path: Path) -> None:
    data = appendix(example(tmp_path)).data
    tested = [entry for entry in data if entry["outcome"] != "settled"]
    for section, scale in zip(
        appendix(example(tmp_path)).sections, ("full", "laptop"), strict=True
    ):
        own = [entry for entry in tested if entry["scale"] == scale]
        (table,) = (block for block in section.blocks if isinstance(block, Table))
        assert [row[2].text for row in table.rows] == [entry["outcome"] for entry in own]
