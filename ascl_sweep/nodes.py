"""Which machines of a cluster runs keep failing on. Decisions only: no Ray, no clock.

A run that fails on one machine may be wrong, or the machine may be (a dead GPU, a full disk, data
that were not fetched there). It is tried once more on another; a machine on which several runs fail
in a row, while runs get on elsewhere, is left out.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

FAILURES = 3  # so many in a row on one machine, while runs get on elsewhere: it is the machine


@dataclass
class Nodes:
    """What runs have come to on which machine."""

    left_out: set[str] = field(default_factory=set)
    _in_a_row: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _good: set[str] = field(default_factory=set)
    _failed_on: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _failures: Counter[str] = field(default_factory=Counter)

    def got_on(self, node: str) -> set[str]:
        """A run has finished an epoch there; which machines are left out for it, from now on."""
        self._in_a_row.pop(node, None)
        self._good.add(node)
        self.left_out.discard(node)
        return self._judge()

    def failed(self, run_id: str, nodes: Iterable[str]) -> set[str]:
        """A run has failed there; which machines are left out for it, from now on."""
        self._failures[run_id] += 1
        return self.died(run_id, nodes)

    def died(self, run_id: str, nodes: Iterable[str]) -> set[str]:
        """A run's process has died there, and the machine has not; as `failed`."""
        for node in nodes:
            self._failed_on[run_id].add(node)
            self._in_a_row[node] += 1
            self._good.discard(node)
        return self._judge()

    def _judge(self) -> set[str]:
        bad = {node for node, times in self._in_a_row.items() if times >= FAILURES}
        found = bad - self.left_out if self._good - bad else set()
        self.left_out |= found
        return found

    def another(self, run_id: str, there: Collection[str]) -> bool:
        """Whether a failed run deserves a second try: there is a machine it has not failed on."""
        others = set(there) - self._failed_on.get(run_id, set()) - self.left_out
        return self._failures[run_id] == 1 and bool(others)

    def avoided_by(self, run_id: str) -> frozenset[str]:
        """The machines that a run is not to be put on."""
        return frozenset(self.left_out | self._failed_on.get(run_id, set()))

    def forgive(self) -> None:
        """Only bad machines remain: better those than none."""
        self.left_out.clear()
        self._in_a_row.clear()
        self._failed_on.clear()
