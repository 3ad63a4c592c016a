"""Where the runs of a sweep are and may go, while machines come, go and break."""

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ascl_sweep.cluster import Cluster
from ascl_sweep.nodes import Nodes
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
    _attempts: Counter[str] = field(default_factory=Counter)
    _nodes_of: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._had_room = time.monotonic()
        self.refresh(())

    def refresh(self, running: Collection[str]) -> list[str]:
        """Look at the cluster; which of the runs that were handed out have no place any more."""
        self.cluster = self.look()
        room = self.cluster.room(self.resources, self.nodes.left_out)
        if not room and self.nodes.left_out:
            self.nodes.forgive()
            room = self.cluster.room(self.resources)
        if room:
            self._had_room = time.monotonic()
        self.room = min(room, self.concurrency or room)
        too_many = len(running) - self.room
        misplaced = [run for run, avoid in self.waiting.items() if not self._room_for(avoid)]
        others = [run for run in self.waiting if run not in misplaced]
        return misplaced + others[: max(0, too_many - len(misplaced))]

    def _room_for(self, avoid: frozenset[str]) -> int:
        return self.cluster.room(self.resources, avoid)

    @property
    def without_room(self) -> float:
        """Seconds since there was last room for a run."""
        return time.monotonic() - self._had_room

    def hand_out(self, run_id: str) -> tuple[int, list[str]]:
        """The number of this attempt at a run, and the machines that it is to avoid.

        Only as long as there are others: a run never waits for a machine that cannot come.
        """
        avoid = self.nodes.avoided_by(run_id)
        self.waiting[run_id] = avoid if self._room_for(avoid) else frozenset()
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

    def died(self, run_id: str) -> set[str]:
        """A run's process is gone, and maybe its machine; as `got_on`."""
        there = {node.node_id for node in self.cluster.nodes}
        return self.nodes.died(there.intersection(self._nodes_of.get(run_id, ())))

    def failed(self, run_id: str, rank: int | None) -> set[str]:
        """A run has failed, on one of its ranks if that is known; as `got_on`."""
        nodes = self._nodes_of.get(run_id, ())
        return self.nodes.failed(run_id, nodes if rank is None else nodes[rank : rank + 1])

    def another(self, run_id: str) -> bool:
        """Whether a failed run is to be tried on another machine."""
        return self.nodes.another(run_id, [node.node_id for node in self.cluster.nodes])

    def ended(self, run_id: str) -> None:
        """A run is over, or put back."""
        self.waiting.pop(run_id, None)
        self._nodes_of.pop(run_id, None)
