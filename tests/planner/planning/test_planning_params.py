"""The parameters of a planning run: found by name, validated, carried to who reads them, stated in the evidence."""

from dataclasses import replace
from random import Random
from typing import Any

from planner.plan import Plan
from planner.planning import SearchParams, make_plan
from planner.planning.planning_params import PARTS, ExactParams, LoopedParams
from planner.planning.search_state import SearchState
from planner.planning.starts.looped_layouts import LoopedSearch
from planner.progress import Limits
from solver_models.search_params import MultistartParams
from tests.planner.planning.runs.test_dispatch import evidence_of, make_row
from tests.solver_models.nets import random_exact_problem

FEW = Limits(time_limit_s=600, max_rounds=2)
QUICK = MultistartParams(round_ticks=3_000, pool_size=2)
"""Rounds that end at once."""

WITHOUT = SearchParams(multistart=QUICK, without=("dynamic programme",))
"""No solver that takes long."""


def make_run(**groups: Any) -> SearchState:
    """A run of a small problem with these parameters."""
    return SearchState(
        random_exact_problem(Random(1), num_microbatches=4),
        Limits(max_rounds=1),
        on_progress=lambda _: None,
        should_stop=lambda: False,
        params=SearchParams(**groups),
    )


def turns_of(plan: Plan, name: str) -> int:
    return sum(tally.turns for tally in evidence_of(plan).improvers if tally.name == name)


def test_parts_that_are_left_out_have_no_turn():
    """Tests that a search without any part makes a plan, and that none of them has a turn."""
    params = SearchParams(multistart=QUICK, without=PARTS, exact=ExactParams(after_rounds=1))
    plan = make_plan(make_row(), limits=FEW, params=params)
    assert evidence_of(plan).verdict["passed"]
    assert {tally.name for tally in evidence_of(plan).improvers if tally.turns}.isdisjoint(PARTS)


def test_turns_follow_their_parameters():
    """Tests that the exact search begins after as many rounds as asked for."""
    problem = make_row()
    late, early = (
        make_plan(problem, limits=FEW, params=replace(WITHOUT, exact=ExactParams(after_rounds=rounds)))
        for rounds in (100, 1)
    )
    assert turns_of(late, "exact search") == 0
    assert turns_of(early, "exact search") > 0


def test_turns_of_looped_layouts():
    """Tests that a limit on rounds is two anneals of every shape."""
    run = make_run(looped=LoopedParams(first_actions=1))
    layouts = LoopedSearch(run)
    assert layouts.shapes
    list(layouts.plans(share=1.0))
    assert layouts.num_steps == 2 * len(layouts.shapes)
    run.window.close()
