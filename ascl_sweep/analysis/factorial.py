"""Factorial effects of grids: main effects and two-way interactions with the seed as block.

A main effect is the mean difference of a level from its factor's base level, averaged over all
combinations of the other factors. An interaction is a difference of such differences. Both are
contrasts of cell scores within a seed, so n complete seeds give n values of each contrast.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.comparison import Arm
from ascl_sweep.analysis.datasets import distinguishing_keys, split_by_dataset
from ascl_sweep.analysis.inference import Estimate, Inference, decide, estimate_pool
from ascl_sweep.contracts import Scalar
from ascl_sweep.spec.metrics import Metric

Kind = Literal["main", "interaction"]
MOST_INTERACTIONS = 200
"""A grid with more interactions shows main effects only."""
DECIMALS = 9
"""Contrasts are rounded, because equal scores may differ by a floating-point error."""


@dataclass(frozen=True)
class Factor:
    """A key that the grid crosses with the others."""

    key: str
    title: str
    levels: tuple[str, ...]
    """Display names; the base level is first."""


@dataclass(frozen=True)
class Effect:
    """One contrast of a grid: `ASCL vs MoCo`, or `(ASCL vs MoCo) × (epochs = 800 vs 200)`."""

    name: str
    kind: Kind
    inference: Inference | None
    """None if no seed is complete in all its cells."""


@dataclass(frozen=True)
class Factorial:
    """The effects of the arms of one dataset that form a full grid."""

    dataset: Scalar
    """None if the arms have no dataset."""
    factors: tuple[Factor, ...]
    effects: tuple[Effect, ...]
    """Main effects, then interactions, in the order of the factors."""
    excluded: tuple[str, ...]
    """Arms outside the grid, such as MoCo, which does not use K."""
    region: float
    """Half-width of the equivalence region; 0 if there is no equivalence test."""


Level = Scalar | Literal["not used"]
Cells = dict[tuple[Level, ...], Arm]
"""Arms by their level of each factor."""
Weights = Mapping[int, float]
"""Weight of each cell of a contrast, by its place."""


@dataclass(frozen=True)
class _Contrast:
    name: str
    kind: Kind
    weights: Weights


@dataclass(frozen=True)
class _Grid:
    """A full grid, before its effects are estimated."""

    dataset: Scalar
    factors: tuple[Factor, ...]
    arms: tuple[Arm, ...]
    contrasts: tuple[_Contrast, ...]
    excluded: tuple[str, ...]


def factorials(
    arms: Sequence[Arm],
    base: Mapping[str, Scalar],
    metric: Metric,
    region: float,
    seeds: Sequence[int] = (),
) -> tuple[Factorial, ...]:
    """Estimate main effects and two-way interactions on each dataset that has a full grid.

    The correction counts all main effects of all datasets as one family, finished or not, and all
    interactions as another.

    Args:
        arms: The arms of one table.
        base: The base level of each factor. A factor whose base level is not in the grid uses its
            first level.
        metric: The metric that scores the arms.
        region: Half-width of the equivalence region, for metrics in percent.
        seeds: The planned seeds. Nothing is decided before they have ended in all cells of a grid.

    Returns:
        One value for each dataset whose arms cross two or more factors.
    """
    grids = [
        grid
        for dataset, found in split_by_dataset(arms).items()
        if (grid := _find_grid(dataset, found, base)) is not None
    ]
    kinds = [contrast.kind for grid in grids for contrast in grid.contrasts]
    region = region if metric.percent else 0.0
    families: dict[Kind, int] = {kind: kinds.count(kind) for kind in ("main", "interaction")}
    return tuple(
        Factorial(
            dataset=grid.dataset,
            factors=grid.factors,
            effects=tuple(_effects(grid, families, metric, region, seeds)),
            excluded=grid.excluded,
            region=region,
        )
        for grid in grids
    )


# ---------------------------------------------------------------- the grid


def _find_grid(dataset: Scalar, arms: Sequence[Arm], base: Mapping[str, Scalar]) -> _Grid | None:
    keys = distinguishing_keys(arms)
    cells = cross({tuple(_level(arm, key) for key in keys): arm for arm in arms})
    factors: list[Factor] = []
    places: list[dict[Level, int]] = []
    varied = []
    for i, key in enumerate(keys):
        levels = list(dict.fromkeys(cell[i] for cell in cells))
        if len(levels) < 2:
            continue
        if key in base and base[key] in levels:
            levels.sort(key=lambda level: level != base[key])
        names = _level_names(key, levels, [(cell[i], arm) for cell, arm in cells.items()])
        factors.append(Factor(key, labels.title_of(key), names))
        places.append({level: place for place, level in enumerate(levels)})
        varied.append(i)
    if len(factors) < 2:
        return None
    coordinates = [
        tuple(place[cell[i]] for i, place in zip(varied, places, strict=True)) for cell in cells
    ]
    inside = {id(arm) for arm in cells.values()}
    return _Grid(
        dataset=dataset,
        factors=tuple(factors),
        arms=tuple(cells.values()),
        contrasts=tuple(_contrasts(factors, coordinates)),
        excluded=tuple(arm.label for arm in arms if id(arm) not in inside),
    )


def _level(arm: Arm, key: str) -> Level:
    return arm.values.get(key, "not used")


def cross(cells: Cells) -> Cells:
    """Return a subset of the cells that is a full grid.

    Levels with a single cell are removed. While combinations of levels are missing, the level with
    the smallest share of existing combinations is removed (of equal shares the last one). Then the
    level "not used" is removed where a factor has other levels.
    """
    counts = _count(cells)
    cells = {
        cell: arm
        for cell, arm in cells.items()
        if all(counts[level] > 1 for level in enumerate(cell))
    }
    while cells:
        counts = _count(cells)
        levels = Counter(i for i, _ in counts)
        size = math.prod(levels.values())
        if len(cells) == size:
            break
        worst, level = min(reversed(counts), key=lambda at: counts[at] * levels[at[0]])
        cells = {cell: arm for cell, arm in cells.items() if cell[worst] != level}
    used = [any(level != "not used" for level in column) for column in zip(*cells, strict=True)]
    return {
        cell: arm
        for cell, arm in cells.items()
        if all(level != "not used" or not others for level, others in zip(cell, used, strict=True))
    }


def _count(cells: Cells) -> Counter[tuple[int, Level]]:
    """Count the cells of each level of each factor."""
    width = max(map(len, cells), default=0)
    return Counter((i, cell[i]) for i in range(width) for cell in cells)


def _level_names(
    key: str, levels: Sequence[Level], arms: Sequence[tuple[Level, Arm]]
) -> tuple[str, ...]:
    """Name the levels of a factor; a method by its system's name if all its cells share it."""
    if key in labels.SYSTEM_KEYS:
        systems = [{labels.system(arm.config) for own, arm in arms if own == x} for x in levels]
        names = tuple(name for found in systems for name in found)
        if len(set(names)) == len(names) == len(levels):
            return names
    return tuple(labels.key_value(key, level) for level in levels)


# ---------------------------------------------------------------- contrasts


def _contrasts(
    factors: Sequence[Factor], coordinates: Sequence[tuple[int, ...]]
) -> Iterator[_Contrast]:
    steps = [
        [(i, level) for level in range(1, len(factor.levels))] for i, factor in enumerate(factors)
    ]
    for i, level in (step for own in steps for step in own):
        name = _step_name(factors[i], level)
        yield _Contrast(name, "main", _weights(coordinates, {i: level}))
    pairs = [(a, b) for first, second in combinations(steps, 2) for a in first for b in second]
    for (i, a), (j, b) in pairs if len(pairs) <= MOST_INTERACTIONS else ():
        name = f"({_step_name(factors[i], a)}) × ({_step_name(factors[j], b)})"
        yield _Contrast(name, "interaction", _weights(coordinates, {i: a, j: b}))


def _step_name(factor: Factor, level: int) -> str:
    base = factor.levels[0].removeprefix(f"{labels.name_of(factor.key)} = ")
    return f"{factor.levels[level]} vs {base}"


def _weights(coordinates: Sequence[tuple[int, ...]], step: Mapping[int, int]) -> Weights:
    """Return the weights of the difference (of differences) between levels and base levels."""
    signs = {
        place: math.prod((at[i] == level) - (at[i] == 0) for i, level in step.items())
        for place, at in enumerate(coordinates)
    }
    each = sum(map(abs, signs.values())) / 2 ** len(step)
    return {place: sign / each for place, sign in signs.items() if sign}


# ---------------------------------------------------------------- estimates


def _effects(
    grid: _Grid,
    families: Mapping[Kind, int],
    metric: Metric,
    region: float,
    seeds: Sequence[int],
) -> Iterator[Effect]:
    # Every effect borrows the variance of the others, so it waits for all cells of the grid.
    waiting = not all(arm.has_ended(seed) for arm in grid.arms for seed in seeds)
    for kind in ("main", "interaction"):
        own = [contrast for contrast in grid.contrasts if contrast.kind == kind]
        estimates = _estimate([contrast.weights for contrast in own], grid.arms)
        for contrast, estimate in zip(own, estimates, strict=True):
            lost = [w for place, w in contrast.weights.items() if grid.arms[place].lost_seeds]
            inference = None
            if estimate is not None:
                inference = decide(
                    estimate,
                    families[contrast.kind],
                    region,
                    higher_is_better=metric.higher_is_better,
                    arm_lost_seeds=any(weight > 0 for weight in lost),
                    baseline_lost_seeds=any(weight < 0 for weight in lost),
                )
                if waiting:
                    inference = inference.wait(max(0, len(seeds) - estimate.n))
            yield Effect(contrast.name, contrast.kind, inference)


def _estimate(contrasts: Sequence[Weights], arms: Sequence[Arm]) -> list[Estimate | None]:
    """Estimate the contrasts of one kind, with information on the variance from each other.

    A contrast that averages over many cells varies less than others. Each is therefore scaled to
    weights of length 1, which have the same variance if the cells have, and scaled back.
    """
    lengths = [math.hypot(*weights.values()) for weights in contrasts]
    pool = [
        {seed: round(value / length, DECIMALS) for seed, value in _by_seed(weights, arms)}
        for weights, length in zip(contrasts, lengths, strict=True)
    ]
    return [
        None if found is None else _scale(found, length)
        for found, length in zip(estimate_pool(pool), lengths, strict=True)
    ]


def _by_seed(weights: Weights, arms: Sequence[Arm]) -> Iterator[tuple[int, float]]:
    """Yield the contrast of each seed that is complete in all its cells."""
    for seed in sorted(set.intersection(*(set(arms[place].scores) for place in weights))):
        yield (
            seed,
            math.fsum(weight * arms[place].scores[seed] for place, weight in weights.items()),
        )


def _scale(estimate: Estimate, factor: float) -> Estimate:
    se = None if estimate.se is None else estimate.se * factor
    return replace(estimate, mean=estimate.mean * factor, se=se)
