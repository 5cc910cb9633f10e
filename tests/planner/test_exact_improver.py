"""The exact search in turns: a problem whose cases cannot be listed leaves the joint search its time."""

from typing import Any

from planner.planning.exact_improver import ExactTurns
from planner.planning.planning_params import ExactParams, SearchParams
from planner.planning.search_state import SearchState
from planner.problem import Problem
from planner.progress import Limits
from solver_models.search import Searcher
from tests.planner.builders import make_layer, make_link, make_problem


def make_row() -> Problem:
    """Four unlike layers on two devices."""
    layers = [make_layer(f"l{i}", (3 + i, 4, 2), state_bytes=5, stash_bytes=3) for i in range(4)]
    return make_problem(layers, [make_link("d0 d1", latency=1)], edge_bytes=4, num_microbatches=3, memory_bytes=1_000)


def make_turns(**exact: Any) -> ExactTurns:
    run = SearchState(
        make_row(),
        Limits(max_rounds=1),
        on_progress=lambda _: None,
        should_stop=lambda: False,
        params=SearchParams(exact=ExactParams(**exact)),
    )
    return ExactTurns(run, Searcher(run.instance))


def test_a_turn_ends_where_cases_are_too_many():
    """Tests that a turn takes a few attempts at a list that is too long, and that the next turn goes on from there."""
    turns = make_turns(nodes=(2, 3, 4), master_rounds=0)
    assert len(list(turns.take_turn())) == turns.params.listing_steps
    assert turns.run.plan is None
    assert not turns.is_done
    for _ in range(1_000):
        list(turns.take_turn())
    assert turns.is_done
    assert turns.exact.bound_ns is None


def test_a_turn_goes_on_to_the_end_where_cases_are_listed():
    """Tests that one turn closes a problem whose cases can be listed, and claims the best plan's time as its bound."""
    turns = make_turns()
    list(turns.take_turn())
    assert turns.is_done
    assert turns.exact.bound_ns == turns.run.incumbent_ns is not None
    assert turns.run.stopped_by == "complete_search"
    assert turns.run.is_over()
    assert turns.run.stopped_by == "complete_search"


def test_long_lists_wait_until_their_nodes_are_saved():
    """Tests that with a deterministic limit no more nodes are looked at than the turns so far allow."""
    turns = make_turns(nodes=(2, 3, 4), master_rounds=0, listing_nodes=1)
    assert len(list(turns.take_turn())) == 1  # nobody knows yet that the list is long
    for turn in range(2, 100):
        list(turns.take_turn())
        assert turns.used_nodes <= turn
    assert turns.is_done
