"""Sections of a sweep file: seeds, stop, ladder, table and budget."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    create_model,
    model_validator,
)

from ascl.config import Section
from ascl.errors import FORM
from ascl_sweep.search.schedulers.base import (
    SchedulerConfig,
    Share,
    load_scheduler,
    scheduler_names,
)
from ascl_sweep.spec.domains import OneOf
from ascl_sweep.spec.metrics import MetricName

FEWEST_SEEDS = 3
"""With fewer seeds there is no verdict."""
LOOKS = (3, 5, 8)
"""Numbers of seeds at which comparisons are decided by default."""
SEARCH_SEED = 2**31 - 1
"""Seed of every run of a search. `seeds` refuses it: if a table reused the seed that selected its
arms, their means would be too high."""


def _check_seeds(values: tuple[int, ...]) -> tuple[int, ...]:
    if not values or len(set(values)) < len(values):
        raise ValueError(f"must list at least one seed, and each seed once, got {list(values)!r}")
    if SEARCH_SEED in values:
        raise ValueError(
            f"must not list {SEARCH_SEED}, which is reserved for searches; use another seed"
        )
    return values


_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
SeedList = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], _as_tuple, AfterValidator(_check_seeds)
]


def _check_looks(values: tuple[int, ...]) -> tuple[int, ...]:
    if not values or values[0] < FEWEST_SEEDS or list(values) != sorted(set(values)):
        raise ValueError(
            f"must be increasing numbers of seeds from {FEWEST_SEEDS} on, got {list(values)!r}; "
            f"write {list(LOOKS)}"
        )
    return values


class UntilDecided(Section):
    """Run each arm with as many seeds as its comparison with the baseline needs.

    All arms run with the seeds of the first look. Each look decides comparisons, and only those
    that are still undecided get the seeds of the next one. The looks share the 5% error.
    """

    until: Literal["decided"]
    """`decided`. Required."""
    at_most: int = Field(ge=FEWEST_SEEDS, le=1000)
    """Largest number of seeds of an arm, from 3 to 1000: the seeds are 0 to `at_most` − 1. It is
    the last look. Required."""
    looks: Annotated[tuple[int, ...], _as_tuple, AfterValidator(_check_looks)] | None = None
    """Increasing numbers of seeds, from 3 to `at_most`, at which comparisons are decided.
    Default: those of 3, 5 and 8 that are below `at_most`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.looks and self.looks[-1] > self.at_most:
            raise ValueError(
                f"looks must not exceed at_most (got {self.looks[-1]} and {self.at_most}); raise "
                "at_most or remove the look"
            )
        return self

    @property
    def all_looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which comparisons are decided, `at_most` last."""
        return (*(look for look in self.looks or LOOKS if look < self.at_most), self.at_most)


_LIST, _UNTIL = f"{FORM}list", f"{FORM}until"
Seeds = Annotated[
    Annotated[SeedList, Tag(_LIST)] | Annotated[UntilDecided, Tag(_UNTIL)],
    Discriminator(lambda value: _UNTIL if isinstance(value, Mapping | UntilDecided) else _LIST),
]


class StopSection(OneOf):
    """Stop poor runs of a search early, with exactly one scheduler."""

    OPTIONS = frozenset({"audit"})

    audit: Share = 0.05
    """Share of the runs to be stopped that keep training, to measure how often stopping is wrong:
    from 0 to below 1, or a percentage. If fewer than two runs did, two of the stopped runs are
    completed after the other trials; 0 turns audits off. Default: 0.05."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ = self.kind
        return self

    @property
    def scheduler(self) -> SchedulerConfig:
        config: SchedulerConfig = getattr(self, self.kind)
        return config


if TYPE_CHECKING:
    Stop = StopSection
else:
    _configs = {name: load_scheduler(name) for name in scheduler_names()}
    _rules = {
        name: (config | None, Field(None, description=config.__doc__))
        for name, config in _configs.items()
    }
    Stop = create_model("Stop", __base__=StopSection, __doc__=StopSection.__doc__, **_rules)


class LadderConfig(Section):
    """Selection of finalists after a search. The base config is a finalist in addition."""

    finalists: int = Field(ge=1)
    """Number of best configs that run to full length with every seed, at least 1; the base config
    runs too, for comparison. Required."""
    per: str | None = None
    """A varied key; select `finalists` configs for each of its values. Default: of all configs."""


class TableConfig(Section):
    """The table that a report shows."""

    rows: str
    """Config key whose values are the rows. Required."""
    columns: str | None = None
    """Config key whose values are the columns; must differ from `rows`. Default: one column."""
    metric: MetricName = "probe_top1"
    """Metric to show. Default: probe_top1, or knn_top1 if `eval.probe` is none."""
    paper: str | None = None
    """Name of a table of the ASCL paper to compare with. Default: none."""
    baseline: Annotated[dict[str, object], Field(min_length=1)] | None = None
    """The arm that other arms are compared with, as `{config key: value}`. Default: the base."""


class Budget(Section):
    """Limits of a sweep."""

    trials: int | None = Field(None, ge=1)
    """Maximum number of configs, at least 1; a search tries the base first. Default: all cells;
    required with a searcher."""
    hours: float | None = Field(None, gt=0)
    """Hours after which the sweep has ended. Shortly before, no more runs start and live runs
    finish their epoch; `ascl-sweep run` then resumes. Default: no limit."""
    silence_minutes: float = Field(15, gt=0)
    """Minutes without progress after which a run is killed and retried; at least 10 of its median
    epochs. Default: 15."""
