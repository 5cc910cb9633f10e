"""The sequential planner's stages within the joint search: their orders get the same seeds and the same work."""

from dataclasses import replace

import pytest

from planner.baselines.sequential import assign_sequential
from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.planning.improvers.improver import Leader
from planner.planning.improvers.sequential_improver import SequentialImprover, play_baselines_on
from planner.planning.runs.run import bound
from planner.planning.search_loop import SearchLoop
from planner.planning.search_state import SearchState
from planner.problem import Problem
from planner.verify import verify
from solver_models.local_search.multistart import JointSearch
from tests.long_runs import shortened
from tests.planner.baselines.test_sequential import make_problem
from tests.planner.hasty import make_plan

FAMILIES = (
    "chain-12x4-m6-loose-homogeneous-classes",
    "chain-16x4-m8-tight-two-level-equal",
    "chain-24x8-m16-loose-random-different",
)


def make_given(problem: Problem) -> Problem:
    """The problem that is left once the sequential planner has settled on stages and devices."""
    stages = assign_sequential(CostModel(problem)).stages
    options = replace(
        problem.options,
        partition=tuple(stage.layers for stage in stages),
        placement=tuple(stage.replicas for stage in stages),
    )
    return replace(problem, options=options)


def makespan_of(problem: Problem, limits: Limits) -> int:
    plan = make_plan(problem, limits=limits)
    assert plan.evidence is not None
    return plan.evidence.makespan_ns


@pytest.mark.parametrize(
    ("family", "rounds"),
    shortened(
        [(FAMILIES[0], 3), (FAMILIES[1], 1), ("chain-12x4-m8-loose-random-different", 0)],
        whole=[(family, rounds) for family in FAMILIES for rounds in (0, 1, 3)],
    ),
)
def test_never_longer_than_the_order_alone(family: str, rounds: int):
    """Tests that with as many rounds the joint plan is not longer than the best order on the sequential stages."""
    problem = make_problem(family)
    limits = Limits(time_limit_s=600, max_rounds=rounds, seed=rounds)
    assert makespan_of(problem, limits) <= makespan_of(make_given(problem), limits)


def make_turns(problem: Problem) -> SequentialImprover:
    run = SearchState(
        problem, Limits(time_limit_s=600, max_rounds=1), on_progress=lambda _: None, should_stop=lambda: False
    )
    search = JointSearch(run.instance)
    return SequentialImprover(run, search, leader=Leader(run, search))


def test_baselines_on_the_stages():
    """Tests that the orders it begins with are those of several baselines, all on the same stages, within memory."""
    problem = make_problem(FAMILIES[0])
    stages = assign_sequential(CostModel(problem)).stages
    plans = list(play_baselines_on(make_turns(problem).run, stages))
    same = [plan for plan in plans if plan.stages == stages]
    assert len({tuple(plan.schedule.items()) for plan in same}) >= 3
    assert all(verify(problem, replace(plan, problem=problem.reference())).passed for plan in same)


def test_keeps_pace_with_the_joint_search():
    """Tests that every joint round is followed by a round of order search, as long as both are close."""
    run = make_turns(make_problem(FAMILIES[1])).run
    run.limits = replace(run.limits, max_rounds=3)
    bound(run)
    loop, rounds = SearchLoop(run), set[tuple[int, int]]()
    for _ in loop.steps():
        if run.window.owner == loop.sequential.name and loop.sequential.order is not None:
            rounds.add((loop.search.round, loop.sequential.order.round))
    assert rounds
    assert rounds <= {(1, 1), (2, 2), (3, 3)}
