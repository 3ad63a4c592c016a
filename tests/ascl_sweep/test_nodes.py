"""Which machines are left out, and when a failure is the run's own."""

from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.nodes import FAILURES, Nodes

NODES = ["a", "b", "c"]
# What happens: a run gets on (True), fails (False) or dies (None) on a machine.
EVENTS = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from([True, False, None])))


def happened(events: list[tuple[str, bool | None]]) -> Nodes:
    nodes = Nodes()
    for i, (node, outcome) in enumerate(events):
        if outcome:
            nodes.got_on(node)
        elif outcome is None:
            nodes.died(f"run {i}", [node])
        else:
            nodes.failed(f"run {i}", [node])
    return nodes


def test_a_machine_on_which_runs_keep_failing_is_left_out() -> None:
    nodes = Nodes()
    nodes.got_on("good")
    for i in range(FAILURES - 1):
        assert nodes.failed(f"run {i}", ["bad"]) == set()
    assert nodes.failed("another", ["bad"]) == {"bad"}
    assert nodes.failed("yet another", ["bad"]) == set(), "said once"
    assert nodes.avoided_by("a new run") == {"bad"}


def test_runs_that_die_there_count_as_those_that_fail() -> None:
    nodes = happened([("good", True), *[("bad", None)] * FAILURES])
    assert nodes.left_out == {"bad"}
    assert nodes.avoided_by("run 1") == {"bad"}


def test_a_run_whose_process_died_somewhere_is_not_put_there_again() -> None:
    nodes = Nodes()
    nodes.died("x", ["a"])
    assert nodes.avoided_by("x") == {"a"} and nodes.avoided_by("y") == frozenset()


def test_where_runs_fail_everywhere_no_machine_is_to_blame() -> None:
    nodes = happened([(node, False) for node in NODES * FAILURES])
    assert nodes.left_out == set()


def test_a_bad_machine_is_known_for_it_once_runs_get_on_elsewhere() -> None:
    nodes = happened([("bad", False)] * FAILURES)
    assert nodes.left_out == set()
    assert nodes.got_on("good") == {"bad"}


def test_a_failed_run_is_tried_once_more_and_not_where_it_failed() -> None:
    nodes = Nodes()
    nodes.failed("x", ["a"])
    assert nodes.another("x", ["a", "b"])
    assert nodes.avoided_by("x") == {"a"}
    assert nodes.avoided_by("y") == frozenset()
    nodes.failed("x", ["b"])
    assert not nodes.another("x", ["a", "b", "c"]), "twice is the run's own fault"


def test_a_run_that_fails_twice_in_one_place_is_not_tried_for_ever() -> None:
    """One of several workers may have no room but where it failed."""
    nodes = Nodes()
    nodes.failed("x", ["a"])
    nodes.failed("x", ["a"])
    assert not nodes.another("x", ["a", "b"])


def test_a_failure_counts_only_where_it_happened() -> None:
    nodes = Nodes()
    nodes.got_on("good")
    for i in range(FAILURES - 1):
        nodes.failed(f"run {i}", ["a"])
    nodes.failed("run 0", ["b"])
    assert nodes.left_out == set()


def test_on_a_single_machine_a_failure_is_final() -> None:
    nodes = Nodes()
    nodes.failed("x", ["a"])
    assert not nodes.another("x", ["a"])


@given(EVENTS)
def test_never_are_all_machines_left_out_on_which_a_run_got_on_last(
    events: list[tuple[str, bool | None]],
) -> None:
    nodes = happened(events)
    last = dict(events)
    assert not nodes.left_out & {node for node, outcome in last.items() if outcome}
    assert not nodes.left_out or nodes.left_out < set(NODES)


@given(EVENTS)
def test_what_is_forgiven_is_forgotten(events: list[tuple[str, bool | None]]) -> None:
    nodes = happened(events)
    nodes.forgive()
    assert nodes.left_out == set()
    assert all(nodes.avoided_by(f"run {i}") == frozenset() for i in range(len(events)))
