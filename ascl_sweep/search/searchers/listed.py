"""Searcher for listed spaces: proposes each cell once, in file order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ascl_sweep.search.searchers.base import Outcome, Proposal

if TYPE_CHECKING:
    from ascl_sweep.spec.sweep import SweepSpec


class ListedSearcher:
    """Proposes the cells of a sweep; ignores outcomes."""

    adaptive = False

    def __init__(self, spec: "SweepSpec", known: Sequence[Outcome] = ()) -> None:
        self._left = enumerate(spec.cells())

    def ask(self) -> Proposal | None:
        ticket, cell = next(self._left, (0, None))
        return None if cell is None else Proposal(ticket, cell.changes)

    def tell(self, ticket: int, outcome: Outcome) -> None:
        pass

    def add(self, outcome: Outcome) -> None:
        pass


build = ListedSearcher
