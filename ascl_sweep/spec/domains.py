"""Cells (the arms that a space lists) and domains (the values that a searched key may take)."""

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict

from ascl.sections import Section

Number = int | float

ABSENT = object()


def canonical(value: object) -> Hashable:
    """Return a hashable form of a config value: 1 equals 1.0, but neither equals true."""
    if isinstance(value, list | tuple):
        return tuple(map(canonical, value))
    if isinstance(value, Number) and not isinstance(value, bool):
        return ("number", value)
    return (type(value).__name__, repr(value))


def is_one_of(value: object, wanted: object) -> bool:
    """Whether a value equals `wanted`, or one of its items if `wanted` is a list."""
    several = wanted if isinstance(wanted, list) else [wanted]
    return canonical(value) in set(map(canonical, several))


@dataclass(frozen=True, eq=False)
class Cell:
    """One arm of a sweep: its changes to the base config, by dotted key."""

    changes: Mapping[str, object]
    name: str = ""
    """Name of the component that `leave_one_out` removes; empty for other cells."""

    @cached_property
    def key(self) -> Hashable:
        return frozenset((k, canonical(v)) for k, v in self.changes.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def value(self, key: str, base: Mapping[str, object]) -> object:
        """Return the cell's value at a key: its own change, or else the value in the base."""
        return self.changes.get(key, base.get(key, ABSENT))

    def matches(self, wanted: Mapping[str, object], base: Mapping[str, object]) -> bool:
        """Whether the cell has all wanted values; a list matches any of its items."""
        return all(is_one_of(self.value(key, base), value) for key, value in wanted.items())


BASE = Cell({})


@dataclass(frozen=True)
class Axis:
    """A key that varies: its path in the sweep file, its name and its values."""

    place: str
    key: str
    values: tuple[object, ...]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        raise ValueError(f"must be a plain value, got {value!r}; vary each of its keys separately")
    return value


def at_least_one(values: list[object]) -> list[object]:
    if not values:
        raise ValueError("must list at least one value, got []")
    return values


def each_once(values: list[object]) -> list[object]:
    seen: set[Hashable] = set()
    for value in values:
        if canonical(value) in seen:
            raise ValueError(f"must list each value once, got {value!r} twice")
        seen.add(canonical(value))
    return at_least_one(values)


def some_keys(mapping: dict[str, object]) -> dict[str, object]:
    if not mapping:
        raise ValueError("must name at least one key, got {}")
    return mapping


def _check_bounds(value: object) -> tuple[Number, ...]:
    if not isinstance(value, list) or len(value) != 2 or not all(map(_is_finite, value)):
        raise ValueError(f"must be two finite numbers [low, high], got {value!r}")
    return tuple(value)


def _is_finite(value: object) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool) and abs(value) < 1e300


Value = Annotated[object, AfterValidator(_plain)]
Changes = Annotated[dict[str, Value], AfterValidator(some_keys)]
_BOUNDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
Bounds = Annotated[tuple[Number, Number], BeforeValidator(_check_bounds), WithJsonSchema(_BOUNDS)]


def _require_one(schema: JsonDict, section: type["OneOf"]) -> None:
    schema["oneOf"] = [{"required": [name]} for name in section.kinds()]


class OneOf(Section):
    """A section that must have exactly one of several keys; that key determines its kind."""

    model_config = ConfigDict(json_schema_extra=_require_one)
    OPTIONS: ClassVar[frozenset[str]] = frozenset()
    """Keys that are allowed with every kind."""

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        return tuple(name for name in cls.model_fields if name not in cls.OPTIONS)

    @property
    def kind(self) -> str:
        """Return the key that is given; raise ValueError unless there is exactly one."""
        given = [name for name in self.kinds() if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"must have exactly one of {', '.join(self.kinds())}, "
                f"got {', '.join(given) or 'none'}"
            )
        return given[0]


class Domain(OneOf):
    """The values of a searched key: exactly one of uniform, log_uniform, int and choice."""

    OPTIONS = frozenset({"log", "step", "when"})

    log: bool = False
    """Draw an `int` on a logarithmic scale (true or false). Default: false."""
    step: Annotated[float, Field(gt=0)] | None = None
    """Distance between neighboring values of `uniform` or `int`, above 0 and at most high − low.
    Default: 1 for `int`, continuous for `uniform`."""
    when: Changes | None = None
    """Search this key only if other keys have these values: `{key: value}`; a list matches any of
    its items. Default: always."""
    uniform: Bounds | None = None
    """Draw a number between `[low, high]` uniformly."""
    log_uniform: Bounds | None = None
    """Draw a number between `[low, high]` on a logarithmic scale; low must be above 0."""
    choice: Annotated[list[Value], AfterValidator(each_once)] | None = None
    """Draw one of the listed values; each value is listed once."""
    int: Bounds | None = None  # last: below this line `int` is the field, not the type
    """Draw a whole number from `[low, high]`, both included."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if wrong := list(self._wrong(self.kind)):
            raise ValueError("; ".join(wrong))
        return self

    def _wrong(self, kind: str) -> Iterator[str]:
        if self.log and kind != "int":
            yield f"`log` is allowed only with int, got log: true with {kind}" + (
                "; use log_uniform" if kind == "uniform" else ""
            )
        if self.step is not None and (kind not in ("uniform", "int") or self.log):
            yield "`step` is allowed only with uniform, or with int without `log`"
        if kind == "choice":
            return
        low, high = self.low, self.high
        if not low < high:
            yield f"low must be below high, got [{low}, {high}]"
        elif self.step is not None and self.step > high - low:
            yield f"step must be at most high − low, got step={self.step} in [{low}, {high}]"
        if (self.log or kind == "log_uniform") and low <= 0:
            yield f"low must be above 0 on a logarithmic scale, got [{low}, {high}]"
        if kind == "int" and any(v != math.floor(v) for v in (low, high, self.step or 1)):
            yield f"must be whole numbers, got [{low}, {high}]" + (
                f" with step={self.step}" if self.step else ""
            )

    @property
    def low(self) -> Number:
        return self._bound(0)

    @property
    def high(self) -> Number:
        return self._bound(1)

    def _bound(self, end: Literal[0, 1]) -> Number:
        if self.int is not None:
            value = self.int[end]
            return math.floor(value) if value == math.floor(value) else value
        bounds = self.uniform or self.log_uniform
        assert bounds is not None, "a choice has no bounds"
        return float(bounds[end])

    @property
    def choices(self) -> tuple[object, ...]:
        return tuple(self.choice or ())

    @property
    def ends(self) -> tuple[object, ...]:
        """The values to validate: every choice, or both bounds (and the second value of an int)."""
        if self.choice is not None:
            return self.choices
        if self.int is None or self.log:
            return self.low, self.high
        return tuple(dict.fromkeys((self.low, self.low + math.floor(self.step or 1), self.high)))

    def has(self, value: object) -> bool:
        """Whether the domain, a choice or an int, contains this value."""
        if self.choice is not None:
            return is_one_of(value, self.choice)
        if isinstance(value, bool) or not isinstance(value, Number):
            return False
        return value == math.floor(value) and self.low <= value <= self.high


def in_order(domains: Mapping[str, Domain]) -> tuple[dict[str, Domain], list[str]]:
    """Sort domains so that every key follows the keys in its `when`; also return circular keys."""
    placed: dict[str, Domain] = {}
    waiting = dict(domains)
    while ready := [
        key
        for key, domain in waiting.items()
        if not any(other in waiting for other in domain.when or ())
    ]:
        placed[ready[0]] = waiting.pop(ready[0])
    return placed, list(waiting)


class DomainSpace(Section):
    """A space that a searcher draws from; each searcher may add settings.

    The section is named after the searcher's module: `space: {optuna: {domains: …}}`.
    """

    domains: Annotated[dict[str, Domain], AfterValidator(some_keys)]
    """The values of each searched key, as `{dotted.key: domain}`, with at least one key."""

    def count(self) -> int:
        return 0

    def axes(self, place: str) -> Iterator[Axis]:
        for key, domain in self.domains.items():
            yield Axis(f"{place}.domains.{key}", key, domain.ends)

    def cells(self, base: Mapping[str, object]) -> list[Cell]:
        return []


def corner_cells(domains: Mapping[str, Domain], base: Mapping[str, object]) -> list[Cell]:
    """Return cells that cover both ends of every domain: all low, all high, and each end alone.

    `domains` must be sorted by `in_order`; `base` must not contain the searched keys.
    """

    def point(picked: dict[str, object], end: int) -> dict[str, object]:
        chosen: dict[str, object] = {}
        for key, domain in domains.items():
            if Cell(chosen).matches(domain.when or {}, base):
                chosen[key] = picked.get(key, domain.ends[end])
        return chosen

    def with_conditions(key: str, value: object) -> dict[str, object]:
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
