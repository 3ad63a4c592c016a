"""Sweep metadata for reports, saved in the store.

Parsing a sweep file requires the trainer's configs and so PyTorch, which is slow to load. The
metadata is saved when the sweep starts, so that a report opens in a second.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from ascl.sections import Tree
from ascl_sweep.contracts import Scalar

if TYPE_CHECKING:
    from ascl_sweep.search.schedulers.base import SchedulerConfig
    from ascl_sweep.spec.sweep import SweepSpec


@dataclass(frozen=True)
class StopSummary:
    """The scheduler of a search, with its settings in epochs."""

    rule: str
    settings: Mapping[str, Scalar]

    @classmethod
    def of(cls, given: Mapping[str, Scalar]) -> Self:
        return cls(str(given["rule"]), {k: v for k, v in given.items() if k != "rule"})

    def to_dict(self) -> dict[str, Scalar]:
        return {"rule": self.rule, **self.settings}

    def describe(self) -> str:
        """Return a short description of the rule."""
        return self._config().describe()

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the stopping epochs that a figure marks, for runs of this length."""
        return self._config().rungs(epochs)

    def _config(self) -> "SchedulerConfig":
        from ascl_sweep.search.schedulers.base import load_scheduler

        config = load_scheduler(self.rule)
        own = {key: value for key, value in self.settings.items() if key in config.model_fields}
        return config.model_validate(own)


@dataclass(frozen=True)
class SeedPlan:
    """The planned seeds of a sweep, and how they changed after results were known."""

    seeds: tuple[int, ...] = ()
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which comparisons are decided; empty for one look at all seeds."""
    extensions: int = 0
    """How often seeds were added or removed after results were known."""
    removed: tuple[int, ...] = ()
    """Seeds that were removed after their results were known, also if they were added again."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        lists = {name: tuple(given.get(name, ())) for name in ("seeds", "looks", "removed")}
        return cls(**lists, extensions=given.get("extensions", 0))


@dataclass(frozen=True)
class SweepSummary:
    """The parts of a sweep that tables and figures need, with overrides and scale applied."""

    axes: tuple[str, ...] = ()
    """The keys that the sweep varies, in file order."""
    base: Mapping[str, Scalar] = field(default_factory=dict)
    """Values of those keys in the base config."""
    seeds: tuple[int, ...] = ()
    looks: tuple[int, ...] = ()
    extensions: int = 0
    removed: tuple[int, ...] = ()
    """See `SeedPlan`, as for the three fields above."""
    other_scales: Mapping[str, SeedPlan] = field(default_factory=dict)
    """The last plan of the seeds at each other scale."""
    search: bool = False
    """Whether the sweep is a search, scored on a holdout."""
    trials: int | None = None
    """Maximum number of configs that a search tries."""
    finalists: int | None = None
    per: str | None = None
    """A searched key; each of its values gets `finalists` finalists."""
    order: tuple[str, ...] = ()
    """Run id of each arm's first seed, in file order; empty for a search."""
    stop: StopSummary | None = None
    table: Tree | None = None
    """The `table` section: rows, columns, metric, paper, baseline."""
    distributions: Mapping[str, str] = field(default_factory=dict)
    """Optuna's JSON of each searched key's distribution."""

    @property
    def seed_plan(self) -> SeedPlan:
        return SeedPlan(self.seeds, self.looks, self.extensions, self.removed)

    def to_json(self) -> str:
        stop = self.stop.to_dict() if isinstance(self.stop, StopSummary) else self.stop
        return json.dumps(asdict(self) | {"stop": stop}, default=list)

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Parse the output of `to_json`; fields missing from older versions get their defaults."""
        given = json.loads(text or "{}")
        known = {name: given[name] for name in cls.__dataclass_fields__ if name in given}
        for name in ("axes", "seeds", "looks", "removed", "order"):
            known[name] = tuple(known.get(name, ()))
        others = known.get("other_scales", {}).items()
        known["other_scales"] = {scale: SeedPlan.of(plan) for scale, plan in others}
        if known.get("stop"):
            known["stop"] = StopSummary.of(known["stop"])
        return cls(**known)


def summarize_sweep(
    spec: "SweepSpec",
    seed_plan: SeedPlan | None = None,
    other_scales: Mapping[str, SeedPlan] | None = None,
) -> SweepSummary:
    """Return the metadata of a sweep that reports need.

    Args:
        spec: The sweep.
        seed_plan: Its seeds and their changes; by default the seeds of the sweep without changes.
        other_scales: The last plan of its seeds at each other scale.
    """
    plan = seed_plan or SeedPlan(spec.seed_list, spec.looks)
    stop = None
    if spec.stop:
        scheduler = spec.stop.scheduler.in_epochs(spec.full_epochs)
        stop = StopSummary(spec.stop.kind, {**dict(scheduler), "audit": spec.stop.audit})
    cells = () if spec.is_search else spec.cells()[: spec.budget.trials]
    distributions = {}
    if spec.domains:
        from ascl_sweep.search.searchers.optuna import distribution_json

        distributions = {key: distribution_json(d) for key, d in spec.domains.items()}
    return SweepSummary(
        axes=spec.axes,
        base={key: spec.base_values.get(key) for key in spec.axes},
        seeds=plan.seeds,
        looks=plan.looks,
        extensions=plan.extensions,
        removed=plan.removed,
        other_scales=dict(other_scales or {}),
        search=spec.is_search,
        trials=spec.budget.trials,
        finalists=spec.ladder.finalists if spec.ladder else None,
        per=spec.ladder.per if spec.ladder else None,
        order=tuple(spec.config(c.changes, seed=spec.seed_list[0]).identity() for c in cells),
        stop=stop,
        table=spec.table.model_dump(mode="json") if spec.table else None,
        distributions=distributions,
    )
