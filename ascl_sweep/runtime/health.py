"""Detection of faulty nodes and devices. Pure decisions: no Ray, no clock.

A run may fail because of its config, its node (a full disk, missing data) or its device (a dead
GPU). A failed run is therefore retried once on another node or device. A node or device with
several consecutive failures is excluded while runs make progress elsewhere.

A device is a GPU, as Ray numbers it on its node; for a run without a GPU it is the worker process.
A run of several workers has several devices. If one of its processes dies, the failure counts for
all of them, because nothing tells which one has failed.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

FAILURES = 3  # consecutive failures after which a node or device is excluded


@dataclass
class Health:
    """Record of failures and progress by place: by node, or by device."""

    excluded: set[str] = field(default_factory=set)
    _in_a_row: defaultdict[str, list[tuple[str, frozenset[str]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Failures of each place since its last progress: run id and parts of the place, if known."""
    _good: set[str] = field(default_factory=set)
    _failed_on: defaultdict[str, list[frozenset[str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The places of each failure of a run."""
    _failures: Counter[str] = field(default_factory=Counter)
    _deaths: Counter[str] = field(default_factory=Counter)

    def on_start(self, place: str) -> set[str]:
        """Record that a run trains at a place; return newly excluded places."""
        if place not in self._in_a_row:
            self._good.add(place)
        return self._judge()

    def on_progress(self, places: Iterable[str]) -> set[str]:
        """Record an epoch that was finished at these places; return newly excluded places."""
        for place in places:
            self._in_a_row.pop(place, None)
            self._good.add(place)
            self.excluded.discard(place)
        return self._judge()

    def on_failure(
        self, run_id: str, places: Collection[str], parts: Iterable[str] = ()
    ) -> set[str]:
        """Record a run that failed at these places; return newly excluded places.

        Args:
            run_id: The run.
            places: The places.
            parts: Parts of the places, at least one of which failed: failures of one GPU count
                once against its node, because the other GPUs of the node may work.
        """
        self._failures[run_id] += 1
        return self.on_death(run_id, places, parts)

    def on_death(self, run_id: str, places: Collection[str], parts: Iterable[str] = ()) -> set[str]:
        """Record a process that died although its nodes are alive; return newly excluded places."""
        parts = frozenset(parts)
        self._deaths[run_id] += 1
        self._failed_on[run_id].append(frozenset(places))
        for place in {*places}:
            row = self._in_a_row[place]
            if all(parts.isdisjoint(known) for _, known in row):
                row.append((run_id, parts))
            self._good.discard(place)
        return self._judge()

    def _judge(self) -> set[str]:
        bad = {place for place, row in self._in_a_row.items() if len(row) >= FAILURES}
        found = bad - self.excluded if self._good - bad else set()
        self.excluded |= found
        return found

    def deserves_retry(self, run_id: str, places: Collection[str]) -> bool:
        """Whether a failed run is retried: once, if there is a place where it has not failed."""
        return self._failures[run_id] == 1 and bool({*places} - self.avoided_by(run_id))

    def blames(self, places: Collection[str], run_id: str) -> bool:
        """Whether a failure of a run is the fault of its places, as far as is known.

        It is the fault of the run if the run has failed elsewhere as well, if it keeps failing, or
        if there is no evidence that the run would work elsewhere.
        """
        bad = self.excluded.union(places)
        elsewhere = any(bad.isdisjoint(failure) for failure in self._failed_on.get(run_id, ()))
        return not elsewhere and self._deaths[run_id] <= FAILURES and bool(self._good - {*places})

    def retract(self, run_id: str) -> None:
        """Forget the failures of a run that is itself faulty; readmit places that it excluded."""
        for place in frozenset().union(*self._failed_on.pop(run_id, [])):
            row = [failure for failure in self._in_a_row.pop(place, []) if failure[0] != run_id]
            if row:
                self._in_a_row[place] = row
            if len(row) < FAILURES:
                self.excluded.discard(place)

    def avoided_by(self, run_id: str) -> frozenset[str]:
        """Return the places where a run must not be placed."""
        return frozenset(self.excluded).union(*self._failed_on.get(run_id, ()))

    def readmit_all(self) -> None:
        """Forget all failures, for when only excluded places have capacity."""
        self.excluded.clear()
        self._in_a_row.clear()
        self._failed_on.clear()


@dataclass(frozen=True)
class ClusterHealth:
    """Health of a cluster. All sweeps of a driver share it."""

    nodes: Health = field(default_factory=Health)
    devices: Health = field(default_factory=Health)
    """Health of the GPUs, and of processes without one."""
