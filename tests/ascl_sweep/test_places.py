"""Where runs may go: pure decisions over a cluster that a test makes up."""

from pathlib import Path

import pytest

from ascl_sweep.nodes import FAILURES
from ascl_sweep.places import Places
from ascl_sweep.room import Cluster, Node
from ascl_sweep.sections import Case
from ascl_sweep.spec import Resources

SMALL = Resources(cpus_per_worker=1)
LARGE = Resources(cpus_per_worker=4)


def mixed() -> Resources:
    """Small runs, and in some cases large ones."""
    return Resources(cpus_per_worker=1, cases=[Case(when={"seed": 1}, cpus_per_worker=4)])


class Machines:
    """Machines with so many CPUs each, by name."""

    def __init__(self, **cpus: int) -> None:
        self.cpus = cpus

    def __call__(self) -> Cluster:
        nodes = tuple(Node(name, cpus, 0) for name, cpus in self.cpus.items())
        return Cluster(nodes, Path("/nowhere"), private=False)


def start(places: Places, run: str, node: str, wanted: Resources = SMALL) -> None:
    places.hand_out(run, wanted)
    places.began(run, [node])


def leave_out(places: Places, bad: str, good: str) -> None:
    start(places, "good", good)
    places.got_on("good")
    for i in range(FAILURES):
        start(places, f"bad {i}", bad)
        places.failed(f"bad {i}", None)
        places.ended(f"bad {i}")
    assert places.nodes.left_out == {bad}
    places.ended("good")


def test_bad_machines_are_forgiven_if_a_kind_of_run_has_room_only_there() -> None:
    places = Places(Machines(small=1, large=4), mixed())
    leave_out(places, "large", good="small")
    places.refresh()
    assert places.nodes.left_out == set()


def test_bad_machines_are_not_forgiven_for_a_kind_that_has_room_nowhere() -> None:
    machines = Machines(bad=1, good=1, large=4)
    places = Places(machines, mixed())
    leave_out(places, "bad", good="good")
    del machines.cpus["large"]
    places.refresh()
    assert places.nodes.left_out == {"bad"}
    assert places.hand_out("bad 0", SMALL)[1] == ["bad"]


def test_a_run_on_a_machine_that_is_left_out_takes_no_place_elsewhere() -> None:
    places = Places(Machines(bad=1, good=1), SMALL)
    leave_out(places, "bad", good="good")
    start(places, "still there", "bad")
    assert places.takes(SMALL)
    places.hand_out("waits", SMALL)
    assert places.refresh() == []


@pytest.mark.parametrize(
    "large",
    [Resources(workers=2), Resources(cpus_per_worker=2), Resources(gpus_per_worker=1)],
)
def test_none_overtakes_one_that_waits_for_more(large: Resources) -> None:
    places = Places(lambda: Cluster((Node("a", 4, 2),), Path("/nowhere"), private=False), SMALL)
    places.hand_out("large", large)
    assert not places.takes(SMALL) and places.takes(large)
    places.began("large", ["a"])
    assert places.takes(SMALL)


def test_a_failed_run_is_tried_again_only_where_a_worker_of_it_fits() -> None:
    machines = Machines(head=0, only=1)
    places = Places(machines, SMALL)
    start(places, "x", "only")
    places.failed("x", None)
    assert not places.another("x"), "the head has no CPU to give"
    machines.cpus["added"] = 1
    places.refresh()
    assert places.another("x")


def test_a_machine_that_just_went_away_is_known_to_be_gone() -> None:
    machines = Machines(a=1, b=1)
    places = Places(machines, SMALL)
    start(places, "x", "a")
    assert not places.machine_is_gone("x")
    del machines.cpus["a"]
    assert places.machine_is_gone("x")
