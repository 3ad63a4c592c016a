"""Which runs may start and which nodes they avoid, on a simulated cluster."""

from unittest.mock import Mock

import pytest

from ascl_sweep.runtime.cluster import Cluster, Node
from ascl_sweep.runtime.health import FAILURES
from ascl_sweep.runtime.placement import Attempt, Placement
from ascl_sweep.spec.resources import Case, Resources

SMALL = Resources(cpus_per_worker=1)
LARGE = Resources(cpus_per_worker=4)


def mixed() -> Resources:
    """Return resources of small runs, with a case for large runs."""
    return Resources(cpus_per_worker=1, cases=[Case(when={"seed": 1}, cpus_per_worker=4)])


class World:
    """Cluster with the CPUs of each node by name, and the live attempts."""

    def __init__(self, resources: Resources, gpus: int = 0, **cpus: int) -> None:
        self.cpus, self.gpus = cpus, gpus
        self.attempts: dict[str, Attempt] = {}
        self.placement = Placement(self.cluster, resources, self.attempts)

    def cluster(self) -> Cluster:
        return Cluster(tuple(Node(name, cpus, self.gpus) for name, cpus in self.cpus.items()))

    def start(self, run_id: str, *nodes: str, wanted: Resources = SMALL) -> Attempt:
        """Start an attempt; without nodes it waits for its slot."""
        avoid = self.placement.choose_avoided(run_id, wanted)
        self.attempts[run_id] = Attempt(Mock(), 1, wanted, avoid, [], nodes)
        return self.attempts[run_id]

    def exclude(self, bad: str, good: str) -> None:
        self.start("good", good)
        self.placement.health.on_progress([good])
        for i in range(FAILURES):
            self.start(f"bad {i}", bad)
            self.placement.health.on_failure(f"bad {i}", [bad])
            del self.attempts[f"bad {i}"]
        assert self.placement.health.excluded == {bad}
        del self.attempts["good"]


def test_bad_nodes_are_readmitted_if_a_kind_of_run_fits_only_there() -> None:
    world = World(mixed(), small=1, large=4)
    world.exclude("large", good="small")
    world.placement.refresh()
    assert world.placement.health.excluded == set()


def test_bad_nodes_are_not_readmitted_for_a_kind_that_fits_nowhere() -> None:
    world = World(mixed(), bad=1, good=1, large=4)
    world.exclude("bad", good="good")
    del world.cpus["large"]
    world.placement.refresh()
    assert world.placement.health.excluded == {"bad"}
    assert world.placement.choose_avoided("bad 0", SMALL) == {"bad"}


def test_a_run_on_an_excluded_node_takes_no_slot_elsewhere() -> None:
    world = World(SMALL, bad=1, good=1)
    world.exclude("bad", good="good")
    world.start("still there", "bad")
    assert world.placement.admits(SMALL)
    world.start("waits")
    assert world.placement.refresh() == []


@pytest.mark.parametrize(
    "large",
    [Resources(workers=2), Resources(cpus_per_worker=2), Resources(gpus_per_worker=1)],
)
def test_no_run_overtakes_one_that_waits_for_more(large: Resources) -> None:
    world = World(SMALL, gpus=2, a=4)
    attempt = world.start("large", wanted=large)
    assert not world.placement.admits(SMALL) and world.placement.admits(large)
    attempt.nodes = ("a",)
    assert world.placement.admits(SMALL)


def test_a_failed_run_is_tried_again_only_where_a_worker_of_it_fits() -> None:
    world = World(SMALL, head=0, only=1)
    world.start("x", "only")
    world.placement.health.on_failure("x", ["only"])
    assert not world.placement.can_retry_elsewhere("x", SMALL), "the head offers no CPUs"
    world.cpus["added"] = 1
    world.placement.refresh()
    assert world.placement.can_retry_elsewhere("x", SMALL)


def test_a_node_that_was_just_lost_is_known_to_be_lost() -> None:
    world = World(SMALL, a=1, b=1)
    assert not world.placement.has_lost_node(["a"])
    del world.cpus["a"]
    assert world.placement.has_lost_node(["a"])


@pytest.mark.parametrize(("gpus", "excluded"), [(0, {"bad"}), (1, set())])
def test_failures_of_one_gpu_count_once_against_its_node_those_of_a_process_each(
    gpus: int, excluded: set[str]
) -> None:
    wanted = Resources(cpus_per_worker=1, gpus_per_worker=gpus)
    world = World(wanted, gpus=8, good=8, bad=8)
    healthy = world.start("good", "good", wanted=wanted)
    world.placement.on_devices(healthy, ("healthy",))
    world.placement.on_progress(healthy)
    for i in range(FAILURES):
        attempt = world.start(f"run {i}", "bad", wanted=wanted)
        world.placement.on_devices(attempt, ("faulty",))
        world.placement.on_failure(f"run {i}", attempt, None, died=False)
    assert world.placement.health.excluded == excluded
    assert world.placement.devices.excluded == {"faulty"}
