"""Spaces: the keys of the base config that a sweep varies, and the resulting cells or domains.

A space has one form, named by its key: `grid`, `zip`, `one_factor`, `leave_one_out` and `union`
list cells; the name of a searcher, such as `optuna`, contains domains to draw from. `exclude`
removes listed cells.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Protocol, Self, TypeVar, get_args

from pydantic import AfterValidator, ConfigDict, Field, RootModel, create_model, model_validator

from ascl_sweep.search.searchers.base import space_models
from ascl_sweep.spec.domains import (
    BASE,
    Axis,
    Cell,
    Changes,
    Domain,
    DomainSpace,
    OneOf,
    Value,
    at_least_one,
    each_once,
    some_keys,
)

MAX_CELLS = 100_000


class Form(Protocol):
    """The listed cells or the domains of a space, before `exclude`."""

    def count(self) -> int:
        """Return the number of cells, duplicates included."""
        ...

    def axes(self, place: str) -> Iterator[Axis]:
        """Yield every key that varies, in file order."""
        ...

    def cells(self, base: Mapping[str, object]) -> list[Cell]:
        """Return the cells in file order; `base` has the base config's values by dotted key."""
        ...


def _check_lengths(axes: dict[str, list[object]]) -> dict[str, list[object]]:
    if len({len(values) for values in axes.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in axes.items())
        raise ValueError(f"all lists of a zip must have the same length, got {lengths}")
    return axes


Axes = Annotated[
    dict[str, Annotated[list[Value], AfterValidator(each_once)]], AfterValidator(some_keys)
]
ZippedAxes = Annotated[
    dict[str, Annotated[list[Value], AfterValidator(at_least_one)]],
    AfterValidator(some_keys),
    AfterValidator(_check_lengths),
]
Root = TypeVar("Root")


class _Form(RootModel[Root]):
    model_config = ConfigDict(frozen=True, strict=True)


class AxesForm(_Form[dict[str, list[object]]]):
    """A form that lists values for each key."""

    root: Axes

    def axes(self, place: str) -> Iterator[Axis]:
        for key, values in self.root.items():
            yield Axis(f"{place}.{key}", key, tuple(values))


class Grid(AxesForm):
    """Every combination of the listed values; the first key varies slowest."""

    def count(self) -> int:
        return math.prod(map(len, self.root.values()))

    def cells(self, base: Mapping[str, object]) -> list[Cell]:
        rows = product(*self.root.values())
        return [Cell(dict(zip(self.root, row, strict=True))) for row in rows]


class Zip(AxesForm):
    """One cell per list position: the first value of every key, then the second, and so on."""

    root: ZippedAxes

    def count(self) -> int:
        return len(next(iter(self.root.values())))

    def cells(self, base: Mapping[str, object]) -> list[Cell]:
        rows = zip(*self.root.values(), strict=True)
        return [Cell(dict(zip(self.root, row, strict=True))) for row in rows]


class OneFactor(AxesForm):
    """The base, then one cell per listed value that changes only that key."""

    def count(self) -> int:
        return 1 + sum(map(len, self.root.values()))

    def cells(self, base: Mapping[str, object]) -> list[Cell]:
        return [BASE, *(Cell({k: v}) for k, values in self.root.items() for v in values)]


class LeaveOneOut(_Form[dict[str, dict[str, object]]]):
    """The base, then one cell per component, with the changes that remove the component."""

    root: Annotated[dict[str, Changes], AfterValidator(some_keys)]

    def count(self) -> int:
        return 1 + len(self.root)

    def axes(self, place: str) -> Iterator[Axis]:
        for name, changes in self.root.items():
            for key, value in changes.items():
                yield Axis(f"{place}.{name}.{key}", key, (value,))

    def cells(self, base: Mapping[str, object]) -> list[Cell]:
        return [BASE, *(Cell(dict(changes), name) for name, changes in self.root.items())]


class Union(_Form[list["Space"]]):
    """The cells of several spaces, in order."""

    root: Annotated[list["Space"], AfterValidator(at_least_one)]

    def count(self) -> int:
        return sum(space.form.count() for space in self.root)

    def axes(self, place: str) -> Iterator[Axis]:
        for i, space in enumerate(self.root):
            yield from space.axes(f"{place}.{i}")

    def cells(self, base: Mapping[str, object]) -> list[Cell]:
        return [cell for space in self.root for cell in space.cells(base)]


ONLY_BASE = OneFactor.model_construct({})
"""The form of an empty space: the base is the only cell."""


class SpaceSection(OneOf):
    """The keys that the sweep varies, in exactly one form; if empty, the base is the only cell."""

    OPTIONS = frozenset({"exclude"})

    grid: Grid | None = None
    """Run every combination of the listed values: `{key: [value, …], …}`."""
    zip: Zip | None = None
    """Combine lists of the same length position by position: `{key: [value, …], …}`."""
    one_factor: OneFactor | None = None
    """Run the base, then change one key at a time to each listed value: `{key: [value, …], …}`."""
    leave_one_out: LeaveOneOut | None = None
    """Run the base, then remove one named component at a time: `{name: {key: value, …}, …}`."""
    union: Union | None = None
    """Run the cells of several spaces, given as a list; equal cells run once."""
    exclude: list[Changes] = Field(default_factory=list)
    """Cells to remove: `[{key: value, …}, …]`. An entry removes the cells that have all its values;
    a list of values matches any of its items. Default: none. Not allowed with a searcher."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.exclude and not self.model_fields_set & set(self.kinds()):
            _ = self.kind  # raises an error that lists the forms
        if self.domains and self.exclude:
            raise ValueError(
                f"`exclude` needs listed cells and does not work with {self.kind}; "
                "use `when` in a domain instead"
            )
        for space in self.union.root if self.union else ():
            if space.domains:
                raise ValueError(
                    f"a union cannot contain {space.kind}, which lists no cells; "
                    "move it to a separate sweep file"
                )
        if self.form.count() > MAX_CELLS:
            raise ValueError(
                f"must have at most {MAX_CELLS:,} cells, got {self.form.count():,}; "
                "list fewer values or search with optuna"
            )
        return self

    @property
    def form(self) -> Form:
        if all(getattr(self, name) is None for name in self.kinds()):
            return ONLY_BASE
        form: Form = getattr(self, self.kind)
        return form

    @property
    def domains(self) -> Mapping[str, Domain]:
        """The domains that a searcher draws from; empty if the space lists cells."""
        return self.form.domains if isinstance(self.form, DomainSpace) else {}

    def axes(self, place: str = "space") -> Iterator[Axis]:
        """Yield every key that varies, in file order."""
        if self.form is not ONLY_BASE:
            yield from self.form.axes(f"{place}.{self.kind}")

    def cells(self, base: Mapping[str, object]) -> list[Cell]:
        """Return the cells after `exclude`; `base` has the base config's values by dotted key."""
        return [
            cell
            for cell in self.form.cells(base)
            if not any(cell.matches(wanted, base) for wanted in self.exclude)
        ]

    def exclusions(self, place: str = "space") -> Iterator[tuple[str, Self, dict[str, object]]]:
        """Yield every entry of `exclude` with its path in the file and its space."""
        for i, wanted in enumerate(self.exclude):
            yield f"{place}.exclude.{i}", self, wanted
        for i, space in enumerate(self.union.root if self.union else ()):
            yield from space.exclusions(f"{place}.union.{i}")  # type: ignore[misc]


AXES_FORMS = frozenset(
    name
    for name, field in SpaceSection.model_fields.items()
    if any(isinstance(t, type) and issubclass(t, AxesForm) for t in get_args(field.annotation))
)
"""Names of the forms that list values for each config key."""

if TYPE_CHECKING:
    Space = SpaceSection
else:
    _drawn = {
        name: (model | None, Field(None, description=model.__doc__))
        for name, model in space_models().items()
    }
    Space = create_model("Space", __base__=SpaceSection, __doc__=SpaceSection.__doc__, **_drawn)
    Union.model_rebuild()
    SpaceSection.model_rebuild()
    Space.model_rebuild(force=True)
