"""Forest plots: the differences of a table, as they are in the long table."""

from pathlib import Path

import pytest

from ascl_sweep.report.figures.forest import forest
from ascl_sweep.report.report import Report, build_report
from tests.stores import ASCL, MOCO, RELABEL, arm, in_order, sweep, write
from tests.stores import table as file_table


def test_a_forest_plot_shows_each_comparison_with_its_interval(report: Report) -> None:
    shown = 0
    for found in report.sweeps:
        assert found.table is not None
        compared = [a.comparison for a in found.table.arms if a.comparison]
        figure = forest(found)
        assert (figure is not None) == bool(compared)
        if figure is None:
            continue
        rows = [row for panel in figure.panels if panel.forest for row in panel.forest.rows]
        assert sorted(r.mean for r in rows) == sorted(c.estimate.mean for c in compared)
        for comparison in compared:
            (row,) = (r for r in rows if r.mean == comparison.estimate.mean)
            ends = comparison.inference.interval
            assert row.interval == ends
            assert row.verdict == (comparison.verdict or "undecided")
            shown += 1
    assert shown > 8


def test_each_dataset_has_its_panel_and_the_caption_names_the_baseline(report: Report) -> None:
    figures = {found.sweep.name: forest(found) for found in report.sweeps}
    once, neighbours = figures["once"], figures["neighbours"]
    assert once is not None and [p.title for p in once.panels] == ["CIFAR-10", "CIFAR-100"]
    assert neighbours is not None and "Mean difference from MoCo" in neighbours.caption
    assert "n = 2 to 3" in neighbours.caption and "±0.5 points" in neighbours.caption


@pytest.mark.parametrize(("metric", "region"), [("probe_top1", 0.5), ("images_per_second", 0.0)])
def test_only_percentages_have_an_equivalence_region(
    tmp_path: Path, metric: str, region: float
) -> None:
    rows = [
        *arm("it", MOCO, [88.0, 88.2, 88.1], images_per_second=100.0),
        *arm("it", ASCL, [89.0, 89.3, 89.1], images_per_second=90.0),
    ]
    asked = sweep("it", (RELABEL,), table=file_table(RELABEL, metric=metric, baseline=MOCO))
    figure = forest(build_report(write(tmp_path, [asked], in_order(rows))).sweeps[0])
    assert figure is not None and figure.panels[0].forest is not None
    assert figure.panels[0].forest.region == region
    assert ("band" in figure.caption) == (region > 0)
