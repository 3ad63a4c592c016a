"""Axes without effect: varied keys whose values all describe the same run.

An example is K (`method.num_neighbours`) with `method.relabel: none`. A key that has an effect in
some of the cells is not reported: tables may repeat the result of MoCo in every column of K.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from ascl.config import RunConfig
from ascl.errors import ConfigError, Issue
from ascl.sections import Section
from ascl.yaml_io import parse_yaml
from ascl_sweep.spec.domains import Cell, canonical, corner_cells

if TYPE_CHECKING:
    from ascl_sweep.spec.sweep import SweepSpec

MANY = 2_000
"""Maximum number of configs built per axis; an axis that passes this limit is not reported."""


def find_axes_without_effect(spec: "SweepSpec") -> Iterator[Issue]:
    """Yield a warning, with file and line, for every varied key that changes no run."""
    _, lines = parse_yaml(spec.text)
    seen: set[str] = set()
    for axis in spec.space.axes():
        values = _values(spec, axis.key)
        if axis.key in seen or len(values) < 2:
            continue
        seen.add(axis.key)
        if (config := _config_without_effect(spec, axis.key, values)) is None:
            continue
        cause = _cause(spec, config, axis.key)
        message = (
            f"has no effect{cause[0]}, so its {len(values)} values give the same runs; "
            f"{cause[1] or 'remove the key from `space`'}"
        )
        line = lines.get(axis.place)
        yield Issue(axis.place, message, spec.file if line else None, line)


def _cells(spec: "SweepSpec") -> list[Cell]:
    return corner_cells(spec.domains, spec.unsearched) if spec.domains else list(spec.cells())


def _values(spec: "SweepSpec", key: str) -> list[object]:
    """Return the distinct values of a key, with that of the base if one value changes alone."""
    cells = [cell for cell in _cells(spec) if key in cell.changes]
    listed = {canonical(cell.changes[key]): cell.changes[key] for cell in cells}
    alone = all(len(cell.changes) == 1 for cell in cells)
    if len(listed) == 1 and alone and key in spec.base_values:
        listed[canonical(spec.base_values[key])] = spec.base_values[key]
    return list(listed.values())


def _config_without_effect(spec: "SweepSpec", key: str, values: list[object]) -> RunConfig | None:
    """Return a config of the sweep if the key has no effect in any cell; else None."""
    contexts: dict[Cell, None] = {}
    for cell in _cells(spec):
        if key in cell.changes:
            contexts[Cell({k: v for k, v in cell.changes.items() if k != key})] = None
    if not contexts:
        return None
    for i, context in enumerate(contexts):
        if (i + 1) * len(values) > MANY:
            return None
        ids = set()
        for value in values:
            try:
                config = spec.first_config({**context.changes, key: value})
            except ConfigError:  # the sweep does not have this combination
                return None
            ids.add(config.identity())
        if len(ids) > 1:
            return None
    return config


def _cause(spec: "SweepSpec", config: RunConfig, key: str) -> tuple[str, str]:
    """Return the setting that makes a key inert, and how to change it; empty if unknown."""
    section, _, field = key.partition(".")
    given = getattr(config, section, None)
    if not isinstance(given, Section) or field not in given.inert():
        return "", ""
    for other, info in type(given).model_fields.items():
        now = getattr(given, other)
        others = [
            value
            for value in _alternatives(info.annotation, now)
            if field not in given.model_copy(update={other: value}).inert()
        ]
        if other != field and others:
            name = f"{section}.{other}"
            place = next((a.place for a in spec.space.axes() if a.key == name), f"base.{name}")
            what = " or ".join(filter(None, [", ".join(map(str, others[:-1])), str(others[-1])]))
            return f" with {name} {now}", f"set {place} to {what}"
    return "", ""


def _alternatives(annotation: object, now: object) -> list[object]:
    """Return the other values of a choice; 1 for a number that is 0."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if value != now]
    return [1] if now == 0 and not isinstance(now, bool) else []
