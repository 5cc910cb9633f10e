"""CP-SAT's orders in which some microbatches recompute: they fit, end when they are said to, and close small ones."""

import pytest

from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from solver_models.recomputation.cp_sat_recomputation import solve_orders
from solver_models.recomputation.microbatch_recomputation import MicrobatchRecomputation, RecomputedOrders
from solver_models.schedule.effort import SolveEffort
from tests.planner.recomputed_chain import given_stages, recomputed_chain
from tests.solver_models.recomputation.test_microbatch_recomputation import plan_of, searched

EFFORT = SolveEffort(time_limit_s=60, deterministic_limit=5)


def begun(problem: Problem) -> tuple[MicrobatchRecomputation, RecomputedOrders]:
    """One F for one backward, from as many F on as there are stages to come."""
    search = searched(problem, given_stages(problem))
    return search, list(search.alternating(0.0))[-1]


def check(problem: Problem, found: RecomputedOrders) -> None:
    """That the judge passes it, and the simulator says when it ends."""
    plan = plan_of(problem, given_stages(problem), found)
    assert verify(problem, plan).passed
    assert simulate(problem, plan).makespan_ns == found.end


@pytest.mark.parametrize(("kept", "ends"), [(3, (300, 280)), (1, (380, 360))])
def test_small_orders_are_closed(kept: int, ends: tuple[int, int]):
    """Tests that 1F1B with the best choice of what recomputes becomes the best order, and that there is none better."""
    problem = recomputed_chain(4, num_microbatches=8, kept=kept)
    search, start = begun(problem)
    assert start.end == ends[0]
    assert {action: times[1] for action, times in search.times(start).items()}[2, 0, 7] <= start.end
    found, is_closed = solve_orders(search, start, effort=EFFORT)
    assert (found.end, is_closed) == (ends[1], True)
    assert solve_orders(search, found, effort=EFFORT) == (found, True)
    check(problem, found)
