"""How figures look, whatever draws them: colours, marks, and where parallel axes have their ticks.

Everything is told apart twice, by colour and by mark or dash, so that it survives a grey printer
and any eye. No black and no white: a page may be dark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ascl_sweep.figures.panels import Figure, Panel

# Okabe & Ito's colours, which colour-blind readers can tell apart: grey for their black, a darker
# yellow, and two more. Marks and dashes are of other counts, so that no two series look the same.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A900"),
    *("#7B4FBF", "#8B5A2B"),
)
GREY = "#8C8C8C"
HEAT = "cividis"  # the same to all eyes, and from dark to light
LINES = ("#1F5FA8", "#7E8A93", "#D9A400")  # from dark to light too, but visible on any ground
FEW_TICKS = 8
PARALLEL_TICKS = 5
NEAR = 0.07  # of an axis: ticks that are nearer cover each other


def places(figure: Figure) -> dict[str, int]:
    """Which colour and mark each label has, the same in all panels."""
    shown = [s.label for panel in figure.panels for s in panel.series if s.role == "data"]
    return {label: i for i, label in enumerate(dict.fromkeys(shown))}


def columns_of(panels: int) -> int:
    """How many panels stand side by side."""
    return panels if panels <= 3 else 2


def ticks(panel: Panel) -> list[float] | None:
    """The values themselves where they are few and lie apart; None leaves it to the library."""
    x = [v for s in panel.series for v in s.x if isinstance(v, int | float)]
    values = sorted(set(x))
    # Points that share no value, as costs, are no steps of a parameter.
    if not 1 < len(values) <= FEW_TICKS or len(values) == len(x):
        return None
    at = [math.log(v) for v in values] if panel.log_x else values
    nearest = min(b - a for a, b in pairwise(at))
    return values if nearest > NEAR * (at[-1] - at[0]) else None


@dataclass(frozen=True)
class Axis:
    """One of several parallel axes, from 0 to 1."""

    at: tuple[float, ...]
    """Where each configuration crosses it."""
    ticks: tuple[tuple[float, str], ...]


def axis(values: Sequence[float | str | None], *, log: bool = False) -> Axis:
    """Lay values out along an axis: numbers to scale, words evenly, what is missing below."""
    floor = 0.15 if None in values else 0.0
    given = [v for v in values if v is not None]
    numbers = [v for v in given if not isinstance(v, str)]
    if numbers and len(numbers) == len(given):
        place, marks = _to_scale(numbers, log)
    else:
        words = sorted({_word(v) for v in given})
        step = 1 / max(1, len(words) - 1)
        place = {v: words.index(_word(v)) * step for v in given}
        marks = [(i * step, word) for i, word in enumerate(words)]

    def lifted(where: float) -> float:
        return floor + (1 - floor) * where

    return Axis(
        at=tuple(0.0 if v is None else lifted(place[v]) for v in values),
        ticks=((0.0, "–"),) * (None in values) + tuple((lifted(w), text) for w, text in marks),
    )


def _word(value: float | str) -> str:
    return str(value) if isinstance(value, str | int) else f"{value:.3g}"


def _to_scale(
    numbers: Sequence[float], log: bool
) -> tuple[dict[float | str, float], list[tuple[float, str]]]:
    """Where each number lies between the least and the largest, and ticks."""
    scale, back = (math.log, math.exp) if log else (float, float)
    low, high = scale(min(numbers)), scale(max(numbers))
    width = high - low or 1.0
    place: dict[float | str, float] = {v: (scale(v) - low) / width for v in numbers}
    steps = sorted(place.values())
    if all(b - a > NEAR for a, b in pairwise(steps)):
        return place, [(where, _word(v)) for v, where in place.items()]
    steps = [i / (PARALLEL_TICKS - 1) for i in range(PARALLEL_TICKS)]
    return place, [(step, f"{back(low + step * width):.3g}") for step in steps]
