"""The sections of a sweep file, each with what it may say."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_validator,
)

from ascl.config import Section
from ascl_sweep.domains import one_of, the_one
from ascl_sweep.space import Cell, Space

Metric = Literal[
    "probe_top1",
    "knn_top1",
    "test_top1",
    "confidence",
    "effective_neighbours",
    "purity",
    "neighbour_top1",
]


def _share(value: Any) -> Any:
    """10% or 0.1."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,3}(\.\d{1,9})?\s*%", value.strip()):
        return float(value.strip().rstrip("% ")) / 100
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise ValueError(f"must be a share, such as 10% or 0.1, got {value!r}")
    return value


def _below_one(value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"must be a share from 0 to below 1, such as 10% or 0.1, got {value!r}")
    return float(value)


def _moment(value: Any) -> Any:
    """10% or 0.1 of the epochs, or so many epochs."""
    value = _share(value)
    if not (0 < value < 1 if isinstance(value, float) else value >= 1):
        raise ValueError(
            "must be a whole number of epochs, or a share of them such as 10% or 0.1, "
            f"got {value!r}"
        )
    return value


def _positive(value: float) -> float:
    if value == 0:
        raise ValueError("must be above 0, got 0")
    return value


def _word(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,79}", value, re.ASCII):
        raise ValueError(
            f"must be a word of letters, digits, `_`, `-` and `.`, for it names files, "
            f"got {value!r}"
        )
    return value


def _whole_or_part(value: float) -> float:
    if value > 1 and value != int(value):
        raise ValueError(f"must be a part of one GPU or a whole number of them, got {value!r}")
    return value


def _once(values: list[int]) -> list[int]:
    if not values or len(set(values)) < len(values):
        raise ValueError(f"must list at least one seed and each once, got {values!r}")
    return values


_SHARE_SCHEMA = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[0-9.]+ ?%$"}]}
Share = Annotated[
    int | float,
    BeforeValidator(_share),
    AfterValidator(_below_one),
    WithJsonSchema(_SHARE_SCHEMA),
]
Moment = Annotated[int | float, BeforeValidator(_moment), WithJsonSchema(_SHARE_SCHEMA)]


class Asha(Section):
    metric: Literal["knn_top1"] = "knn_top1"
    grace: Moment = 0.1
    """No run is stopped before this epoch, or this share of the epochs."""
    factor: float = Field(3, gt=1, le=1000)
    """One in so many runs passes a rung."""


class Median(Section):
    metric: Literal["knn_top1"] = "knn_top1"
    grace: Moment = 0.1
    """No run is stopped before this epoch, or this share of the epochs."""


class KeepTop(Section):
    metric: Literal["knn_top1"] = "knn_top1"
    share: Annotated[Share, AfterValidator(_positive)] = 0.125
    """The part of the runs that goes on."""
    at: Moment = 0.2
    """The epoch at which it is chosen, or its share of the epochs."""


class StopFile(Section, json_schema_extra=one_of(("asha", "median", "keep_top"))):
    """Stop the worse runs of a search early, by exactly one of the rules."""

    RULES: ClassVar = ("asha", "median", "keep_top")

    asha: Asha | None = None
    median: Median | None = None
    keep_top: KeepTop | None = None
    audit: Share = 0.05
    """Part of the would-be-stopped runs that is let through, to count false stops."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        the_one(self, self.RULES)
        return self


@dataclass(frozen=True)
class StopConfig:
    """When a run of a search is ended early; a float in `grace` or `at` is a share of the epochs.

    `factor` is ASHA's; `share` and `at` are those of keep_top.
    """

    rule: Literal["asha", "median", "keep_top"]
    metric: Literal["knn_top1"] = "knn_top1"
    grace: int | float = 0.1
    factor: float = 3
    share: float = 0.125
    at: int | float = 0.2
    audit: float = 0.05

    @classmethod
    def of(cls, file: StopFile) -> Self:
        rule = the_one(file, StopFile.RULES)
        return cls(rule=rule, audit=file.audit, **dict(getattr(file, rule)))  # type: ignore[arg-type]

    def grace_epochs(self, epochs: int) -> int:
        """The first epoch after which a run of that length may be stopped."""
        return _epochs(self.grace, epochs)

    def at_epochs(self, epochs: int) -> int:
        """The epoch at which keep_top chooses, in runs of that length."""
        return _epochs(self.at, epochs)


def _epochs(moment: int | float, epochs: int) -> int:
    return moment if isinstance(moment, int) else max(1, round(moment * epochs))


class LadderConfig(Section):
    finalists: int = Field(ge=1)
    """How many of a search's best run to full length with every seed."""
    per: str | None = None
    """A searched key: that many finalists for each of its values."""


class TableConfig(Section):
    rows: str
    columns: str | None = None
    metric: Metric = "probe_top1"
    """knn_top1 if absent and runs have no probe."""
    paper: str | None = None
    """Which of the paper's tables to show beside it."""
    baseline: Annotated[dict[str, Any], Field(min_length=1)] | None = None
    """The values that pick the arm the others are compared with."""


GPUs = Annotated[float, AfterValidator(_whole_or_part), Field(ge=0, le=1024)]


class Case(Section):
    """What some runs of a sweep get instead; what it does not say stays."""

    when: Annotated[dict[str, Any], Field(min_length=1)]
    """Values of config keys that pick the runs; a list stands for any of its values."""
    workers: int | None = Field(None, ge=1, le=4096)
    gpus_per_worker: GPUs | None = None
    cpus_per_worker: float | None = Field(None, gt=0, le=4096)


class Resources(Section):
    workers: int = Field(1, ge=1, le=4096)
    """Processes that train one run together."""
    gpus_per_worker: GPUs = 0
    """A part of one, so that runs share a GPU, or a whole number."""
    cpus_per_worker: float = Field(1, gt=0, le=4096)
    cases: list[Case] = Field(default_factory=list)
    """Runs that get something else; of several cases that hold, the first counts."""

    def of(self, config: Mapping[str, Any]) -> "Resources":
        """What a run gets, by its config's values at dotted keys."""
        for case in self.cases:
            if Cell({}).matches(case.when, config):
                return self._in(case)
        return self.model_copy(update={"cases": []})

    def kinds(self) -> list["Resources"]:
        """All that runs of the sweep may get, each once."""
        kinds = [self.model_copy(update={"cases": []})]
        return kinds + [kind for kind in map(self._in, self.cases) if kind not in kinds]

    def _in(self, case: Case) -> "Resources":
        own = {key: value for key, value in case if key != "when" and value is not None}
        return self.model_copy(update={"cases": [], **own})


class Budget(Section):
    trials: int | None = Field(None, ge=1)
    """Configurations to try at most."""
    hours: float | None = Field(None, gt=0)
    """Stop starting runs after so long; what is left is resumed by the next call."""


class SweepFile(Section):
    """A sweep, as a YAML file says it."""

    name: Annotated[str, AfterValidator(_word)]
    base: dict[str, Any] = Field(default_factory=dict)
    """The config that all runs start from."""
    space: Space = Space()
    """What varies; absent, the base is the only cell."""
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AfterValidator(_once)] = Field(
        default_factory=lambda: [0]
    )
    """Every arm runs with each of them; a search with the first, its finalists with all."""
    epochs: int | None = Field(None, ge=1)
    """Length of a full run; the base's if absent."""
    stop: StopFile | None = None
    """Makes the sweep a search; absent, every run finishes."""
    ladder: LadderConfig | None = None
    """After a search, run the finalists to full length with every seed."""
    table: TableConfig | None = None
    resources: Resources = Resources()
    budget: Budget = Budget()


def fields_at(annotation: Any, path: Sequence[object]) -> list[str]:
    """The field names of the section at a path, seen through options, lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        if not path:
            return list(fields)
        field = fields.get(str(path[0]))
        return fields_at(field.annotation, path[1:]) if field else []
    inside = get_args(annotation)
    if get_origin(annotation) in (list, dict):
        return fields_at(inside[-1], path[1:])
    if get_origin(annotation) is Annotated:
        inside = inside[:1]
    return [name for part in inside for name in fields_at(part, path)]
