"""SweepSpec: a sweep file, parsed and validated before anything starts.

A sweep is a base config, a space of changes to the base, and rules that stop, select and report
runs. `load_sweep` reads a file and reports all of its errors at once, with file and line.
"""

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self, get_args

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    ValidationError,
)

from ascl.config import RunConfig, Section, Tree, flat, merge, nested
from ascl.errors import ConfigError, Issue, explain_validation, unknown_name
from ascl.yaml_io import parse_yaml
from ascl_sweep.contracts import Phase, Scalar
from ascl_sweep.spec.domains import BASE, Cell, Domain, canonical, in_order
from ascl_sweep.spec.overrides import apply_overrides, find_empty_keys, unfold_base
from ascl_sweep.spec.resources import Resources
from ascl_sweep.spec.schema import sweep_schema
from ascl_sweep.spec.sections import (
    SEARCH_SEED,
    Budget,
    LadderConfig,
    Seeds,
    Stop,
    TableConfig,
    UntilDecided,
)
from ascl_sweep.spec.smoke import Scale, for_method, laptop
from ascl_sweep.spec.space import Space
from ascl_sweep.spec.validation import find_issues, has_no_probe, num_choices

__all__ = ["Resources", "Scale", "SweepSpec", "json_schema", "load_sweep", "parse_sweep"]

HOLDOUT = 0.1
"""Share of the training set that a search is scored on unless the base sets `data.holdout`."""


def _check_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,79}", value, re.ASCII):
        raise ValueError(
            "must be 1 to 80 letters, digits, `_`, `-` and `.`, starting with a letter or digit, "
            f"got {value!r}"
        )
    return value


@dataclass(frozen=True)
class Source:
    """The inputs that a sweep was parsed from; parsing them again gives an equal sweep."""

    text: str = ""
    file: str = ""
    overrides: tuple[str, ...] = ()
    scale: Scale = "full"


class SweepSpec(Section):
    """A sweep. `load_sweep` reads and validates one from a YAML file."""

    name: Annotated[str, AfterValidator(_check_name)]
    """Name of the sweep in the store: letters, digits, `_`, `-` and `.`, at most 80. Required."""
    base: dict[str, object] = Field(default_factory=dict)
    """Config that all runs start from, nested or with dotted keys. Default: the preset's values."""
    space: Space = Space()
    """Keys that the sweep varies. Default: none, the base is the only cell."""
    seeds: Seeds = (0,)
    """Distinct whole numbers from 0 to 2³¹ − 2. Every arm runs with all seeds; a search tries its
    configs with a seed of its own, 2³¹ − 1, and runs its finalists with all. Or
    `{until: decided, at_most: 10}`, which adds seeds only to undecided comparisons. Default: [0].
    """
    epochs: int | None = Field(None, ge=1)
    """Epochs of a full run, at least 1. Default: `epochs` of the base."""
    stop: Stop | None = None
    """Scheduler that stops poor runs early; makes the sweep a search. Default: none."""
    ladder: LadderConfig | None = None
    """Finalists of a search, which run to full length with every seed. Default: no finalists."""
    table: TableConfig | None = None
    """Table of the report. Default: one row per arm."""
    resources: Resources = Resources()
    """Workers, CPUs and GPUs of each run. Default: one worker with one CPU and no GPU."""
    budget: Budget = Budget()
    """Limits on configs and hours. Default: none."""

    _source: Source = PrivateAttr(default_factory=Source)
    _search_seed: int = PrivateAttr(SEARCH_SEED)

    @property
    def text(self) -> str:
        return self._source.text

    @property
    def file(self) -> str:
        return self._source.file

    @property
    def overrides(self) -> tuple[str, ...]:
        return self._source.overrides

    @property
    def scale(self) -> Scale:
        return self._source.scale

    @cached_property
    def is_search(self) -> bool:
        """Whether the sweep selects configs, which are then scored on the holdout, not on test."""
        return self.stop is not None or bool(self.space.domains)

    @property
    def seed_list(self) -> tuple[int, ...]:
        """All seeds that an arm may run with, in their order."""
        if isinstance(self.seeds, UntilDecided):
            return tuple(range(self.seeds.at_most))
        return self.seeds

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds at which comparisons are decided; empty if every arm gets all seeds."""
        return self.seeds.all_looks if isinstance(self.seeds, UntilDecided) else ()

    @property
    def search_seed(self) -> int:
        """The seed of the search's runs."""
        return self._search_seed

    def with_search_seed(self, seed: int) -> Self:
        """Return the sweep with another seed for its search, such as that of an older store."""
        changed = self.model_copy()
        changed._search_seed = seed
        return changed

    @property
    def is_older_search(self) -> bool:
        """Whether a version that searched with a seed of the table started the search.

        Such a search ends by the rules that it began with: it adds neither the base nor audits.
        """
        return self.is_search and self._search_seed != SEARCH_SEED

    # ------------------------------------------------------------ runs

    def config(
        self, changes: Mapping[str, object], *, seed: int, phase: Phase = "final"
    ) -> RunConfig:
        """Build the config of a cell's run; runs of the search phase are scored on the holdout."""
        return RunConfig.of({**self.tree(changes, phase), "seed": seed})

    def tree(self, changes: Mapping[str, object], phase: Phase = "final") -> Tree:
        """Return the config tree of a cell, before the preset's defaults."""
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
        """Return the resources of a run."""
        if not self.resources.cases:
            return self.resources
        return self.resources.of(flat(config.model_dump(mode="json")))

    @property
    def planned_runs(self) -> int:
        """Maximum number of distinct runs: arms × seeds; for a search, configs plus final runs."""
        return self.num_trials * self.is_search + self.num_arms * len(self.seed_list)

    @property
    def num_trials(self) -> int:
        """Maximum number of distinct configs that a search tries."""
        return (self.budget.trials or 0) if self.domains else len(self.listed_trials())

    @property
    def num_arms(self) -> int:
        """Maximum number of distinct arms with final runs: all cells, or a search's finalists."""
        if not self.is_search:
            return len(self._distinct(self.cells()[: self.budget.trials]))
        return self._num_best + self.base_may_be_extra

    @property
    def base_may_be_extra(self) -> bool:
        """Whether the base may be a finalist in addition to the best configs of a search."""
        if self.ladder is None or not self.tries_base:
            return False
        if self.domains or self.ladder.per is None:
            return self._num_best < self.num_trials
        sizes = self._group_sizes(self.ladder.per)
        return sizes[canonical(self.base_values.get(self.ladder.per))] > self.ladder.finalists

    @property
    def _num_best(self) -> int:
        """Maximum number of best configs that a search selects."""
        if self.ladder is None:
            return 0
        most, per = self.ladder.finalists, self.ladder.per
        if per is None:
            return min(self.num_trials, most)
        if self.domains:
            groups = len(set(map(canonical, self.domains[per].choices))) or 1
            return min(self.num_trials, most * groups)
        return sum(min(most, size) for size in self._group_sizes(per).values())

    def _group_sizes(self, per: str) -> Counter[Hashable]:
        """Count the listed trials for each value of a key."""
        return Counter(canonical(c.value(per, self.base_values)) for c in self.listed_trials())

    # ------------------------------------------------------------ varied keys

    @property
    def full_epochs(self) -> int:
        """Epochs of a full run of the base."""
        return int(self.base_values["epochs"])

    @cached_property
    def base_values(self) -> Tree:
        """The base config by dotted key; only the given values if the base alone is invalid."""
        try:
            return flat(RunConfig.of(self.tree({})).model_dump(mode="json"))
        except ConfigError:
            return flat(self.tree({}))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The keys that the sweep varies, in file order."""
        cells = () if self.domains else self.cells()
        return tuple(dict.fromkeys([*self.domains, *(key for c in cells for key in c.changes)]))

    def varied_values(self, config: RunConfig) -> dict[str, Scalar]:
        """Return a run's values at the varied keys that its method uses; MoCo does not use τ'."""
        values, idle = config.flat_values(), config.idle_keys()
        return {key: values[key] for key in self.axes if key in values and key not in idle}

    def cells(self) -> tuple[Cell, ...]:
        """Return the listed arms in file order without duplicates; empty for a searcher."""
        return self._cells

    def distinct_cells(self) -> tuple[Cell, ...]:
        """Return one cell of each config: MoCo, for example, does not use K."""
        return self._distinct_cells

    @cached_property
    def _distinct_cells(self) -> tuple[Cell, ...]:
        return self._distinct(self.cells())

    def _distinct(self, cells: Iterable[Cell]) -> tuple[Cell, ...]:
        kept: dict[str, Cell] = {}
        for cell in cells:
            kept.setdefault(self.run_id(cell.changes), cell)
        return tuple(kept.values())

    def first_config(self, changes: Mapping[str, object]) -> RunConfig:
        """Return the config of a cell's first run: that of the search, or with the first seed."""
        if self.is_search:
            return self.config(changes, seed=self.search_seed, phase="search")
        return self.config(changes, seed=self.seed_list[0])

    def run_id(self, changes: Mapping[str, object]) -> str:
        """Return the id of a cell's first run."""
        return self.first_config(changes).identity()

    @cached_property
    def base_is_valid(self) -> bool:
        """Whether the base config alone can run: it is valid, and `exclude` does not remove it."""
        if any(BASE.matches(wanted, self.base_values) for wanted in self.space.exclude):
            return False
        try:
            self.first_config({})
        except ConfigError:
            return False
        return True

    @property
    def tries_base(self) -> bool:
        """Whether the search tries the base config, before all others, and makes it a finalist."""
        return self.is_search and self.base_is_valid and not self.is_older_search

    @cached_property
    def base_trial(self) -> Cell:
        """The base config as a trial of the search, with its values at the searched keys."""
        given: dict[str, object] = {}
        for key in self.domains:
            if key in self.base_values and self.is_active(key, given):
                given[key] = self.base_values[key]
        return Cell(given) if self.run_id(given) == self.run_id({}) else BASE

    def listed_trials(self) -> tuple[Cell, ...]:
        """Return the distinct configs that a search of a listed space tries, the base first."""
        cells = (BASE, *self.distinct_cells()) if self.tries_base else self.distinct_cells()
        return self._distinct(cells)[: self.budget.trials]

    @cached_property
    def _cells(self) -> tuple[Cell, ...]:
        kept: dict[object, Cell] = {}
        for cell in self.space.cells(self.base_values):
            kept.setdefault(self._essence(cell), cell)
        return tuple(kept.values())

    def _essence(self, cell: Cell) -> frozenset[object]:
        """The cell's changes that differ from the base; equal cells have equal differences."""

        def differences(base: Mapping[str, object], keys: Sequence[str]) -> frozenset[object]:
            return frozenset(
                (key, canonical(cell.changes[key]))
                for key in keys
                if key not in base or canonical(base[key]) != canonical(cell.changes[key])
            )

        # These keys set defaults of others. If one changes, only the given values are comparable.
        roots = [key for key in ("preset", "method.name", "data.name") if key in cell.changes]
        changed = differences(self.base_values, roots)
        known = flat(self.base) if changed else self.base_values
        return differences(known, list(cell.changes))

    @cached_property
    def domains(self) -> Mapping[str, Domain]:
        """The domains of a search; every key follows the keys in its `when`."""
        return in_order(self.space.domains)[0]

    def is_active(self, key: str, chosen: Mapping[str, object]) -> bool:
        """Whether a searched key's `when` holds, given the values chosen for earlier keys."""
        return Cell(chosen).matches(self.domains[key].when or {}, self.unsearched)

    @cached_property
    def unsearched(self) -> Mapping[str, object]:
        """The base config by dotted key, without the searched keys."""
        return {k: v for k, v in self.base_values.items() if k not in self.domains}


# ---------------------------------------------------------------- reading


def load_sweep(
    path: str | Path,
    overrides: Sequence[str] = (),
    scale: Scale = "full",
    *,
    paper_tables: Collection[str] | None = None,
) -> SweepSpec:
    """Read a sweep file.

    Args:
        path: The YAML file.
        overrides: Changes to the sweep or to its base, such as `optim.lr=0.1`.
        scale: `laptop` shrinks the sweep until a CPU can run it.
        paper_tables: Allowed values of `table.paper`; None allows any.

    Returns:
        The validated sweep.

    Raises:
        ConfigError: All errors of the file at once.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError([Issue("", f"cannot be read: {reason}", file=str(path))]) from error
    return parse_sweep(
        text, file=str(path), overrides=overrides, scale=scale, paper_tables=paper_tables
    )


def parse_sweep(
    text: str,
    *,
    file: str,
    overrides: Sequence[str] = (),
    scale: Scale = "full",
    paper_tables: Collection[str] | None = None,
) -> SweepSpec:
    """Parse the YAML text of a sweep file.

    Args:
        text: The YAML text.
        file: File name in error messages.
        overrides, scale, paper_tables: As in `load_sweep`.

    Returns:
        The validated sweep.
    """
    if scale not in get_args(Scale):
        raise ConfigError([Issue("", unknown_name("scale", scale, get_args(Scale)))])
    try:
        given, lines = parse_yaml(text)
    except ConfigError as config_error:
        raise ConfigError(
            replace(issue, file=file) for issue in config_error.issues
        ) from config_error
    if not isinstance(given, Mapping):
        message = f"a sweep must be a mapping of keys, got {given!r}"
        raise ConfigError([Issue("", message, file=file)])
    tree, issues = unfold_base(merge({}, given))
    tree = laptop(tree) if scale == "laptop" else tree
    changed, empty = apply_overrides(tree, overrides, SweepSpec.model_fields)
    tree, wrong = unfold_base(tree)  # again: overrides may add dotted or empty keys
    empty += [
        issue
        for issue in find_empty_keys(given)
        if not any(f"{place}.".startswith(f"{issue.key}.") for place in changed)
    ]
    spec, unfit = _validate(tree)
    # A key without a value often has a second error, which its value would fix.
    unfit = [issue for issue in unfit if not any(_is_within(issue, other) for other in empty)]
    issues += wrong + empty + unfit
    spec._source = Source(text, file, tuple(overrides), scale)
    issues += find_issues(spec, changed, {issue.key.split(".")[0] for issue in issues})
    paper = spec.table.paper if spec.table else None
    if paper is not None and paper_tables is not None and paper not in paper_tables:
        issues.append(Issue("table.paper", unknown_name("table of the paper", paper, paper_tables)))
    if issues:
        raise _locate(issues, changed, file, lines)
    return _settle(spec)


def _validate(tree: Tree) -> tuple[SweepSpec, list[Issue]]:
    """Return the spec of the valid sections, and the issues of the others."""
    try:
        return SweepSpec.model_validate(tree), []
    except ValidationError as error:
        issues = explain_validation(error, "", SweepSpec)
        bad = {str(item["loc"][0]) for item in error.errors(include_url=False)}
        rest = {key: value for key, value in tree.items() if key not in bad}
        return SweepSpec.model_validate({"name": "unnamed", **rest}), issues


def _is_within(issue: Issue, other: Issue) -> bool:
    """Whether one of the keys of two issues contains the other."""
    key, within = f"{issue.key}.", f"{other.key}."
    return key.startswith(within) or within.startswith(key)


def _settle(spec: SweepSpec) -> SweepSpec:
    """Fill in values that depend on other sections."""
    table, ladder = spec.table, spec.ladder
    if table and "metric" not in table.model_fields_set and has_no_probe(spec):
        table = table.model_copy(update={"metric": "knn_top1"})
    if ladder and spec.scale == "laptop":  # shrunk cells may be equal, so there may be fewer
        most = min(ladder.finalists, num_choices(spec))
        ladder = ladder.model_copy(update={"finalists": most})
    return spec.model_copy(update={"table": table, "ladder": ladder})


def _locate(
    issues: list[Issue], changed: list[str], file: str, lines: Mapping[str, int]
) -> ConfigError:
    """Add file and line to each issue; an issue of an override names the override instead."""
    once = dict.fromkeys(issues)
    placed = ConfigError(once).except_at(changed, file, lines).issues
    return ConfigError(
        issue if issue.file else replace(issue, key=f"--set {issue.key.removeprefix('base.')}")
        for issue in placed
    )


def json_schema() -> dict[str, object]:
    """Return the JSON Schema of a sweep file, for editors."""
    return sweep_schema(SweepSpec)
