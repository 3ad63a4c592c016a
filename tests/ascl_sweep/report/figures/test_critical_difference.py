"""The critical-difference diagram shows every system, and bars only between equal ones."""

from itertools import combinations, pairwise

import pytest

from ascl_sweep.analysis.datasets import (
    DatasetRanks,
    RankedSystem,
    RankTest,
    critical_difference,
    group_ranks,
)
from ascl_sweep.report.figures import Diagram
from ascl_sweep.report.figures.critical_difference import draw_ranks
from ascl_sweep.report.figures.matplotlib_backend import png
from ascl_sweep.report.figures.plotly_backend import plotly

NAMES = ("BYOL + ASCL, K = 5, batch = 256, smallest crop = 0.2", "ASCL", "MoCo", "SimCLR", "BYOL")


def some_ranks(means: list[float], datasets: int = 14) -> DatasetRanks:
    test = RankTest(20.0, 0.001, critical_difference(len(means), datasets))
    return DatasetRanks(
        datasets=tuple(f"dataset {i}" for i in range(datasets)),
        systems=tuple(
            RankedSystem(name, mean, (mean,) * datasets, 0, None)
            for name, mean in zip(NAMES, means, strict=False)
        ),
        test=test,
        groups=group_ranks(means, test),
        excluded=(),
    )


def the_diagram(ranks: DatasetRanks) -> Diagram:
    figure = draw_ranks("it", ranks)
    assert figure is not None and figure.panels[0].diagram is not None
    return figure.panels[0].diagram


def test_every_system_is_named_with_its_mean_rank() -> None:
    texts = [label.text.replace("\n", " ") for label in the_diagram(some_ranks([1.2, 2, 4])).labels]
    assert f"{NAMES[0]} (1.20)" in texts and "ASCL (2.00)" in texts and "MoCo (4.00)" in texts


def test_bars_join_only_systems_closer_than_the_critical_difference() -> None:
    ranks = some_ranks([1.2, 2.0, 3.0, 4.4, 4.6])
    assert ranks.test is not None
    bars = [line.x for line in the_diagram(ranks).lines if line.bold]
    for a, b in combinations([system.mean_rank for system in ranks.systems], 2):
        joined = any(low <= a and b <= high for low, high in bars)
        assert joined == (b - a < ranks.test.critical_difference)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_labels_do_not_overlap_and_stay_inside(count: int) -> None:
    diagram = the_diagram(some_ranks([1.2, 2.0, 3.0, 4.4, 4.6][:count]))
    for side in ("left", "right"):
        own = sorted(
            (label.y, 1 + label.text.count("\n")) for label in diagram.labels if label.align == side
        )
        for (y, lines), (above, more) in pairwise(own):
            assert above - y >= (lines + more) / 2
    assert all(0 < label.y < diagram.height for label in diagram.labels)
    assert all(0 <= y < diagram.height for line in diagram.lines for y in line.y)


def test_a_critical_difference_wider_than_the_axis_has_no_scale() -> None:
    wide = the_diagram(some_ranks([1.0, 2.0, 3.0], datasets=3))
    assert max(x for line in wide.lines for x in line.x) <= 3.1


def test_both_backends_draw_long_names_without_a_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    figure = draw_ranks("it", some_ranks([1.2, 2.0, 3.0, 4.4, 4.6]))
    assert figure is not None
    assert png(figure) and plotly(figure)["data"]
    assert not recwarn.list


def test_without_a_test_there_is_no_diagram() -> None:
    ranks = some_ranks([1.0, 2.0])
    assert draw_ranks("it", DatasetRanks(**{**vars(ranks), "test": None})) is None
