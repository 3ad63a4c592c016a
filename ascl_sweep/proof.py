"""Proof of a sweep: every config it can come to is built before anything starts.

Both ends of every axis become real `RunConfig`s; what is wrong with one is blamed on the axis, or
the part of the base, that brought it about.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ascl.config import RunConfig, uneven_micro_batches
from ascl.faults import Fault, Faulty, suggestion, unknown_name
from ascl_sweep import paper
from ascl_sweep.domains import Domain, canonical, in_order
from ascl_sweep.schema import config_keys
from ascl_sweep.space import Cell, proving_cells

if TYPE_CHECKING:
    from ascl_sweep.spec import SweepSpec

MANY = 2_000
"""Up to so many cells are all proven; of more, those at the ends of the axes."""
ENOUGH = 20
"""Faults of cells after which no more are looked for: they repeat themselves."""

NOT_VARIED: Mapping[str, str] = {
    "seed": "seeds are no axis, for every arm runs with the same ones; list them in `seeds`",
    "seeds": "seeds are no axis, for every arm runs with the same ones; list them in `seeds`",
    "data.holdout": "must be the same for all arms, or they are scored on other images; "
    "set it in the base",
    "data.root": "where the data lie changes no number; set it in the base",
    "runtime.micro_batches": "how a run fits in memory changes no arm; set it in the base",
    "runtime.device": "where a run is computed changes no arm; say how much it gets in `resources`",
}


def faults_of(spec: "SweepSpec", said: Sequence[str], unread: Iterable[str]) -> list[Fault]:
    """What does not go together in a sweep.

    `said` are the places that overrides changed, `unread` the sections that are known to be at
    fault: what depends on them is not looked at.
    """
    unread = set(unread)
    faults = list(_axis_faults(spec))
    odd = {fault.key for fault in faults}
    faults += _condition_faults(spec)
    if "space" not in unread:
        faults += _exclusion_faults(spec)
        faults += _idle_overrides(spec, said)
        faults += _selection_faults(spec, unread)
    bad = {axis.key for axis in spec.space.axes() if axis.place in odd}
    faults += _cell_faults(spec, bad)
    faults += _stop_faults(spec)
    faults += _case_faults(spec)
    if spec.table and "space" not in unread and "base" not in unread:
        faults += _table_faults(spec)
    return faults


def no_such_field(place: str, key: str) -> Iterator[Fault]:
    """The fault of a key that no config has."""
    if key not in config_keys():
        tail = key.rpartition(".")[2]
        near = suggestion(key, config_keys()) or suggestion(tail, config_keys())
        yield Fault(place, f"no such field{near}")


def num_choices(spec: "SweepSpec") -> int:
    """How many configurations a search has to choose its finalists from, for each `per`."""
    if spec.domains:
        return spec.budget.trials or 1
    per = spec.ladder.per if spec.ladder else None
    if per is None:
        return len(spec.cells())
    values = sorted(str(canonical(cell.value(per, spec.base_values))) for cell in spec.cells())
    return max((len(list(group)) for _, group in groupby(values)), default=0)


def has_no_probe(spec: "SweepSpec") -> bool:
    """Whether some runs end without a linear probe."""
    cells = [Cell({})] if spec.domains else spec.cells()
    return any(cell.value("eval.probe", spec.base_values) == "none" for cell in cells)


def _axis_faults(spec: "SweepSpec") -> Iterator[Fault]:
    for axis in spec.space.axes():
        if axis.key in NOT_VARIED:
            yield Fault(axis.place, NOT_VARIED[axis.key])
        elif axis.key == "epochs" and (spec.stop or spec.space.optuna):
            yield Fault(
                axis.place,
                "a search compares runs of one length, for longer ones always win; "
                "use a grid without `stop`, or set `epochs`",
            )
        else:
            yield from no_such_field(axis.place, axis.key)


def _condition_faults(spec: "SweepSpec") -> Iterator[Fault]:
    """What a `when` may look at: a searched key with listed or whole values, or one of the base."""
    domains = spec.space.optuna.domains if spec.space.optuna else {}
    for key, domain in domains.items():
        for other, allowed in (domain.when or {}).items():
            place = f"space.optuna.domains.{key}.when.{other}"
            options = allowed if isinstance(allowed, list) else [allowed]
            if other in domains:
                yield from _searched_condition(place, domains[other], options)
            elif other not in spec.base_values:
                yield from (
                    no_such_field(place, other)
                    if other not in config_keys()
                    else [
                        Fault(place, "the base's method has no such field, so that it never holds")
                    ]
                )
            elif not Cell({}).matches({other: allowed}, spec.base_values):
                yield Fault(
                    place,
                    f"never holds: the base has {spec.base_values[other]!r}, got {allowed!r}; "
                    f"search {other} too, or leave the condition out",
                )
    for key in in_order(domains)[1]:
        yield Fault(f"space.optuna.domains.{key}.when", "conditions must not go in circles")


def _searched_condition(place: str, domain: Domain, options: list[Any]) -> Iterator[Fault]:
    if domain.kind in ("uniform", "log_uniform"):
        yield Fault(place, f"a condition needs a choice or an int to look at, got {domain.kind}")
    elif not any(map(domain.has, options)):
        values = ", ".join(map(str, domain.choices)) or f"{domain.low} to {domain.high}"
        yield Fault(place, f"never holds: must be among {values}, got {options!r}")


def _exclusion_faults(spec: "SweepSpec") -> Iterator[Fault]:
    base = spec.base_values
    for place, space, wanted in spec.space.exclusions():
        cells = space.listed(base)
        if spec.scale == "laptop" or any(cell.matches(wanted, base) for cell in cells):
            continue
        keys = {key for cell in cells for key in cell.changes}
        odd = next((key for key in wanted if key not in keys | base.keys()), None)
        if odd is not None:
            near = suggestion(odd, keys)
            yield Fault(place, f"excludes no cell: nothing is called {odd!r}{near}")
            continue
        values = "; ".join(
            f"{key} is "
            + ", ".join(
                map(repr, {canonical(v): v for c in cells for v in [c.value(key, base)]}.values())
            )
            for key in wanted
        )
        yield Fault(place, f"excludes no cell, got {wanted!r}; {values}")
    if spec.space.kind not in ("optuna", "base") and not spec.cells():
        yield Fault("space", "must leave at least one cell, and `exclude` takes out all")


def _idle_overrides(spec: "SweepSpec", said: Sequence[str]) -> Iterator[Fault]:
    cells = spec.cells()
    for place in said:
        key = place.removeprefix("base.")
        axis = next((axis for axis in spec.space.axes() if axis.key == key), None)
        if place == key or axis is None:
            continue
        if key in spec.domains or (cells and all(key in cell.changes for cell in cells)):
            yield Fault(
                place,
                f"has no effect, for the sweep varies it; change its values with "
                f"--set {axis.place}=…",
            )


def _selection_faults(spec: "SweepSpec", unread: set[str]) -> Iterator[Fault]:
    if spec.space.optuna and spec.budget.trials is None and "budget" not in unread:
        yield Fault(
            "budget.trials",
            "must be given with an optuna space, which never ends by itself; try 64",
        )
    if spec.ladder is None:
        return
    if not spec.is_search and "stop" not in unread:
        yield Fault(
            "ladder",
            "finalists come from a search, and this sweep runs every cell to its end with every "
            "seed; add `stop` or an optuna space, or leave the ladder out",
        )
        return
    per, varied = spec.ladder.per, sorted({axis.key for axis in spec.space.axes()})
    if per is not None and per not in varied:
        near = suggestion(per, varied)
        yield Fault("ladder.per", f"must be a key that varies, got {per!r}{near}")
        return
    most = num_choices(spec)
    if spec.ladder.finalists > most and spec.scale != "laptop" and "budget" not in unread:
        what = "budget.trials" if spec.domains else "the number of cells"
        yield Fault(
            "ladder.finalists",
            f"must be at most {what}, got {spec.ladder.finalists} of {most}",
        )


def _stop_faults(spec: "SweepSpec") -> Iterator[Fault]:
    epochs = spec.base_values.get("epochs")
    if spec.stop is None or not isinstance(epochs, int):
        return
    name = "at" if spec.stop.rule == "keep_top" else "grace"
    moment = getattr(spec.stop, name)
    if isinstance(moment, int) and moment >= epochs:
        yield Fault(
            f"stop.{spec.stop.rule}.{name}",
            f"must come before the last epoch, or nothing is ever stopped, got {name}={moment}, "
            f"epochs={epochs}; try 10%",
        )


def _case_faults(spec: "SweepSpec") -> Iterator[Fault]:
    for i, case in enumerate(spec.resources.cases):
        for key in case.when:
            yield from no_such_field(f"resources.cases.{i}.when.{key}", key)


def _table_faults(spec: "SweepSpec") -> Iterator[Fault]:
    table = spec.table
    assert table is not None
    for name in ("rows", "columns"):
        if (key := getattr(table, name)) is not None:
            yield from (
                Fault(f"table.{name}", f"{fault.message}, got {key!r}")
                for fault in no_such_field("", key)
            )
    if table.paper is not None and table.paper not in paper.TABLES:
        yield Fault("table.paper", unknown_name("table of the paper", table.paper, paper.TABLES))
    if table.rows == table.columns:
        yield Fault("table.columns", f"must differ from the rows, got {table.columns!r} for both")
    if table.metric == "probe_top1" and "metric" in table.model_fields_set and has_no_probe(spec):
        yield Fault(
            "table.metric",
            "probe_top1 needs the linear probe, got eval.probe=none; "
            "set eval.probe to paper or cached, or show knn_top1",
        )
    baseline = table.baseline or {}
    unknown = [f for key in baseline for f in no_such_field(f"table.baseline.{key}", key)]
    yield from unknown
    cells, base = spec.cells(), spec.base_values
    if cells and not unknown and not any(cell.matches(baseline, base) for cell in cells):
        yield Fault("table.baseline", f"must pick one of the arms, and none has {baseline!r}")


# ---------------------------------------------------------------- cells


def _cell_faults(spec: "SweepSpec", bad: set[str]) -> Iterator[Fault]:
    """What is wrong with the cells' configs, each once, where it is to be mended."""
    seen: set[Fault] = set()
    for cell in _to_prove(spec):
        changes = {key: value for key, value in cell.changes.items() if key not in bad}
        for fault in _config_faults(spec, changes):
            if fault not in seen and len(seen) < ENOUGH:
                seen.add(fault)
                yield _blamed(spec, fault, changes)


def _to_prove(spec: "SweepSpec") -> Iterable[Cell]:
    if spec.space.optuna:
        return proving_cells(spec.domains, spec.unsearched)
    cells = spec.cells()
    if len(cells) <= MANY:
        return cells or [Cell({})]
    ends: dict[Cell, None] = {cells[0]: None, cells[-1]: None}
    for axis in spec.space.axes():
        for value in (axis.values[0], axis.values[-1]):
            at_end = (cell for cell in cells if cell.matches({axis.key: [value]}, {}))
            ends[next(at_end, cells[0])] = None
    return ends


def _config_faults(spec: "SweepSpec", changes: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with a cell, by config key."""
    try:
        phase = "search" if spec.is_search else "final"
        config = spec.config(changes, seed=spec.seeds[0], phase=phase)  # type: ignore[arg-type]
    except Faulty as faulty:
        return list(faulty.faults)
    return list(_unfit(spec, config))


def _unfit(spec: "SweepSpec", config: RunConfig) -> Iterator[Fault]:
    if spec.stop and config.eval.knn_every != 1:
        yield Fault(
            "eval.knn_every",
            f"must be 1 with `stop`, which looks at every epoch's kNN, got {config.eval.knn_every};"
            " set it in the base",
        )
    workers = spec.resources_of(config).workers
    splits = config.encoder.bn_splits
    if splits % workers:  # and with the groups the batch divides
        yield Fault(
            "encoder.bn_splits",
            "the BN groups must divide evenly over the workers, for statistics never cross them, "
            f"got encoder.bn_splits={splits}, resources.workers={workers}; "
            f"try {-(-splits // workers) * workers}",
        )
    elif splits // workers % config.runtime.micro_batches:
        yield Fault(
            "runtime.micro_batches",
            uneven_micro_batches(splits, config.runtime.micro_batches, workers),
        )


def _blamed(spec: "SweepSpec", fault: Fault, changes: Mapping[str, Any]) -> Fault:
    """A config's fault at the place of the sweep file that brings it about."""

    def vanishes(key: str) -> bool:
        rest = {k: v for k, v in changes.items() if k != key}
        return fault not in _config_faults(spec, rest)

    culprits = [key for key in changes if vanishes(key)]
    if not culprits:
        own = "epochs" if fault.key == "epochs" and spec.epochs is not None else f"base.{fault.key}"
        return Fault(own, fault.message)
    key = fault.key if fault.key in culprits else culprits[0]
    what = fault.message if key == fault.key else f"{fault.key}: {fault.message}"
    others = [f"{k}={changes[k]!r}" for k in culprits if k != fault.key]
    return Fault(
        _place(spec, key, changes[key]), what + (f" (with {', '.join(others)})" if others else "")
    )


def _place(spec: "SweepSpec", key: str, value: Any) -> str:
    axes = [axis for axis in spec.space.axes() if axis.key == key]
    with_value = [a for a in axes if canonical(value) in set(map(canonical, a.values))]
    return (with_value or axes)[0].place
