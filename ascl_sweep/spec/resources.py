"""CPUs and GPUs of each run of a sweep."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from ascl.config import Section
from ascl_sweep.spec.domains import BASE


def _check_gpus(value: float) -> float:
    if value > 1 and value != int(value):
        raise ValueError(f"must be a fraction of one GPU or a whole number of GPUs, got {value!r}")
    return value


GPUs = Annotated[float, AfterValidator(_check_gpus), Field(ge=0, le=1024)]


class Case(Section):
    """Different resources for some runs of a sweep; keys not given keep the sweep's value."""

    when: Annotated[dict[str, object], Field(min_length=1)]
    """Runs that this case applies to: `{config key: value}`; a list matches any of its items."""
    workers: int | None = Field(None, ge=1, le=4096)
    """Worker processes per run, 1 to 4096. Default: `resources.workers`."""
    gpus_per_worker: GPUs | None = None
    """GPUs per worker: a fraction or a whole number. Default: `resources.gpus_per_worker`."""
    cpus_per_worker: float | None = Field(None, gt=0, le=4096)
    """CPUs per worker, above 0. Default: `resources.cpus_per_worker`."""


class Resources(Section):
    """Resources of each run."""

    workers: int = Field(1, ge=1, le=4096)
    """Worker processes that train one run together (data parallel), 1 to 4096. Default: 1."""
    gpus_per_worker: GPUs = 0
    """GPUs per worker: a fraction below 1, so that runs share a GPU, or a whole number up to
    1024. Default: 0."""
    cpus_per_worker: float = Field(1, gt=0, le=4096)
    """CPUs per worker, above 0 and at most 4096. Default: 1."""
    cases: list[Case] = Field(default_factory=list)
    """Different resources for some runs; the first matching case applies. Default: none."""

    def of(self, config: Mapping[str, object]) -> "Resources":
        """Return the resources of a run, given its config values by dotted key."""
        for case in self.cases:
            if BASE.matches(case.when, config):
                return self._in(case)
        return self.model_copy(update={"cases": []})

    def kinds(self) -> list["Resources"]:
        """Return the distinct resources that runs of the sweep may request."""
        kinds = [self.model_copy(update={"cases": []})]
        return kinds + [kind for kind in map(self._in, self.cases) if kind not in kinds]

    def _in(self, case: Case) -> "Resources":
        own = {key: value for key, value in case if key != "when" and value is not None}
        return self.model_copy(update={"cases": [], **own})
