"""Spaces: which keys of the base config a sweep varies, and the cells or domains that gives.

A space is one of `grid`, `zip`, `one_factor`, `leave_one_out`, `union` (these list cells) and
`optuna` (which describes domains to draw from); `exclude` takes cells out of what is listed.
"""

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ascl.config import Section, Tree, merge
from ascl_sweep.domains import (
    Changes,
    Domain,
    Value,
    at_least_one,
    canonical,
    each_once,
    is_one_of,
    one_of,
    some_keys,
    the_one,
)

__all__ = ["Axis", "Cell", "Domain", "OptunaSpace", "Space", "flat", "nested", "proving_cells"]

MAX_CELLS = 100_000
ABSENT: Any = object()


def nested(flat: Mapping[str, Any]) -> Tree:
    """{"optim.lr": 0.1} → {"optim": {"lr": 0.1}}."""
    tree: Tree = {}
    for key, value in flat.items():
        leaf = value
        for part in reversed(key.split(".")):
            leaf = {part: leaf}
        tree = merge(tree, leaf)
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"optim": {"lr": 0.1}} → {"optim.lr": 0.1}."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


@dataclass(frozen=True, eq=False)
class Cell:
    """One arm of a sweep: what it changes in the base, by dotted key."""

    changes: Mapping[str, Any]
    name: str = ""
    """Of the component that `leave_one_out` takes away."""

    @cached_property
    def key(self) -> Hashable:
        return frozenset((k, canonical(v)) for k, v in self.changes.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def value(self, key: str, base: Mapping[str, Any]) -> Any:
        """What the cell has at a key, its own or the base's."""
        return self.changes.get(key, base.get(key, ABSENT))

    def matches(self, wanted: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
        """Whether it has all these values; a list stands for any of its values."""
        return all(is_one_of(self.value(key, base), value) for key, value in wanted.items())


@dataclass(frozen=True)
class Axis:
    """A key that varies, where the file says so, and over what."""

    place: str
    key: str
    values: tuple[Any, ...]


def _equally_long(axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
    if len({len(values) for values in axes.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in axes.items())
        raise ValueError(f"lists that are zipped must be equally long, got {lengths}")
    return axes


Axes = Annotated[
    dict[str, Annotated[list[Value], AfterValidator(each_once)]], AfterValidator(some_keys)
]
ZippedAxes = Annotated[
    dict[str, Annotated[list[Value], AfterValidator(at_least_one)]],
    AfterValidator(some_keys),
    AfterValidator(_equally_long),
]


class OptunaSpace(Section):
    sampler: Literal["tpe", "gp", "random"] = "tpe"
    domains: Annotated[dict[str, Domain], AfterValidator(some_keys)]
    """What each searched key may be."""


class Space(
    Section,
    json_schema_extra=one_of(("grid", "zip", "one_factor", "leave_one_out", "union", "optuna")),
):
    """What of the base is varied, in one of the forms; with none, the base is the only cell."""

    KINDS: ClassVar = ("grid", "zip", "one_factor", "leave_one_out", "union", "optuna")

    grid: Axes | None = None
    """Every combination; the first key varies slowest."""
    zip: ZippedAxes | None = None
    """The first values of all keys together, then the second, and so on."""
    one_factor: Axes | None = None
    """The base, then each key varied alone."""
    leave_one_out: Annotated[dict[str, Changes], AfterValidator(some_keys)] | None = None
    """The base, then the base without each component: its name, and what takes it away."""
    union: Annotated[list["Space"], AfterValidator(at_least_one)] | None = None
    """The cells of several spaces, one after the other."""
    optuna: OptunaSpace | None = None
    """Domains to draw from."""
    exclude: list[Changes] = Field(default_factory=list)
    """Cells to leave out: those with all these values; a list stands for any of its values."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "base" and self.exclude:
            the_one(self, self.KINDS)
        if self.optuna is not None and self.exclude:
            raise ValueError("`exclude` takes cells out of a list; with optuna use a domain's when")
        if any(space.optuna is not None for space in self.union or ()):
            raise ValueError("a union lists cells, and optuna has none; give it a file of its own")
        if self.count() > MAX_CELLS:
            raise ValueError(
                f"must have at most {MAX_CELLS:,} cells, got {self.count():,}; "
                "list fewer values, or search with optuna"
            )
        return self

    @property
    def kind(self) -> str:
        empty = all(getattr(self, name) is None for name in self.KINDS)
        return "base" if empty else the_one(self, self.KINDS)

    @property
    def _axes(self) -> dict[str, list[Any]]:
        return self.grid or self.zip or self.one_factor or {}

    def count(self) -> int:
        """How many cells there are before exclusion, duplicates included."""
        lengths = [len(values) for values in self._axes.values()]
        counts = {
            "grid": math.prod(lengths),
            "zip": lengths[0] if lengths else 0,
            "one_factor": 1 + sum(lengths),
            "leave_one_out": 1 + len(self.leave_one_out or ()),
            "union": sum(space.count() for space in self.union or ()),
            "optuna": 0,
            "base": 1,
        }
        return counts[self.kind]

    def axes(self, place: str = "space") -> Iterator[Axis]:
        """Every key that varies, in file order."""
        place = f"{place}.{self.kind}"
        for key, values in self._axes.items():
            yield Axis(f"{place}.{key}", key, tuple(values))
        for name, changes in (self.leave_one_out or {}).items():
            for key, value in changes.items():
                yield Axis(f"{place}.{name}.{key}", key, (value,))
        for i, space in enumerate(self.union or ()):
            yield from space.axes(f"{place}.{i}")
        for key, domain in (self.optuna.domains if self.optuna else {}).items():
            yield Axis(f"{place}.domains.{key}", key, domain.ends)

    def listed(self, base: Mapping[str, Any]) -> list[Cell]:
        """The cells before exclusion, in file order."""
        axes = self._axes
        if self.grid is not None:
            return [Cell(dict(zip(axes, row, strict=True))) for row in product(*axes.values())]
        if self.zip is not None:
            rows = zip(*axes.values(), strict=True)
            return [Cell(dict(zip(axes, row, strict=True))) for row in rows]
        if self.one_factor is not None:
            return [Cell({}), *(Cell({k: v}) for k, values in axes.items() for v in values)]
        if self.leave_one_out is not None:
            parts = self.leave_one_out.items()
            return [Cell({}), *(Cell(dict(changes), name) for name, changes in parts)]
        if self.union is not None:
            return [cell for space in self.union for cell in space.cells(base)]
        return [] if self.optuna else [Cell({})]

    def cells(self, base: Mapping[str, Any]) -> list[Cell]:
        """The cells; `base` has the values, by dotted key, of what a cell does not change."""
        return [
            cell
            for cell in self.listed(base)
            if not any(cell.matches(wanted, base) for wanted in self.exclude)
        ]

    def exclusions(self, place: str = "space") -> Iterator[tuple[str, "Space", dict[str, Any]]]:
        """Every entry of `exclude`, with its place and the space that it is part of."""
        for i, wanted in enumerate(self.exclude):
            yield f"{place}.exclude.{i}", self, wanted
        for i, space in enumerate(self.union or ()):
            yield from space.exclusions(f"{place}.union.{i}")


def proving_cells(domains: Mapping[str, Domain], base: Mapping[str, Any]) -> list[Cell]:
    """Points that show both ends of every domain: all first, all last, and each end by itself.

    `domains` are in order, and `base` lacks the searched keys.
    """

    def point(picked: dict[str, Any], end: int) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        for key, domain in domains.items():
            if Cell(chosen).matches(domain.when or {}, base):
                chosen[key] = picked.get(key, domain.ends[end])
        return chosen

    def with_conditions(key: str, value: Any) -> dict[str, Any]:
        picked = {key: value}
        for other, allowed in (domains[key].when or {}).items():
            options = allowed if isinstance(allowed, list) else [allowed]
            possible = [v for v in options if other in domains and domains[other].has(v)]
            if possible:
                picked |= with_conditions(other, possible[0])
        return picked

    points = [point({}, 0), point({}, -1)]
    points += [
        point(with_conditions(key, value), 0)
        for key, domain in domains.items()
        for value in domain.ends
    ]
    return list(dict.fromkeys(map(Cell, points)))
