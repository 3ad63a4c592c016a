"""Where the runs of a sweep are and may go, while machines come, go and break."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ascl_sweep.nodes import Nodes
from ascl_sweep.room import Cluster
from ascl_sweep.spec import Resources


@dataclass
class Places:
    """How many runs may be handed out, and which machines each is to avoid."""

    look: Callable[[], Cluster]
    """The cluster as it is now."""
    resources: Resources
    concurrency: int | None = None
    """Runs at once, at the most."""
    nodes: Nodes = field(default_factory=Nodes)
    waiting: dict[str, frozenset[str]] = field(default_factory=dict)
    """Runs that were handed out and have not begun, and the machines that each avoids."""
    _taken: dict[str, Resources] = field(default_factory=dict)
    """What was handed to whom."""
    _attempts: Counter[str] = field(default_factory=Counter)
    _nodes_of: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._had_room = time.monotonic()
        self.refresh()

    def refresh(self) -> list[str]:
        """Look at the cluster; which of the runs that were handed out have no place any more."""
        self.cluster = self.look()
        rooms = self._rooms()
        if self.nodes.left_out and self._forgiving_helps(rooms):
            self.nodes.forgive()
            rooms = self._rooms()
        self.room = min(max(rooms), self.concurrency or max(rooms))
        begun = [wanted for run, wanted in self._charged() if run not in self.waiting]
        homeless = []
        for run, avoid in self.waiting.items():
            if self._room_for(self._taken[run], avoid) and self._fits(self._taken[run], begun):
                begun.append(self._taken[run])
            else:
                homeless.append(run)
        if begun or all(rooms):
            self._had_room = time.monotonic()
        return homeless

    def _rooms(self) -> list[int]:
        """How many runs of each kind the cluster holds."""
        kinds = self.resources.kinds()
        return [self._room_for(kind, self.nodes.left_out) for kind in kinds]

    def _forgiving_helps(self, rooms: Sequence[int]) -> bool:
        """Whether a kind has no room but on machines that are left out."""
        kinds = self.resources.kinds()
        return any(
            not room and self._room_for(kind, ()) for kind, room in zip(kinds, rooms, strict=True)
        )

    def _room_for(self, wanted: Resources, avoid: Collection[str]) -> int:
        return self.cluster.room(wanted, avoid)

    def _fits(self, wanted: Resources, taken: Sequence[Resources]) -> bool:
        if self.concurrency and len(taken) >= self.concurrency:
            return False
        return self.cluster.room(wanted, self.nodes.left_out, taken) > 0

    @property
    def free(self) -> bool:
        """Whether there may be room for one more run, of what kind ever: asked all the time."""
        return len(self._taken) < self.room

    def takes(self, wanted: Resources) -> bool:
        """Whether a run may be handed out now.

        None overtakes a larger one that waits for its place, which it might wait for until the end.
        """
        if any(_size(self._taken[run]) > _size(wanted) for run in self.waiting):
            return False
        return self._fits(wanted, [taken for _, taken in self._charged()])

    def _charged(self) -> list[tuple[str, Resources]]:
        """What was handed to whom, without runs on machines that are left out and do not count."""
        out = self.nodes.left_out
        return [
            (run, wanted)
            for run, wanted in self._taken.items()
            if not (nodes := self._nodes_of.get(run)) or not out.issuperset(nodes)
        ]

    @property
    def without_room(self) -> float:
        """Seconds since there was last room for a run."""
        return time.monotonic() - self._had_room

    def hand_out(self, run_id: str, wanted: Resources) -> tuple[int, list[str]]:
        """The number of this attempt at a run, and the machines that it is to avoid.

        Only as long as there are others: a run never waits for a machine that cannot come.
        """
        avoid = self.nodes.avoided_by(run_id)
        self.waiting[run_id] = avoid if self._room_for(wanted, avoid) else frozenset()
        self._taken[run_id] = wanted
        self._attempts[run_id] += 1
        return self._attempts[run_id], sorted(self.waiting[run_id])

    def is_current(self, run_id: str, attempt: int) -> bool:
        return self._attempts[run_id] == attempt

    def began(self, run_id: str, nodes: Collection[str]) -> None:
        self.waiting.pop(run_id, None)
        self._nodes_of[run_id] = tuple(nodes)

    def got_on(self, run_id: str) -> set[str]:
        """A run has finished an epoch; which machines are left out from now on."""
        return {bad for node in self._nodes_of.get(run_id, ()) for bad in self.nodes.got_on(node)}

    def machine_is_gone(self, run_id: str) -> bool:
        """Whether one of a run's machines is no longer there, now that its process is not."""
        there = {node.node_id for node in self.look().nodes}
        return not there.issuperset(self._nodes_of.get(run_id, ()))

    def died(self, run_id: str) -> set[str]:
        """A run's process is gone, and its machine is not; as `got_on`."""
        return self.nodes.died(run_id, self._nodes_of.get(run_id, ()))

    def failed(self, run_id: str, rank: int | None) -> set[str]:
        """A run has failed, on one of its ranks if that is known; as `got_on`."""
        nodes = self._nodes_of.get(run_id, ())
        return self.nodes.failed(run_id, nodes if rank is None else nodes[rank : rank + 1])

    def another(self, run_id: str) -> bool:
        """Whether a failed run is to be tried on another machine."""
        return self.nodes.another(run_id, self.cluster.holding(self._taken[run_id]))

    def ended(self, run_id: str) -> None:
        """A run is over, or put back."""
        self.waiting.pop(run_id, None)
        self._taken.pop(run_id, None)
        self._nodes_of.pop(run_id, None)


def _size(wanted: Resources) -> tuple[float, float]:
    """What a run takes in all; GPUs are scarcer."""
    return wanted.workers * wanted.gpus_per_worker, wanted.workers * wanted.cpus_per_worker
