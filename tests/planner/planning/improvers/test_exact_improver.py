"""The exact search in turns: a problem whose cases cannot be listed leaves the joint search its time."""

from random import Random
from typing import Any

import pytest

from planner.planning.improvers import exact_improver
from planner.planning.improvers.branch_and_check import is_small
from planner.planning.improvers.exact_improver import ExactImprover
from planner.planning.planning_params import CaseParams, ExactParams, SearchParams
from planner.planning.search_state import SearchState
from planner.problem import Problem
from planner.progress import Limits
from profiles.cluster import Link
from solver_models.local_search.search import Searcher
from tests.planner.builders import make_layer, make_link, make_problem
from tests.strategies import random_chain


def make_row() -> Problem:
    """Four unlike layers on two devices."""
    layers = [make_layer(f"l{i}", (3 + i, 4, 2), state_bytes=5, stash_bytes=3) for i in range(4)]
    return make_problem(layers, [make_link("d0 d1", latency=1)], edge_bytes=4, num_microbatches=3, memory_bytes=1_000)


def make_turns(
    problem: Problem | None = None, *, case: CaseParams | None = None, listing_nodes: int = 10**6, **exact: Any
) -> ExactImprover:
    run = SearchState(
        problem or make_row(),
        Limits(max_rounds=1),
        on_progress=lambda _: None,
        should_stop=lambda: False,
        params=SearchParams(exact=ExactParams(**exact), case=case or CaseParams()),
    )
    return ExactImprover(run, Searcher(run.instance), listing_nodes=listing_nodes)


def test_a_turn_ends_where_cases_are_too_many():
    """Tests that a turn takes a few attempts at a list that is too long, and that the next turn goes on from there."""
    turns = make_turns(nodes=(2, 3, 4))
    assert len(list(turns.take_step())) == 2
    assert turns.run.plan is None
    assert not turns.is_done
    for _ in range(1_000):
        list(turns.take_step())
    assert turns.is_done
    assert turns.exact.bound_ns is None


def test_a_turn_goes_on_to_the_end_where_cases_are_listed():
    """Tests that one turn closes a problem whose cases can be listed, and claims the best plan's time as its bound."""
    turns = make_turns()
    list(turns.take_step())
    assert turns.is_done
    assert turns.exact.bound_ns == turns.exact.proved_ns == turns.run.incumbent_ns is not None
    assert turns.run.stopped_by == "complete_search"
    assert turns.run.is_over()
    assert turns.run.stopped_by == "complete_search"


@pytest.mark.parametrize(("pending", "share", "is_done"), [(1, 0.0, False), (1, 1.0, True), (0, 0.0, True)])
def test_the_packing_bound_has_a_step(pending: int, share: float, is_done: bool, monkeypatch: pytest.MonkeyPatch):
    """Tests that a late turn is left once if the packing bound was put off, and ends in the next."""
    monkeypatch.setattr(exact_improver, "_PAUSE_SHARE", share)
    turns = make_turns()
    turns.run.pending_effort = pending
    list(turns.take_step())
    assert turns.is_done == is_done
    list(turns.take_step())
    assert turns.is_done


BY_CP_SAT = CaseParams(rounds=((100_000, 0, 30.0),), promising=0)
"""No order is looked at by us."""

ABOVE_ITS_FLOOR = random_chain(Random(3), sizes=(5, 2, 3), tight=False)
"""Floors alone do not close it."""


def test_what_only_cp_sat_closed_is_a_claim():
    """Tests that cases that CP-SAT alone closed make a claim and no proof, until branch and bound closes them, too."""
    turns = make_turns(ABOVE_ITS_FLOOR, case=BY_CP_SAT)
    list(turns.take_step())
    turns.close()
    run = turns.run
    assert run.incumbent_ns == run.solver_bound_ns == turns.exact.bound_ns is not None
    assert run.searched_ns is not None
    assert run.searched_ns < run.incumbent_ns
    list(turns.close_again())
    assert run.searched_ns == run.solver_bound_ns == run.incumbent_ns


def test_too_many_nodes_leave_a_claim():
    """Tests that nothing is closed again where that may take more nodes than are allowed."""
    turns = make_turns(ABOVE_ITS_FLOOR, case=BY_CP_SAT)
    list(turns.take_step())
    assert list(turns.exact.close_again(most_nodes=1)) == []
    turns.close()
    run = turns.run
    assert run.incumbent_ns == run.solver_bound_ns is not None
    assert run.searched_ns is not None
    assert run.searched_ns < run.incumbent_ns


def test_long_lists_wait_until_their_nodes_are_saved():
    """Tests that with a deterministic limit no more nodes are looked at than the turns so far allow."""
    turns = make_turns(nodes=(2, 3, 4), listing_nodes=1)
    assert len(list(turns.take_step())) == 1  # nobody knows yet that the list is long
    for turn in range(2, 100):
        list(turns.take_step())
        assert turns.used_nodes <= turn
    assert turns.is_done


def test_transfers_of_all_sizes_take_one_route():
    """Tests that networks with a choice between latency and bandwidth are left to others, and those with many pairs."""

    def between(*links: Link) -> Problem:
        layers = [make_layer("x", (3, 3, 3)), make_layer("y", (3, 3, 3))]
        switches = tuple(name for name in ("s", "t") if any(link.b == name for link in links))
        return make_problem(layers, list(links), edge_bytes=10**6, switches=switches)

    over_s, over_t = (make_link("a s", latency=10**6), make_link("b s")), (make_link("a t"), make_link("b t"))
    narrow = make_link("a t", bandwidth=10**6)
    assert is_small(between(make_link("a b", bandwidth=10**8), *over_s))
    assert is_small(between(*over_s, *over_t))
    assert not is_small(between(*over_s, narrow, over_t[1]))
    assert is_small(between(*over_s), most_pairs=1)
    assert not is_small(between(*over_s, *over_t), most_pairs=1)
