"""The exact search alone: no joint search before it, no certified bound beside it."""

from time import perf_counter

from planner.errors import InfeasibleProblemError
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.plan import Plan
from planner.planning.improvers.branch_and_check import ExactSearch
from planner.planning.planning_params import SearchParams
from planner.problem import Problem
from planner.verify import verify
from solver_models.local_search.search import Searcher

STANDARD = SearchParams()


def search_exactly(
    problem: Problem, params: SearchParams = STANDARD, *, seconds: float = 600.0, plans: list[Plan] | None = None
) -> tuple[int | None, int | None]:
    """The best objective found, of a verified plan, and the bound claimed; (None, None) if there is none.

    `plans`: takes the plans found, each better than the one before it.
    """
    costs, end = CostModel(problem), perf_counter() + seconds
    best: list[int] = []

    def offer(plan: Plan) -> None:
        verdict = verify(problem, plan)
        if verdict.passed and verdict.timeline is not None:
            value = verdict.timeline.objective_ns(problem.options.objective)
            if plans is not None and value < min(best, default=value + 1):
                plans.append(plan)
            best[:] = [min([value, *best])]

    exact = ExactSearch(
        costs,
        searcher=Searcher(make_instance(problem, costs)),
        incumbent_ns=lambda: best[0] if best else None,
        seconds_left=lambda: end - perf_counter(),
        params=params,
    )
    try:
        for plan in exact.proposals(least=lambda: 0):
            if plan is not None:
                offer(plan)
    except InfeasibleProblemError:
        return None, None
    if not best and exact.is_closed:  # there may be plans that it does not look for, so that it does not say so
        assert not exact.covers_all_plans
        return None, None
    return (best[0] if best else None), exact.bound_ns


def solve_exactly(problem: Problem) -> int | None:
    """The objective that the exact search proves to be the least; None if it proves that there is no plan.

    Raises AssertionError if it leaves anything open.
    """
    value, bound = search_exactly(problem)
    assert value == bound, "cases are left open"
    return value
