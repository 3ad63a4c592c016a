"""Capacity of clusters, and resource requests that are refused before any run starts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.errors import ResourceError
from ascl_sweep.runtime.cluster import (
    AutoscalerLimits,
    Cluster,
    Node,
    NodeType,
    parse_autoscaler_limits,
)
from ascl_sweep.spec.sweep import Resources


def cluster(*nodes: tuple[float, float]) -> Cluster:
    return Cluster(tuple(Node(str(i), *node) for i, node in enumerate(nodes)))


def resources(workers: int = 1, cpus: float = 1, gpus: float = 0) -> Resources:
    return Resources(workers=workers, cpus_per_worker=cpus, gpus_per_worker=gpus)


def test_runs_fit_by_what_is_scarcest() -> None:
    assert cluster((8, 2)).count_slots(resources(cpus=2)) == 4
    assert cluster((8, 2)).count_slots(resources(cpus=2, gpus=1)) == 2
    assert cluster((8, 2)).count_slots(resources(gpus=0.25)) == 8
    assert cluster((3, 1), (3, 1)).count_slots(resources(workers=2, cpus=1, gpus=1)) == 1


def test_parts_of_a_gpu_are_not_put_together_from_two() -> None:
    assert cluster((8, 2)).count_slots(resources(gpus=0.6)) == 2


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (resources(gpus=1), "gpus_per_worker=1"),
        (resources(cpus=9), "cpus_per_worker=9"),
        (resources(workers=9), "workers=9"),
    ],
)
def test_what_can_never_run_is_refused_with_the_way_out(wanted: Resources, word: str) -> None:
    with pytest.raises(ResourceError, match=word) as caught:
        cluster((4, 0), (4, 0)).check(wanted)
    assert "; " in str(caught.value) and "\n" not in str(caught.value)


@given(
    nodes=st.lists(st.tuples(st.integers(1, 16), st.integers(0, 4)), min_size=1, max_size=3),
    workers=st.integers(1, 4),
    cpus=st.integers(1, 4),
)
def test_what_is_promised_is_there(
    nodes: list[tuple[float, float]], workers: int, cpus: int
) -> None:
    there, wanted = cluster(*nodes), resources(workers, cpus)
    room = there.count_slots(wanted)
    assert room * workers * cpus <= there.total()[0]
    if room:
        there.check(wanted)
    else:
        with pytest.raises(ResourceError):
            there.check(wanted)


def test_runs_of_other_kinds_take_their_share() -> None:
    there = cluster((8, 4), (8, 4))
    large, quarter = resources(workers=4, gpus=1), resources(cpus=0.5, gpus=0.25)
    assert there.count_slots(large) == 2 and there.count_slots(quarter) == 32
    assert there.count_slots(quarter, taken=[large]) == 16
    assert there.count_slots(large, taken=[quarter]) == 1, "seven whole GPUs are left"
    assert there.count_slots(large, taken=[quarter] * 4) == 1, "four quarters make one GPU"
    assert there.count_slots(large, taken=[large, quarter]) == 0
    assert there.count_slots(resources(cpus=8), taken=[large, quarter]) == 0


GPUS = st.sampled_from([0, 0.25, 0.5, 1, 2])
KINDS = st.builds(resources, st.integers(1, 4), st.sampled_from([0.5, 1, 2]), GPUS)
MACHINES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), min_size=1, max_size=4)


@given(nodes=MACHINES, wanted=KINDS, taken=st.lists(KINDS, max_size=4))
def test_what_is_promised_beside_other_runs_is_there(
    nodes: list[tuple[float, float]], wanted: Resources, taken: list[Resources]
) -> None:
    there = cluster(*nodes)
    room = there.count_slots(wanted, taken=taken)
    assert 0 <= room <= there.count_slots(wanted)
    if room:
        every = [*taken, *[wanted] * room]
        cpus, gpus = there.total()
        assert sum(kind.workers * kind.cpus_per_worker for kind in every) <= cpus
        assert sum(kind.workers * kind.gpus_per_worker for kind in every) <= gpus


def test_machines_that_are_left_out_offer_no_room() -> None:
    there = cluster((2, 0), (2, 0), (4, 0))
    assert there.count_slots(resources()) == 8
    assert there.count_slots(resources(), avoid={"2"}) == 4
    assert there.count_slots(resources(workers=5), avoid={"2"}) == 0


def test_a_machine_holds_a_run_if_a_worker_of_it_fits_there() -> None:
    there = cluster((0, 0), (2, 0), (4, 1))
    assert there.nodes_that_fit(resources()) == ["1", "2"]
    assert there.nodes_that_fit(resources(workers=9, gpus=1)) == ["2"]


def test_what_an_autoscaler_may_add_is_room_and_what_it_cannot_add_is_refused() -> None:
    head = Node("head", cpus=0, gpus=0)
    kinds = (NodeType(1, 0, 0), NodeType(count=20, cpus=8, gpus=1))
    there = Cluster((head,), limits=AutoscalerLimits(kinds, max_nodes=20))
    there.check(resources(workers=20, cpus=8, gpus=1))
    assert there.count_slots(resources(cpus=4, gpus=1)) == 20
    assert there.count_slots(resources(cpus=2, gpus=0.25)) == 80
    for never in (resources(gpus=2), resources(cpus=9), resources(workers=21, gpus=1)):
        with pytest.raises(ResourceError):
            there.check(never)


def test_an_autoscaler_adds_no_more_of_a_kind_than_its_file_allows_in_all() -> None:
    file = {
        "max_workers": 8,
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 4}},
            "small": {"resources": {"CPU": 4, "GPU": 1}},
            "large": {"resources": {"CPU": 96, "GPU": 8}, "max_workers": 2},
            "many": {"resources": {"CPU": 1}, "max_workers": 100},
        },
    }
    kinds = NodeType(0, 4, 0), NodeType(8, 4, 1), NodeType(2, 96, 8), NodeType(8, 1, 0)
    assert parse_autoscaler_limits(file) == AutoscalerLimits(kinds, max_nodes=8)
    there = Cluster((), limits=parse_autoscaler_limits(file))
    assert there.count_slots(resources(gpus=1)) == 2 * 8 + 6, "two large nodes and six small nodes"
    assert there.count_slots(resources(gpus=8)) == 2
    assert there.count_slots(resources(workers=23, gpus=1)) == 0


@pytest.mark.parametrize(
    "file",
    [None, [], {}, {"max_workers": 8}, {"max_workers": "many", "available_node_types": {}},
     {"max_workers": 8, "available_node_types": {"a": None}},
     {"max_workers": 8, "available_node_types": {"a": {"resources": {"CPU": "all"}}}}],
)  # fmt: skip
def test_what_is_no_cluster_file_is_refused_in_a_sentence(file: Any) -> None:
    with pytest.raises(ValueError, match="the autoscaler limits must be given as max_workers"):
        parse_autoscaler_limits(file)
