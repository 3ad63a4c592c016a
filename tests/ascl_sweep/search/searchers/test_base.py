"""Laws that hold for every searcher."""

import random
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.contracts import RunState
from ascl_sweep.search.searchers.base import (
    LISTED,
    Outcome,
    Proposal,
    Searcher,
    build_searcher,
    searcher_names,
    space_models,
)
from ascl_sweep.spec.sweep import SweepSpec, parse_sweep
from tests.ascl_sweep.search.test_study import BASE, SEARCH

DRAWN = """
budget: {trials: 5}
space:
  NAME:
    domains:
      method.relabel: {choice: [none, ascl]}
      method.target_temperature: {log_uniform: [0.01, 0.2], when: {method.relabel: ascl}}
      method.num_neighbours: {int: [1, 9], step: 2}
"""


def spec(name: str) -> SweepSpec:
    text = SEARCH if name == LISTED else BASE + DRAWN.replace("NAME", name)
    return parse_sweep(text, file="it.yaml")


def ask(searcher: Searcher, most: int = 4) -> list[Proposal]:
    asked = iter(searcher.ask, None)
    return list(islice(asked, most))  # type: ignore[arg-type]


def test_every_searcher_but_the_listed_one_has_its_section() -> None:
    assert set(searcher_names()) == {LISTED, *space_models()}


@pytest.mark.parametrize("name", searcher_names())
def test_proposals_are_valid_runs_and_a_new_searcher_makes_the_same(name: str) -> None:
    proposals = ask(build_searcher(spec(name), []))
    assert proposals
    assert len({proposal.ticket for proposal in proposals}) == len(proposals)
    for proposal in proposals:
        assert spec(name).config(proposal.changes, seed=0, phase="search").identity()
    assert ask(build_searcher(spec(name), [])) == proposals


@pytest.mark.parametrize("name", searcher_names())
@settings(max_examples=15, deadline=None)
@given(
    states=st.lists(st.sampled_from(list(RunState)), min_size=4, max_size=4),
    values=st.lists(st.floats(0, 1), max_size=3),
    draw=st.builds(random.Random, st.integers(0, 10**6)),
)
def test_outcomes_may_be_reported_in_any_order(
    name: str, states: list[RunState], values: list[float], draw: random.Random
) -> None:
    searcher = build_searcher(spec(name), [])
    proposals = ask(searcher)
    curve = dict(enumerate(values, 1))
    outcomes = [Outcome(p.changes, curve, s) for p, s in zip(proposals, states, strict=True)]
    for i in draw.sample(range(4), 4):
        searcher.tell(proposals[i].ticket, outcomes[i])
    rebuilt = build_searcher(spec(name), outcomes[:2])
    rebuilt.add(outcomes[2])
    for one in (searcher, rebuilt):
        assert one.ask() is not None or not one.adaptive


def test_a_listed_space_is_proposed_cell_by_cell_regardless_of_results() -> None:
    searcher = build_searcher(spec(LISTED), [])
    assert not searcher.adaptive
    cells = [cell.changes for cell in spec(LISTED).cells()]
    assert [proposal.changes for proposal in ask(searcher, 99)] == cells
    assert searcher.ask() is None
