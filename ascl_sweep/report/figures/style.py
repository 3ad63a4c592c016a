"""Style of figures in every backend: colors, columns and ticks.

Series differ in color and in marker or dash, so that figures remain readable in grayscale and for
color-blind readers. Black and white are avoided because a page may be light or dark.
"""

import math
import textwrap
from itertools import pairwise

from ascl_sweep.analysis.inference import Verdict
from ascl_sweep.report.figures.model import Figure, Panel

# The color-blind safe palette of Okabe and Ito, with gray for black, a darker yellow and two more
# colors. The numbers of colors, markers and dashes differ, so that no two series look the same.
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A900"),
    *("#7B4FBF", "#8B5A2B"),
)
GRAY = "#8C8C8C"
VERDICT_COLORS: dict[Verdict, str] = {
    "better": "#0072B2",
    "worse": "#D55E00",
    "equivalent": "#009E73",
    "undecided": GRAY,
}
HEAT = "cividis"  # color-blind safe, from dark to light
FEW_TICKS = 8
NEAR = 0.07  # fraction of an axis; closer ticks overlap


def places(figure: Figure) -> dict[str, int]:
    """Return the index of each label's color and marker, the same in all panels."""
    shown = [s.label for panel in figure.panels for s in panel.series if s.role == "data"]
    return {label: i for i, label in enumerate(dict.fromkeys(shown))}


def columns_of(figure: Figure) -> int:
    """Return the number of panels side by side; the names of a forest plot need the width."""
    panels = 1 if any(panel.forest for panel in figure.panels) else len(figure.panels)
    return panels if panels <= 3 else 2


def ticks(panel: Panel) -> list[float] | None:
    """Return the values as ticks if they are few and far apart; None for the library's choice."""
    x = [v for s in panel.series for v in s.x]
    values = sorted(set(x))
    # Points that share no value, such as costs, are not steps of a parameter.
    if not 1 < len(values) <= FEW_TICKS or len(values) == len(x):
        return None
    at = [math.log(v) for v in values] if panel.log_x else values
    nearest = min(b - a for a, b in pairwise(at))
    return values if nearest > NEAR * (at[-1] - at[0]) else None


def wrapped(text: str, letters: int) -> str:
    """Wrap text to lines of this many letters; `K = 5` stays on one line."""
    return textwrap.fill(text.replace(" = ", "\xa0=\xa0"), letters).replace("\xa0", " ")
