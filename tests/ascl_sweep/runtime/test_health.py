"""Which nodes are excluded, and when a failed run is retried."""

from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.runtime.health import FAILURES, Health

NODES = ["a", "b", "c"]
# Events: a run makes progress (True), fails (False) or dies (None) on a node.
EVENTS = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from([True, False, None])))


def happened(events: list[tuple[str, bool | None]]) -> Health:
    nodes = Health()
    for i, (node, outcome) in enumerate(events):
        if outcome:
            nodes.on_progress([node])
        elif outcome is None:
            nodes.on_death(f"run {i}", [node])
        else:
            nodes.on_failure(f"run {i}", [node])
    return nodes


def test_a_machine_on_which_runs_keep_failing_is_left_out() -> None:
    nodes = Health()
    nodes.on_progress(["good"])
    for i in range(FAILURES - 1):
        assert nodes.on_failure(f"run {i}", ["bad"]) == set()
    assert nodes.on_failure("another", ["bad"]) == {"bad"}
    assert nodes.on_failure("yet another", ["bad"]) == set(), "reported once"
    assert nodes.avoided_by("a new run") == {"bad"}


def test_runs_that_die_there_count_as_those_that_fail() -> None:
    nodes = happened([("good", True), *[("bad", None)] * FAILURES])
    assert nodes.excluded == {"bad"}
    assert nodes.avoided_by("run 1") == {"bad"}


def test_a_run_whose_process_died_somewhere_is_not_put_there_again() -> None:
    nodes = Health()
    nodes.on_death("x", ["a"])
    assert nodes.avoided_by("x") == {"a"} and nodes.avoided_by("y") == frozenset()


def test_where_runs_fail_everywhere_no_machine_is_to_blame() -> None:
    nodes = happened([(node, False) for node in NODES * FAILURES])
    assert nodes.excluded == set()


def test_a_bad_machine_is_known_for_it_once_runs_get_on_elsewhere() -> None:
    nodes = happened([("bad", False)] * FAILURES)
    assert nodes.excluded == set()
    assert nodes.on_progress(["good"]) == {"bad"}


def test_a_failed_run_is_tried_once_more_and_not_where_it_failed() -> None:
    nodes = Health()
    nodes.on_failure("x", ["a"])
    assert nodes.deserves_retry("x", ["a", "b"])
    assert nodes.avoided_by("x") == {"a"}
    assert nodes.avoided_by("y") == frozenset()
    nodes.on_failure("x", ["b"])
    assert not nodes.deserves_retry("x", ["a", "b", "c"]), "after two failures the run is the cause"


def test_a_run_that_fails_twice_in_one_place_is_not_tried_for_ever() -> None:
    """A worker may fit only on the node on which it failed."""
    nodes = Health()
    nodes.on_failure("x", ["a"])
    nodes.on_failure("x", ["a"])
    assert not nodes.deserves_retry("x", ["a", "b"])


def test_a_failure_counts_only_where_it_happened() -> None:
    nodes = Health()
    nodes.on_progress(["good"])
    for i in range(FAILURES - 1):
        nodes.on_failure(f"run {i}", ["a"])
    nodes.on_failure("run 0", ["b"])
    assert nodes.excluded == set()


def test_failures_that_share_a_part_of_a_machine_count_once_against_it() -> None:
    """Runs of two workers that fail on one faulty GPU, each beside another GPU."""
    nodes = Health()
    nodes.on_progress(["good"])
    for i in range(2 * FAILURES):
        nodes.on_death(f"run {i}", ["a"], ["faulty", f"beside {i}"])
        assert nodes.excluded == set()
    for i in range(FAILURES - 1):
        nodes.on_death(f"another {i}", ["a"], [f"{i}", f"beside {i} as well"])
    assert nodes.excluded == {"a"}


def test_a_run_is_to_blame_if_it_failed_in_separate_places() -> None:
    devices = Health()
    devices.on_progress(["good"])
    devices.on_death("x", ["a", "b"])
    assert devices.blames(["a", "b"], "x")
    devices.on_death("x", ["b", "c"])
    assert devices.blames(["b", "c"], "x"), "the faulty one may be b"
    devices.on_death("x", ["d", "e"])
    assert not devices.blames(["d", "e"], "x")


def test_on_a_single_machine_a_failure_is_final() -> None:
    nodes = Health()
    nodes.on_failure("x", ["a"])
    assert not nodes.deserves_retry("x", ["a"])


@given(EVENTS)
def test_never_are_all_machines_left_out_on_which_a_run_got_on_last(
    events: list[tuple[str, bool | None]],
) -> None:
    nodes = happened(events)
    last = dict(events)
    assert not nodes.excluded & {node for node, outcome in last.items() if outcome}
    assert not nodes.excluded or nodes.excluded < set(NODES)


@given(EVENTS)
def test_what_is_forgiven_is_forgotten(events: list[tuple[str, bool | None]]) -> None:
    nodes = happened(events)
    nodes.readmit_all()
    assert nodes.excluded == set()
    assert all(nodes.avoided_by(f"run {i}") == frozenset() for i in range(len(events)))
