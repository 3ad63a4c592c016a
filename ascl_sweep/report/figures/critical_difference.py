"""Critical-difference diagram: mean ranks of systems over datasets (Demšar 2006, figure 1)."""

import math

from ascl_sweep.analysis.datasets import DatasetRanks
from ascl_sweep.report.figures.model import Diagram, Figure, Label, Line, Panel
from ascl_sweep.report.figures.style import wrapped
from ascl_sweep.report.report import SweepReport

LETTERS = 26  # longest line of a system's name
ROW = 1.6  # text lines for a name; a name of several lines takes as many more
BAR = 0.55  # text lines between the bars of groups


def critical_difference(report: SweepReport) -> Figure | None:
    """Draw the ranks of a sweep's table, if it has several datasets."""
    table = report.table
    if table is None or table.ranks is None:
        return None
    return draw_ranks(table.sweep, table.ranks)


def draw_ranks(sweep: str, ranks: DatasetRanks) -> Figure | None:
    """Draw the systems on an axis of mean ranks; bars join systems that do not differ.

    Returns:
        The figure; None if there are too few datasets or systems for a test.
    """
    if ranks.test is None:
        return None
    n, k = len(ranks.datasets), len(ranks.systems)
    caption = (
        f"Mean ranks of {k} systems over {n} datasets; 1 is the best. Bars join systems that do "
        f"not differ significantly (Friedman test, p = {ranks.test.p:.2g}; Nemenyi critical "
        f"difference {ranks.test.critical_difference:.2f} at 5%)."
    )
    panel = Panel(diagram=_diagram(ranks, ranks.test.critical_difference))
    return Figure(f"{sweep}-critical_difference", "Mean ranks over datasets", caption, (panel,))


def _diagram(ranks: DatasetRanks, difference: float) -> Diagram:
    """Lay the diagram out from the top: scale of the difference, axis, bars, names."""
    k = len(ranks.systems)
    names = [
        wrapped(f"{system.label} ({system.mean_rank:.2f})", LETTERS) for system in ranks.systems
    ]
    left = range(math.ceil(k / 2))
    right = range(k - 1, len(left) - 1, -1)
    below = 1.0 + BAR * len(ranks.groups)  # from the axis to the first name
    depths: dict[int, float] = {}
    lowest = 0.0
    for side in (left, right):
        depth = below
        for i in side:
            height = ROW + names[i].count("\n")
            depths[i] = depth + height / 2
            depth += height
        lowest = max(lowest, depth)
    axis = lowest + 0.2
    lines = [Line((1, k), (axis, axis))]
    labels = []
    for rank in range(1, k + 1):
        lines.append(Line((rank, rank), (axis, axis + 0.4)))
        labels.append(Label(rank, axis + 1.1, str(rank)))
    # A difference wider than the axis separates no systems; its scale would leave the diagram.
    scale = min(1 + difference, k)
    top = axis + 2.5
    if 1 + difference <= k:
        lines += [
            Line((1, scale), (top, top)),
            *(Line((end, end), (top - 0.25, top + 0.25)) for end in (1, scale)),
        ]
    labels.append(Label((1 + scale) / 2, top + 0.8, f"critical difference {difference:.2f}"))
    for place, (first, last) in enumerate(ranks.groups):
        y = axis - 0.6 - BAR * place
        ends = ranks.systems[first].mean_rank, ranks.systems[last].mean_rank
        lines.append(Line((ends[0] - 0.04, ends[1] + 0.04), (y, y), bold=True))
    for i, system in enumerate(ranks.systems):
        y, at = axis - depths[i], system.mean_rank
        on_left = i in left
        end = 0.9 if on_left else k + 0.1
        lines.append(Line((at, at, end), (axis, y, y)))
        beside = end - 0.05 if on_left else end + 0.05
        labels.append(Label(beside, y, names[i], "right" if on_left else "left"))
    return Diagram(tuple(lines), tuple(labels), height=top + 1.6)
