"""What a report must know of a sweep, kept with it in the ledger.

A sweep file is only understood together with the trainer's configs, which takes PyTorch; a report
should open in a second. So what it asks for is written down when the sweep is started.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ascl_sweep.spec import SweepSpec


@dataclass(frozen=True)
class Digest:
    """A sweep with its overrides and scale applied, as far as tables and figures go."""

    axes: tuple[str, ...] = ()
    """The keys that it varies, in file order."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """What a run without changes has at those keys."""
    seeds: tuple[int, ...] = ()
    search: bool = False
    """Whether runs are selected, on a holdout."""
    trials: int | None = None
    """How many configurations a search may try."""
    finalists: int | None = None
    per: str | None = None
    """A searched key: that many finalists for each of its values."""
    order: tuple[str, ...] = ()
    """The run of each arm's first seed, in file order; of a search, whose arms come later, none."""
    stop: Mapping[str, Any] | None = None
    """The stopping rule, its epochs counted."""
    table: Mapping[str, Any] | None = None
    """The file's table: rows, columns, metric, paper, baseline."""
    distributions: Mapping[str, str] = field(default_factory=dict)
    """What Optuna draws from, by key, in its own JSON."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=list)

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; what an older version did not write has its default."""
        given = json.loads(text or "{}")
        known = {name: given[name] for name in cls.__dataclass_fields__ if name in given}
        for name in ("axes", "seeds", "order"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


def digest_of(spec: "SweepSpec") -> Digest:
    """What a report must know of this sweep."""
    from ascl_sweep.plan import axes

    varied = axes(spec)
    stop = None
    if spec.stop:
        epochs = int(spec.base_values["epochs"])
        stop = asdict(spec.stop) | {
            "grace": spec.stop.grace_epochs(epochs),
            "at": spec.stop.at_epochs(epochs),
        }
    cells = () if spec.is_search else spec.cells()[: spec.budget.trials]
    distributions = {}
    if spec.domains:
        from ascl_sweep.proposals import distribution_json  # Optuna takes a second to load

        distributions = {key: distribution_json(d) for key, d in spec.domains.items()}
    return Digest(
        axes=tuple(varied),
        base={key: spec.base_values.get(key) for key in varied},
        seeds=spec.seeds,
        search=spec.is_search,
        trials=spec.budget.trials,
        finalists=spec.ladder.finalists if spec.ladder else None,
        per=spec.ladder.per if spec.ladder else None,
        order=tuple(spec.config(c.changes, seed=spec.seeds[0]).identity() for c in cells),
        stop=stop,
        table=spec.table.model_dump(mode="json") if spec.table else None,
        distributions=distributions,
    )
