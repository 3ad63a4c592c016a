"""Checks across the sections of a sweep, and of every config that the sweep can produce.

The cells, or both ends of every axis, are built as real `RunConfig`s. An error of a config is
reported at the axis, or at the key of the base, that caused the error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ascl.config import RunConfig, uneven_micro_batches
from ascl.errors import ConfigError, Issue, suggest_key, suggestion
from ascl.keys import describe_keys
from ascl.sections import Key
from ascl_sweep.spec.domains import BASE, Cell, Domain, canonical, corner_cells, in_order
from ascl_sweep.spec.metrics import METRICS
from ascl_sweep.spec.schema import config_keys

if TYPE_CHECKING:
    from ascl_sweep.spec.sweep import SweepSpec

MANY = 2_000
"""Up to this many cells are all checked; in larger spaces only the ends of the axes."""
ENOUGH = 20
"""Maximum number of reported cell errors; further ones mostly repeat the first."""


def find_issues(spec: "SweepSpec", changed: Sequence[str], unread: Iterable[str]) -> list[Issue]:
    """Return the conflicts between sections of a sweep.

    `changed` are the paths that overrides changed. `unread` are the sections that failed to parse;
    checks that depend on them are skipped.
    """
    unread = set(unread)
    issues = list(_check_axes(spec))
    odd = {issue.key for issue in issues}
    issues += _check_conditions(spec)
    if "space" not in unread:
        issues += _check_exclusions(spec)
        issues += _check_overrides(spec, changed)
        issues += _check_selection(spec, unread)
    bad = {axis.key for axis in spec.space.axes() if axis.place in odd}
    issues += _check_cells(spec, bad)
    issues += _check_stop(spec)
    issues += _check_cases(spec)
    if spec.table and "space" not in unread and "base" not in unread:
        sound = not any(issue.key.partition(".")[0] in ("space", "base") for issue in issues)
        issues += _check_table(spec, sound=sound)
    return issues


def no_such_field(place: str, key: str) -> Iterator[Issue]:
    """Yield an issue if no config has this key."""
    if key not in config_keys():
        yield Issue(place, f"no such field{suggest_key(key, config_keys())}")


def num_choices(spec: "SweepSpec") -> int:
    """Return the number of configs that finalists are selected from, per value of `ladder.per`."""
    if spec.domains:
        return spec.budget.trials or 1
    per = spec.ladder.per if spec.ladder else None
    if per is None:
        return len(spec.cells())
    values = sorted(str(canonical(cell.value(per, spec.base_values))) for cell in spec.cells())
    return max((len(list(group)) for _, group in groupby(values)), default=0)


def has_no_probe(spec: "SweepSpec") -> bool:
    """Whether some runs have no linear probe."""
    cells = [BASE] if spec.domains else spec.cells()
    return any(cell.value("eval.probe", spec.base_values) == "none" for cell in cells)


def _check_axes(spec: "SweepSpec") -> Iterator[Issue]:
    for axis in spec.space.axes():
        key = "seed" if axis.key == "seeds" else axis.key
        if reason := describe_keys().get(key, Key()).not_an_axis:
            yield Issue(axis.place, reason)
        elif axis.key == "epochs" and (spec.stop or spec.space.domains):
            yield Issue(
                axis.place,
                "a search must compare runs of equal length; use a grid without `stop`, or set the "
                "sweep's `epochs`",
            )
        else:
            yield from no_such_field(axis.place, axis.key)


def _check_conditions(spec: "SweepSpec") -> Iterator[Issue]:
    """Check that every `when` names a key of the base, or a searched choice or int."""
    domains = spec.space.domains
    for key, domain in domains.items():
        for other, allowed in (domain.when or {}).items():
            place = f"space.{spec.space.kind}.domains.{key}.when.{other}"
            options = allowed if isinstance(allowed, list) else [allowed]
            if other in domains:
                yield from _check_searched_condition(place, domains[other], options)
            elif other not in spec.base_values:
                yield from (
                    no_such_field(place, other)
                    if other not in config_keys()
                    else [Issue(place, "never holds: the base's method has no such field")]
                )
            elif not BASE.matches({other: allowed}, spec.base_values):
                yield Issue(
                    place,
                    f"never holds: the base has {spec.base_values[other]!r}, got {allowed!r}; "
                    f"search {other} too, or remove the condition",
                )
    for key in in_order(domains)[1]:
        yield Issue(
            f"space.{spec.space.kind}.domains.{key}.when",
            "conditions must not depend on each other in a circle",
        )


def _check_searched_condition(place: str, domain: Domain, options: list[object]) -> Iterator[Issue]:
    if domain.kind in ("uniform", "log_uniform"):
        yield Issue(
            place, f"a condition on a searched key needs a choice or an int, got {domain.kind}"
        )
    elif not any(map(domain.has, options)):
        values = ", ".join(map(str, domain.choices)) or f"{domain.low} to {domain.high}"
        yield Issue(place, f"never holds: must be one of {values}, got {options!r}")


def _check_exclusions(spec: "SweepSpec") -> Iterator[Issue]:
    base = spec.base_values
    for place, space, wanted in spec.space.exclusions():
        cells = space.form.cells(base)
        if spec.scale == "laptop" or any(cell.matches(wanted, base) for cell in cells):
            continue
        keys = {key for cell in cells for key in cell.changes}
        odd = next((key for key in wanted if key not in keys | base.keys()), None)
        if odd is not None:
            near = suggestion(odd, keys)
            yield Issue(place, f"excludes no cell: no cell has a key {odd!r}{near}")
            continue
        values = "; ".join(
            f"{key} is "
            + ", ".join(
                map(repr, {canonical(v): v for c in cells for v in [c.value(key, base)]}.values())
            )
            for key in wanted
        )
        yield Issue(place, f"excludes no cell, got {wanted!r}; {values}")
    if not spec.space.domains and not spec.cells():
        yield Issue("space", "must have at least one cell, but `exclude` removes all")


def _check_overrides(spec: "SweepSpec", changed: Sequence[str]) -> Iterator[Issue]:
    cells = spec.cells()
    for place in changed:
        key = place.removeprefix("base.")
        axis = next((axis for axis in spec.space.axes() if axis.key == key), None)
        if place == key or axis is None:
            continue
        if key in spec.domains or (cells and all(key in cell.changes for cell in cells)):
            yield Issue(
                place,
                f"has no effect because the sweep varies it; use --set {axis.place}=… instead",
            )


def _check_selection(spec: "SweepSpec", unread: set[str]) -> Iterator[Issue]:
    if spec.space.domains and spec.budget.trials is None and "budget" not in unread:
        yield Issue(
            "budget.trials",
            f"must be given with {spec.space.kind}, which otherwise never ends; try 64",
        )
    if spec.ladder is None:
        return
    if not spec.is_search and "stop" not in unread:
        yield Issue(
            "ladder",
            "needs a search, but this sweep runs every cell to full length with every seed; add "
            "`stop` or an optuna space, or remove `ladder`",
        )
        return
    per, varied = spec.ladder.per, sorted({axis.key for axis in spec.space.axes()})
    if per is not None and per not in varied:
        near = suggestion(per, varied)
        yield Issue("ladder.per", f"must be a key that varies, got {per!r}{near}")
        return
    most = num_choices(spec)
    if spec.ladder.finalists > most and spec.scale != "laptop" and "budget" not in unread:
        what = "budget.trials" if spec.domains else "the number of cells"
        yield Issue(
            "ladder.finalists",
            f"must be at most {what}, got {spec.ladder.finalists} of {most}",
        )


def _check_stop(spec: "SweepSpec") -> Iterator[Issue]:
    epochs = spec.base_values.get("epochs")
    if spec.stop is None or not isinstance(epochs, int):
        return
    name, start = spec.stop.scheduler.START, spec.stop.scheduler.start
    if isinstance(start, int) and start >= epochs:
        yield Issue(
            f"stop.{spec.stop.kind}.{name}",
            f"must be below the number of epochs, or no run is ever stopped, got {name}={start}, "
            f"epochs={epochs}; try 10%",
        )


def _check_cases(spec: "SweepSpec") -> Iterator[Issue]:
    for i, case in enumerate(spec.resources.cases):
        for key in case.when:
            yield from no_such_field(f"resources.cases.{i}.when.{key}", key)


def _check_table(spec: "SweepSpec", *, sound: bool) -> Iterator[Issue]:
    """Check the table; if the arms are not `sound`, only what does not depend on them."""
    table = spec.table
    assert table is not None
    for name in ("rows", "columns"):
        if (key := getattr(table, name)) is None:
            continue
        wrong = [
            Issue(f"table.{name}", f"{issue.message}, got {key!r}")
            for issue in no_such_field("", key)
        ]
        yield from wrong
        if sound and not wrong and spec.scale != "laptop" and not _varies(spec, key):
            yield Issue(
                f"table.{name}",
                f"the sweep does not vary {key!r}; it varies {', '.join(spec.axes)}",
            )
    if table.rows == table.columns:
        yield Issue("table.columns", f"must differ from table.rows, got {table.columns!r} for both")
    if table.metric == "probe_top1" and "metric" in table.model_fields_set and has_no_probe(spec):
        yield Issue(
            "table.metric",
            "probe_top1 needs the linear probe, got eval.probe=none; "
            "set eval.probe to paper or cached, or use knn_top1",
        )
    if spec.looks and METRICS[table.metric].last is None:
        known = ", ".join(metric.name for metric in METRICS.values() if metric.last)
        yield Issue(
            "seeds",
            f"until: decided needs a metric that is known when a run ends (got {table.metric!r}); "
            f"set table.metric to one of {known}, or list the seeds",
        )
    baseline = table.baseline or {}
    unknown = [f for key in baseline for f in no_such_field(f"table.baseline.{key}", key)]
    yield from unknown
    cells, base = spec.cells(), spec.base_values
    if sound and cells and not unknown and not any(cell.matches(baseline, base) for cell in cells):
        yield Issue("table.baseline", f"must match one of the arms, but no arm has {baseline!r}")


def _varies(spec: "SweepSpec", key: str) -> bool:
    """Whether arms differ in a key: as an axis, or as a default that follows from another axis.

    A sweep without axes has one arm, and any key may name it.
    """
    if key in spec.axes or not spec.axes:
        return True
    values = set()
    for cell in _cells_to_check(spec):
        try:
            config = spec.first_config(cell.changes)
        except ConfigError:  # has its own issue
            return True
        values.add(config.flat_values().get(key))
        if len(values) > 1:
            return True
    return False


# ---------------------------------------------------------------- cells


def _check_cells(spec: "SweepSpec", bad: set[str]) -> Iterator[Issue]:
    """Yield each error of the cells' configs once, at the path of the file that causes it."""
    seen: set[Issue] = set()
    for cell in _cells_to_check(spec):
        changes = {key: value for key, value in cell.changes.items() if key not in bad}
        for issue in _config_issues(spec, changes):
            if issue not in seen and len(seen) < ENOUGH:
                seen.add(issue)
                yield _blame(spec, issue, changes)


def _cells_to_check(spec: "SweepSpec") -> Iterable[Cell]:
    if spec.space.domains:
        return corner_cells(spec.domains, spec.unsearched)
    cells = spec.cells()
    if len(cells) <= MANY:
        return cells or [BASE]
    ends: dict[Cell, None] = {cells[0]: None, cells[-1]: None}
    for axis in spec.space.axes():
        for value in (axis.values[0], axis.values[-1]):
            at_end = (cell for cell in cells if cell.matches({axis.key: [value]}, {}))
            ends[next(at_end, cells[0])] = None
    return ends


def _config_issues(spec: "SweepSpec", changes: Mapping[str, object]) -> list[Issue]:
    """Return the errors of a cell's config, by config key."""
    try:
        config = spec.first_config(changes)
    except ConfigError as config_error:
        return list(config_error.issues)
    return list(_misfits(spec, config))


def _misfits(spec: "SweepSpec", config: RunConfig) -> Iterator[Issue]:
    if spec.stop and config.eval.knn_every != 1:
        yield Issue(
            "eval.knn_every",
            f"must be 1 with `stop`, which needs the kNN accuracy of every epoch, got "
            f"{config.eval.knn_every}; set it to 1 in the base",
        )
    workers = spec.resources_of(config).workers
    splits = config.encoder.bn_splits
    if splits % workers:  # the batch is a multiple of the groups, so it divides too
        yield Issue(
            "encoder.bn_splits",
            "must be a multiple of resources.workers, "
            f"got encoder.bn_splits={splits}, resources.workers={workers}; "
            f"try {-(-splits // workers) * workers}",
        )
    elif splits // workers % config.runtime.micro_batches:
        yield Issue(
            "runtime.micro_batches",
            uneven_micro_batches(splits, config.runtime.micro_batches, workers),
        )


def _blame(spec: "SweepSpec", issue: Issue, changes: Mapping[str, object]) -> Issue:
    """Move an error of a config to the path of the sweep file that causes it."""

    def vanishes(key: str) -> bool:
        rest = {k: v for k, v in changes.items() if k != key}
        return issue not in _config_issues(spec, rest)

    culprits = [key for key in changes if vanishes(key)]
    if not culprits:
        own = "epochs" if issue.key == "epochs" and spec.epochs is not None else f"base.{issue.key}"
        return Issue(own, issue.message)
    key = issue.key if issue.key in culprits else culprits[0]
    what = issue.message if key == issue.key else f"{issue.key}: {issue.message}"
    others = [f"{k}={changes[k]!r}" for k in culprits if k != issue.key]
    return Issue(
        _place(spec, key, changes[key]), what + (f" (with {', '.join(others)})" if others else "")
    )


def _place(spec: "SweepSpec", key: str, value: object) -> str:
    axes = [axis for axis in spec.space.axes() if axis.key == key]
    with_value = [a for a in axes if canonical(value) in set(map(canonical, a.values))]
    return (with_value or axes)[0].place
