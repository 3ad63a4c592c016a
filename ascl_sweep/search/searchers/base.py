"""The searcher protocol and the registry of searchers.

A searcher decides which config a search tries next. Every other module of this package defines one:
`build(spec, known)` creates the searcher from a sweep and the known outcomes. A searcher that draws
from domains also defines `Config`, the section of a sweep file under `space:` that has the module's
name.
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ascl_sweep.contracts import RunState

if TYPE_CHECKING:
    from ascl_sweep.spec.domains import DomainSpace
    from ascl_sweep.spec.sweep import SweepSpec

LISTED = "listed"
"""Name of the searcher for spaces that list their cells."""


@dataclass(frozen=True)
class Outcome:
    """The result of one config."""

    changes: Mapping[str, object]
    curve: Mapping[int, float]
    """The searched metric by epoch."""
    state: RunState
    """Any other state than `done` and `stopped` means that the run has no value."""


@dataclass(frozen=True)
class Proposal:
    """A config to try, as changes to the base."""

    ticket: int
    changes: Mapping[str, object]


class Searcher(Protocol):
    """The state of one search. Outcomes of proposals may arrive in any order."""

    @property
    def adaptive(self) -> bool:
        """Whether proposals depend on outcomes. If not, the study requests all at the start."""
        ...

    def ask(self) -> Proposal | None:
        """Return the next config, or None if there are no more."""
        ...

    def tell(self, ticket: int, outcome: Outcome) -> None:
        """Record the outcome of a proposal."""
        ...

    def add(self, outcome: Outcome) -> None:
        """Record a run that this searcher did not propose, such as one from before a restart."""
        ...


def searcher_names() -> tuple[str, ...]:
    """Return the names of all searchers: the modules of this package."""
    package = importlib.import_module(__package__)
    return tuple(sorted({m.name for m in pkgutil.iter_modules(package.__path__)} - {"base"}))


def space_models() -> dict[str, type["DomainSpace"]]:
    """Return the `space:` section of each searcher that draws from domains."""
    modules = {name: importlib.import_module(f"{__package__}.{name}") for name in searcher_names()}
    return {name: m.Config for name, m in modules.items() if hasattr(m, "Config")}


def build_searcher(spec: "SweepSpec", known: Sequence[Outcome]) -> Searcher:
    """Build the searcher of a sweep from the known outcomes."""
    name = spec.space.kind if spec.space.domains else LISTED
    searcher: Searcher = importlib.import_module(f"{__package__}.{name}").build(spec, known)
    return searcher
