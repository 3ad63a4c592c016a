"""Domains: what the values of a searched key may be, and the checks that all value lists share."""

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from ascl.config import Section


def canonical(value: Any) -> Hashable:
    """A value as what it means in a config: 1 is 1.0, but neither is true."""
    if isinstance(value, list | tuple):
        return tuple(map(canonical, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("number", value)
    return (type(value).__name__, repr(value))


def is_one_of(value: Any, wanted: Any) -> bool:
    """Whether a value is the wanted one, or among the wanted ones."""
    several = wanted if isinstance(wanted, list) else [wanted]
    return canonical(value) in set(map(canonical, several))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        raise ValueError(f"must be a plain value, got {value!r}; vary its keys by themselves")
    return value


def at_least_one(values: list[Any]) -> list[Any]:
    if not values:
        raise ValueError("must list at least one value, got []")
    return values


def each_once(values: list[Any]) -> list[Any]:
    seen: set[Hashable] = set()
    for value in values:
        if canonical(value) in seen:
            raise ValueError(f"must list each value once, got {value!r} twice")
        seen.add(canonical(value))
    return at_least_one(values)


def some_keys(mapping: dict[str, Any]) -> dict[str, Any]:
    if not mapping:
        raise ValueError("must name at least one key, got {}")
    return mapping


def _bounds(value: Any) -> Any:
    numbers = isinstance(value, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300 for v in value
    )
    if not numbers or len(value) != 2:
        raise ValueError(f"must be [low, high], two numbers, got {value!r}")
    return tuple(value)


Value = Annotated[Any, AfterValidator(_plain)]
Changes = Annotated[dict[str, Value], AfterValidator(some_keys)]
_BOUNDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
Bounds = Annotated[
    tuple[int | float, int | float], BeforeValidator(_bounds), WithJsonSchema(_BOUNDS)
]


def one_of(names: tuple[str, ...]) -> dict[str, Any]:
    """The JSON Schema of "exactly one of these keys"."""
    return {"oneOf": [{"required": [name]} for name in names]}


def the_one(section: Section, names: tuple[str, ...]) -> str:
    """Which of these keys is given; it must be exactly one."""
    given = [name for name in names if getattr(section, name) is not None]
    if len(given) != 1:
        raise ValueError(
            f"must have exactly one of {', '.join(names)}, got {', '.join(given) or 'none'}"
        )
    return given[0]


class Domain(Section, json_schema_extra=one_of(("uniform", "log_uniform", "int", "choice"))):
    """What a searched key may be."""

    KINDS: ClassVar = ("uniform", "log_uniform", "int", "choice")

    log: bool = False
    """Draw an `int` on a logarithmic scale."""
    step: Annotated[float, Field(gt=0)] | None = None
    """Distance between the values of `uniform` or `int`."""
    when: Changes | None = None
    """Searched only while these keys have these values; a list stands for any of its values."""
    uniform: Bounds | None = None
    log_uniform: Bounds | None = None
    choice: Annotated[list[Value], AfterValidator(each_once)] | None = None
    int: Bounds | None = None  # last: from here on the word means the field

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if wrong := list(self._wrong(the_one(self, self.KINDS))):
            raise ValueError("; ".join(wrong))
        return self

    def _wrong(self, kind: str) -> Iterator[str]:
        if self.log and kind != "int":
            yield f"`log` goes with int only, got log: true with {kind}" + (
                "; say log_uniform" if kind == "uniform" else ""
            )
        if self.step is not None and (kind not in ("uniform", "int") or self.log):
            yield "`step` goes with uniform and int without log only"
        if kind == "choice":
            return
        low, high = self.low, self.high
        if not low < high:
            yield f"low must be below high, got [{low}, {high}]"
        elif self.step is not None and self.step > high - low:
            yield f"step must be at most high − low, got step={self.step} in [{low}, {high}]"
        if (self.log or kind == "log_uniform") and low <= 0:
            yield f"a logarithmic scale needs low above 0, got [{low}, {high}]"
        if kind == "int" and any(v != math.floor(v) for v in (low, high, self.step or 1)):
            yield f"must be whole numbers, got [{low}, {high}]" + (
                f" with step={self.step}" if self.step else ""
            )

    @property
    def kind(self) -> Literal["uniform", "log_uniform", "int", "choice"]:
        return the_one(self, self.KINDS)  # type: ignore[return-value]

    @property
    def low(self) -> Any:
        return self._bounds[0]

    @property
    def high(self) -> Any:
        return self._bounds[1]

    @property
    def _bounds(self) -> tuple[Any, Any]:
        if self.int is not None:
            return tuple(math.floor(v) if v == math.floor(v) else v for v in self.int)  # type: ignore[return-value]
        bounds = self.uniform or self.log_uniform
        assert bounds is not None, "a choice has no bounds"
        return float(bounds[0]), float(bounds[1])

    @property
    def choices(self) -> tuple[Any, ...]:
        return tuple(self.choice or ())

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that prove it: both ends, an int next to the first, or every choice."""
        if self.choice is not None:
            return self.choices
        if self.int is None or self.log:
            return self.low, self.high
        return tuple(dict.fromkeys((self.low, self.low + math.floor(self.step or 1), self.high)))

    def has(self, value: Any) -> bool:
        """Whether it can come to be this value."""
        if self.choice is not None:
            return is_one_of(value, self.choice)
        whole = not isinstance(value, bool) and isinstance(value, int | float)
        return whole and value == math.floor(value) and bool(self.low <= value <= self.high)


def in_order(domains: Mapping[str, Domain]) -> tuple[dict[str, Domain], list[str]]:
    """The domains with every key after those its `when` looks at; and those that go in circles."""
    placed: dict[str, Domain] = {}
    waiting = dict(domains)
    while ready := [
        key
        for key, domain in waiting.items()
        if not any(other in waiting for other in domain.when or ())
    ]:
        placed[ready[0]] = waiting.pop(ready[0])
    return placed, list(waiting)
