"""Placement of runs on a changing cluster: which runs may start and which nodes they avoid."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ascl.metrics import EpochMetrics
from ascl_sweep.runtime.cluster import Cluster
from ascl_sweep.runtime.health import ClusterHealth
from ascl_sweep.search.study import PlannedRun
from ascl_sweep.spec.sweep import Resources

MOVE_SECONDS = 15.0  # a run leaves a draining node so long before the node ends
SHORTEST_NOTICE = 120.0  # a node that drains without a deadline may end as soon, as on AWS


@dataclass
class Attempt:
    """One attempt at a run, from its handover to the executor until it ends or is requeued."""

    run: PlannedRun
    number: int
    resources: Resources
    avoid: frozenset[str]
    """Nodes that the attempt must not be placed on."""
    epochs: list[EpochMetrics]
    """Metrics of all finished epochs of the run, including those of earlier attempts."""
    nodes: tuple[str, ...] = ()
    """Node id of each rank; empty while the attempt waits for its slot. Until its own first result,
    the nodes of its resources in any order."""
    avoid_devices: frozenset[str] = frozenset()
    """Devices that its workers hold instead of training on them."""
    heard: float = 0.0
    """Monotonic time of the last result or heartbeat; at first, of the handover."""
    epoch_began: float = 0.0
    """Monotonic time of the last saved result; at first, of the start."""
    devices: tuple[str, ...] = ()
    """Device of each rank; empty while they are not known."""

    @property
    def is_waiting(self) -> bool:
        return not self.nodes


class Placement:
    """Decides which runs may start. Reads the live attempts, which the controller owns."""

    def __init__(
        self,
        read_cluster: Callable[[], Cluster],
        resources: Resources,
        attempts: Mapping[str, Attempt],
        concurrency: int | None = None,
        health: ClusterHealth | None = None,
    ) -> None:
        """Read the cluster for the first time.

        Args:
            read_cluster: Returns the current state of the cluster.
            resources: Resources of the sweep's runs, including all cases.
            attempts: Live attempts by run id; shared with the controller, never changed here.
            concurrency: Maximum number of parallel runs; None for as many as fit.
            health: What earlier sweeps have found about the cluster.
        """
        self._read_cluster, self._resources = read_cluster, resources
        self._attempts, self._concurrency = attempts, concurrency
        known = health or ClusterHealth()
        self.health, self.devices = known.nodes, known.devices
        self._parked: dict[tuple[str, int], Attempt] = {}
        """Attempts whose processes hold an excluded device, by run id and number."""
        self._notices: dict[str, float] = {}
        """Unix time when each draining node ends."""
        self._draining: dict[str, float] = {}
        """Monotonic time when each draining node ends."""
        self.slots = 0
        """Maximum number of live runs."""
        self._had_slots = time.monotonic()
        self.refresh()

    def refresh(self) -> list[str]:
        """Read the cluster again; return the waiting runs that no longer have a slot."""
        self.cluster = self._read_cluster()
        self._draining = self._read_notices()
        slots = self._slots_by_kind()
        if self.health.excluded and self._readmission_helps(slots):
            self.health.readmit_all()
            slots = self._slots_by_kind()
        self._release_readmitted()
        if self._parked and not all(slots) and not self._attempts:
            self.devices.readmit_all()  # the sweep would wait forever
            self._parked.clear()
            slots = self._slots_by_kind()
        self.slots = min(max(slots), self._concurrency or max(slots))
        placed = [a.resources for a in self._charged() if not a.is_waiting]
        without_slot = []
        for run_id, attempt in self._attempts.items():
            if not attempt.is_waiting:
                continue
            wanted = attempt.resources
            if self.cluster.count_slots(wanted, attempt.avoid) and self._fits(wanted, placed):
                placed.append(wanted)
            else:
                without_slot.append(run_id)
        if placed or all(slots):
            self._had_slots = time.monotonic()
        return without_slot

    def _read_notices(self) -> dict[str, float]:
        """Return the monotonic time when each draining node ends; the clock may be set later."""
        known, now = self._notices, time.monotonic()
        since_boot = now - time.time()
        ends = {node.node_id: node.drains_until for node in self.cluster.nodes}
        self._notices = {node: end for node, end in ends.items() if end is not None}

        def ends_at(node: str, end: float) -> float:
            if known.get(node) == end:
                return self._draining[node]
            return now + SHORTEST_NOTICE if math.isinf(end) else end + since_boot

        return {node: ends_at(node, end) for node, end in self._notices.items()}

    def _slots_by_kind(self) -> list[int]:
        out, held = self.health.excluded, self._held()
        return [self.cluster.count_slots(kind, out, held) for kind in self._resources.kinds()]

    def _readmission_helps(self, slots: Sequence[int]) -> bool:
        """Whether some runs of the sweep fit on excluded nodes only."""
        kinds = self._resources.kinds()
        return any(
            not count and self.cluster.count_slots(kind)
            for kind, count in zip(kinds, slots, strict=True)
        )

    def _fits(self, wanted: Resources, taken: Sequence[Resources]) -> bool:
        if self._concurrency and len(taken) >= self._concurrency:
            return False
        taken = [*taken, *self._held()]
        return self.cluster.count_slots(wanted, self.health.excluded, taken) > 0

    def _charged(self) -> list[Attempt]:
        """Return the live attempts that use counted capacity."""
        return [attempt for attempt in self._attempts.values() if self._uses_capacity(attempt)]

    def _uses_capacity(self, attempt: Attempt) -> bool:
        """Whether an attempt is not on nodes that are all excluded or draining."""
        out = self.health.excluded.union(self._draining)
        return attempt.is_waiting or not out.issuperset(attempt.nodes)

    @property
    def has_free_slot(self) -> bool:
        """Whether one more run may fit. A cheap check: executors poll it continuously."""
        uncounted = self.health.excluded or self._draining
        live = self._charged() if uncounted else self._attempts
        return len(live) < self.slots

    def admits(self, wanted: Resources) -> bool:
        """Whether a run may start now.

        No run overtakes a larger waiting run, which might otherwise wait until the sweep ends.
        """
        waiting = (a.resources for a in self._attempts.values() if a.is_waiting)
        if any(_size(other) > _size(wanted) for other in waiting):
            return False
        return self._fits(wanted, [attempt.resources for attempt in self._charged()])

    def choose_avoided(self, run_id: str, wanted: Resources) -> frozenset[str]:
        """Return the nodes that a run must avoid; none if the run fits on no other node."""
        # Ray uses no draining node for new processes, but Tune reuses processes on such a node.
        avoid = self.health.avoided_by(run_id).union(self._draining)
        return avoid if self.cluster.count_slots(wanted, avoid) else frozenset()

    # ------------------------------------------------------------ faulty devices
    #
    # Ray 2.60 cannot keep a run off one GPU of a node, and a GPU that is free is assigned to the
    # next process. So a run that is placed on an excluded GPU trains nothing, but its processes
    # stay and hold the GPU: its attempt is parked. The run is requeued, and the parked resources
    # count as taken. This costs one start per excluded GPU and needs no placeholder of its own. A
    # parked attempt of several workers holds their healthy GPUs too: at most one slot is lost.

    def on_devices(self, attempt: Attempt, devices: tuple[str, ...]) -> list[str]:
        """Record the devices of an attempt; return what is newly excluded."""
        attempt.devices = devices
        return _names((), set().union(*map(self.devices.on_start, devices)))

    def must_park(self, attempt: Attempt) -> bool:
        """Whether an attempt must not train, because a device of it is excluded."""
        return not self.devices.excluded.isdisjoint(attempt.devices)

    def park(self, run_id: str, attempt: Attempt) -> None:
        """Keep an attempt's processes, which hold an excluded device."""
        self._parked[run_id, attempt.number] = attempt

    def is_parked(self, run_id: str, number: int) -> bool:
        return (run_id, number) in self._parked

    def unpark(self, run_id: str, number: int) -> bool:
        """Forget a parked attempt whose processes have ended; return whether it was parked."""
        return self._parked.pop((run_id, number), None) is not None

    def _release_readmitted(self) -> None:
        self._parked = {key: held for key, held in self._parked.items() if self.must_park(held)}

    def _held(self) -> list[Resources]:
        return [held.resources for held in self._parked.values() if self._uses_capacity(held)]

    def on_progress(self, attempt: Attempt) -> list[str]:
        """Record a finished epoch; return what is newly excluded."""
        nodes = self.health.on_progress(attempt.nodes)
        return _names(nodes, self.devices.on_progress(attempt.devices))

    def on_failure(
        self, run_id: str, attempt: Attempt, rank: int | None, *, died: bool
    ) -> list[str]:
        """Record a failed run or a dead process, of one rank if it is known."""
        ranks = slice(None) if rank is None else slice(rank, rank + 1)
        nodes, devices = attempt.nodes[ranks], attempt.devices[ranks]
        # A process is no part of a node that fails while other processes of the node work.
        parts = devices if attempt.resources.gpus_per_worker else ()
        record = self.health.on_death if died else self.health.on_failure
        found = record(run_id, nodes, parts)
        return _names(found, self.devices.on_death(run_id, devices) if devices else set())

    def on_node_fault(self, run_id: str, attempt: Attempt, rank: int | None) -> list[str]:
        """Record a failure that is the fault of a node, of one rank's if it is known."""
        nodes = attempt.nodes if rank is None else attempt.nodes[rank : rank + 1]
        return _names(self.health.on_death(run_id, nodes), ())

    def fits_elsewhere(self, run_id: str, wanted: Resources) -> bool:
        """Whether a worker of a run fits on a node that the run need not avoid."""
        nodes = self.cluster.nodes_that_fit(wanted)
        return not self.health.avoided_by(run_id).issuperset(nodes)

    def blames_device(self, run_id: str, attempt: Attempt, rank: int | None = None) -> bool:
        """Whether a failure is the fault of the device, so that it must not count for the run."""
        devices = attempt.devices if rank is None else attempt.devices[rank : rank + 1]
        return bool(devices) and self.devices.blames(devices, run_id)

    @property
    def seconds_without_slots(self) -> float:
        return time.monotonic() - self._had_slots

    def has_lost_node(self, nodes: Collection[str]) -> bool:
        """Whether any of these nodes is draining or no longer in the cluster."""
        return not {node.node_id for node in self._read_cluster().lasting}.issuperset(nodes)

    def seconds_to_move(self, attempt: Attempt) -> float | None:
        """Return for how long an attempt may still train; None if its nodes are not draining."""
        ends = [self._draining[node] for node in attempt.nodes if node in self._draining]
        return min(ends) - time.monotonic() - MOVE_SECONDS if ends else None

    def can_retry_elsewhere(self, run_id: str, wanted: Resources) -> bool:
        """Whether a failed run is to be retried on another node."""
        return self.health.deserves_retry(run_id, self.cluster.nodes_that_fit(wanted))


def _names(nodes: Iterable[str], devices: Iterable[str]) -> list[str]:
    return [f"node {node[:8]}…" for node in nodes] + [f"device {device}" for device in devices]


def _size(wanted: Resources) -> tuple[float, float]:
    """Return total GPUs and CPUs; GPUs first, because they are scarcer."""
    return wanted.workers * wanted.gpus_per_worker, wanted.workers * wanted.cpus_per_worker
