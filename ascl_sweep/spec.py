"""SweepSpec: what a sweep file says, read and proven before anything starts.

A sweep is a base config, a space of changes to it, and how its runs are stopped, selected and
shown. `load_spec` reads one; everything that is wrong with it comes at once, with file and line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from ascl.config import RunConfig, Tree, flat_keys, merge, parse_overrides
from ascl.faults import Fault, Faulty, of_validation, parse_yaml, suggestion, unknown_name
from ascl_sweep.domains import Domain, canonical, in_order
from ascl_sweep.proof import faults_of, has_no_probe, num_choices
from ascl_sweep.scale import Scale, for_method, laptop
from ascl_sweep.schema import sweep_schema
from ascl_sweep.sections import (
    Budget,
    LadderConfig,
    Resources,
    StopConfig,
    SweepFile,
    TableConfig,
    fields_at,
)
from ascl_sweep.space import Cell, Space, flat, nested

__all__ = [
    "Budget",
    "Cell",
    "Domain",
    "LadderConfig",
    "Resources",
    "Scale",
    "Space",
    "StopConfig",
    "SweepSpec",
    "TableConfig",
    "json_schema",
    "load_spec",
    "spec_of",
]

HOLDOUT = 0.1
"""Share of train that a search is scored on unless the base says otherwise."""


@dataclass(frozen=True)
class SweepSpec:
    """A sweep, ready to be planned. Make it with `load_spec`."""

    name: str
    base: Tree
    space: Space
    seeds: tuple[int, ...]
    epochs: int | None
    stop: StopConfig | None
    ladder: LadderConfig | None
    table: TableConfig | None
    resources: Resources
    budget: Budget
    scale: Scale = "full"
    text: str = ""
    """The file as it was read: with `overrides` and `scale` it makes this spec again."""
    file: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def is_search(self) -> bool:
        """Whether runs are selected, so that they are scored on the holdout and not on test."""
        return self.stop is not None or bool(self.domains)

    def config(
        self, changes: Mapping[str, Any], *, seed: int, phase: Literal["search", "final"] = "final"
    ) -> RunConfig:
        """The run that a cell comes to; a search's own runs are scored on the holdout."""
        return RunConfig.of({**self.tree(changes, phase), "seed": seed})

    def tree(self, changes: Mapping[str, Any], phase: Literal["search", "final"] = "final") -> Tree:
        """A cell's config as the user would have written it."""
        assert self.is_search or phase == "final", "only a search has a search phase"
        tree = merge(self.base, {"epochs": self.epochs} if self.epochs is not None else {})
        tree = merge(tree, nested(changes))
        if self.is_search:
            own = (tree.get("data") or {}).get("holdout")
            none = own is None or (own == 0 and not isinstance(own, bool))
            holdout = 0.0 if phase == "final" else HOLDOUT if none else own
            tree = merge(tree, {"data": {**(tree.get("data") or {}), "holdout": holdout}})
        return merge(for_method(tree), tree) if self.scale == "laptop" else tree

    def resources_of(self, config: RunConfig) -> Resources:
        """What a run of the sweep gets."""
        if not self.resources.cases:
            return self.resources
        return self.resources.of(flat(config.model_dump(mode="json")))

    @cached_property
    def base_values(self) -> dict[str, Any]:
        """What a run without changes has at every dotted key; what is given, if it cannot run."""
        try:
            return flat(RunConfig.of(self.tree({})).model_dump(mode="json"))
        except Faulty:
            return flat(self.tree({}))

    def cells(self) -> tuple[Cell, ...]:
        """The arms of a space that lists them, in file order, each once."""
        return self._cells

    @cached_property
    def _cells(self) -> tuple[Cell, ...]:
        kept: dict[Any, Cell] = {}
        for cell in self.space.cells(self.base_values):
            kept.setdefault(self._essence(cell), cell)
        return tuple(kept.values())

    def _essence(self, cell: Cell) -> frozenset[Any]:
        """A cell without the changes that leave the base as it is."""

        def news(base: Mapping[str, Any], keys: Sequence[str]) -> frozenset[Any]:
            return frozenset(
                (key, canonical(cell.changes[key]))
                for key in keys
                if key not in base or canonical(base[key]) != canonical(cell.changes[key])
            )

        # Other values follow from these, so that where they change only what is given is known.
        roots = [key for key in ("preset", "method.name", "data.name") if key in cell.changes]
        known = flat(self.base) if news(self.base_values, roots) else self.base_values
        return news(known, list(cell.changes))

    @cached_property
    def domains(self) -> Mapping[str, Domain]:
        """What a search draws from, each key after those that its `when` looks at."""
        optuna = self.space.optuna
        return in_order(optuna.domains)[0] if optuna else {}

    def wanted(self, key: str, chosen: Mapping[str, Any]) -> bool:
        """Whether a searched key's `when` holds, given what was chosen for those before it."""
        return Cell(chosen).matches(self.domains[key].when or {}, self.unsearched)

    @cached_property
    def unsearched(self) -> Mapping[str, Any]:
        """The base's values at the keys that are not searched."""
        return {k: v for k, v in self.base_values.items() if k not in self.domains}


def load_spec(path: str | Path, overrides: Sequence[str] = (), scale: Scale = "full") -> SweepSpec:
    """Read a sweep file; raises `Faulty` with everything wrong in it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Faulty([Fault("", f"cannot be read: {reason}", file=str(path))]) from error
    return spec_of(text, file=str(path), overrides=overrides, scale=scale)


def spec_of(
    text: str, *, file: str, overrides: Sequence[str] = (), scale: Scale = "full"
) -> SweepSpec:
    """The sweep that a YAML text means, as `load_spec` reads it from a file."""
    if scale not in get_args(Scale):
        raise Faulty([Fault("", unknown_name("scale", scale, get_args(Scale)))])
    parse_overrides(overrides)  # all that is wrong with them at once
    changes = [_parsed(override) for override in overrides]
    try:
        given, lines = parse_yaml(text)
    except Faulty as faulty:
        raise Faulty(replace(fault, file=file) for fault in faulty.faults) from faulty
    if not isinstance(given, Mapping):
        message = f"a sweep must be a mapping of keys, got {given!r}"
        raise Faulty([Fault("", message, file=file)])
    tree, faults = _with_nested_base(merge({}, given))
    tree = laptop(tree) if scale == "laptop" else tree
    said = [place for key, value in changes for place in _change(tree, key, value)]
    tree, wrong = _with_nested_base(tree)  # once more, for what the overrides put there
    sweep, unfit = _validated(tree)
    faults += wrong + unfit
    spec = SweepSpec(
        **{
            **dict(sweep),
            "seeds": tuple(sweep.seeds),
            "stop": StopConfig.of(sweep.stop) if sweep.stop else None,
        },
        scale=scale,
        text=text,
        file=file,
        overrides=tuple(overrides),
    )
    faults += faults_of(spec, said, unread={fault.key.split(".")[0] for fault in faults})
    if faults:
        raise _located(faults, said, file, lines)
    return _settled(spec)


def _parsed(override: str) -> tuple[str, Any]:
    """ "optim.lr=0.1" → ("optim.lr", 0.1)."""
    leaf: Any = parse_overrides([override])
    key = override.partition("=")[0].strip()
    for part in key.split("."):
        leaf = leaf[part]
    return key, leaf


def _with_nested_base(tree: Tree) -> tuple[Tree, list[Fault]]:
    """The file without empty entries and its base with dotted keys unfolded."""
    tree = {key: value for key, value in tree.items() if value is not None}
    given = tree.get("base")
    if not isinstance(given, Mapping):
        return tree, []
    base: Tree = {}
    faults = []
    seen: set[str] = set()
    for key, value in given.items():
        if key in RunConfig.SECTIONS and not isinstance(value, Mapping | None):
            faults.append(Fault(f"base.{key}", f"must be a mapping of keys, got {value!r}"))
            continue
        part = nested({key: value})
        leaves = set(flat_keys(part))
        faults += [Fault(f"base.{leaf}", "given twice in the base") for leaf in leaves & seen]
        seen |= leaves
        base = merge(base, part)
    if "seed" in base:
        faults.append(Fault("base.seed", "a sweep has `seeds`, for all its arms alike; say those"))
        del base["seed"]
    if "epochs" in base and "epochs" in tree:
        faults.append(Fault("base.epochs", "given twice, also as the sweep's own `epochs`"))
        del base["epochs"]
    return {**tree, "base": base}, faults


def _change(tree: Tree, key: str, value: Any) -> list[str]:
    """Do what an override says, and say at which places of the file it would stand."""
    parts = key.split(".")
    if parts[0] == "base" and len(parts) > 1:
        parts = parts[1:]
    elif parts[0] in SweepFile.model_fields:
        if parts == ["base"] and isinstance(value, Mapping):
            value = nested(value)
        if parts == ["epochs"] and isinstance(tree.get("base"), dict):
            tree["base"].pop("epochs", None)
        _put(tree, parts, value)
        return [key]
    base = tree.get("base")
    leaf = nested({".".join(parts): value})
    tree["base"] = merge(base if isinstance(base, Mapping) else {}, leaf)
    return [f"base.{place}" for place in flat_keys(leaf)]


def _put(tree: Tree, parts: list[str], value: Any) -> None:
    """Set what stands at a path, whose keys may have dots themselves."""
    lengths = [n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in tree]
    length = lengths[0] if lengths else 1
    name, rest = ".".join(parts[:length]), parts[length:]
    if not rest:
        tree[name] = value
        return
    inner = tree[name] = dict(tree[name]) if isinstance(tree.get(name), Mapping) else {}
    if name in ("grid", "zip", "one_factor") and ".".join(rest) not in inner:
        inner[".".join(rest)] = value
    else:
        _put(inner, rest, value)


def _validated(tree: Tree) -> tuple[SweepFile, list[Fault]]:
    """The file's sections, those at fault left out, and what is wrong with them."""
    try:
        return SweepFile.model_validate(tree), []
    except ValidationError as error:
        items = error.errors(include_url=False)
        faults = of_validation(error, "", SweepFile)
        for i, (item, fault) in enumerate(zip(items, faults, strict=True)):
            if item["type"] == "extra_forbidden":
                *path, name = item["loc"]
                near = suggestion(str(name), fields_at(SweepFile, path))
                faults[i] = replace(fault, message=f"no such field{near}")
        bad = {str(item["loc"][0]) for item in items}
        rest = {key: value for key, value in tree.items() if key not in bad}
        return SweepFile.model_validate({"name": "unnamed", **rest}), faults


def _settled(spec: SweepSpec) -> SweepSpec:
    """The spec with what follows from the rest of it filled in."""
    table, ladder = spec.table, spec.ladder
    if table and "metric" not in table.model_fields_set and has_no_probe(spec):
        table = table.model_copy(update={"metric": "knn_top1"})
    if ladder and spec.scale == "laptop":  # where cells fell together there are fewer to choose
        most = min(ladder.finalists, num_choices(spec))
        ladder = ladder.model_copy(update={"finalists": most})
    return replace(spec, table=table, ladder=ladder)


def _located(faults: list[Fault], said: list[str], file: str, lines: Mapping[str, int]) -> Faulty:
    """The faults with their lines; those of an override name it instead."""
    once = dict.fromkeys(faults)
    placed = Faulty(once).except_at(said, file, lines).faults
    return Faulty(
        fault if fault.file else replace(fault, key=f"--set {fault.key.removeprefix('base.')}")
        for fault in placed
    )


def json_schema() -> dict[str, Any]:
    """JSON Schema of a sweep file, for editors."""
    return sweep_schema(SweepFile)
