"""The regions that weight gradients of one device run beside, from a measured table of co-runs."""

from dataclasses import dataclass

from benchmarks.co_running.region_model import RegionInstance, solve_regions
from benchmarks.co_running.regions import (
    Choice,
    RegionProblem,
    choose_greedily,
    find_mistakes,
    predicted_ns,
)
from planner.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """A choice and what it is predicted to take."""

    choice: Choice
    predicted_ns: int
    solver_bound_ns: int
    """What the solver claims that no choice falls below."""
    source: str
    """`plain`, `greedy` or `CP-SAT`: the first of these that takes as little."""


def plan_regions(problem: RegionProblem, *, time_limit_s: float = 10.0, seed: int = 0) -> RegionPlan:
    """The choice of least predicted time; never worse than plain order or the greedy choice.

    Raises PlanError if our own check rejects it.
    """
    known = {"plain": problem.plain, "greedy": choose_greedily(problem)}
    result = solve_regions(_lower(problem), known=known["greedy"], time_limit_s=time_limit_s, seed=seed)
    if result.choice is not None:
        known["CP-SAT"] = result.choice
    source, best = min(known.items(), key=lambda pair: predicted_ns(problem, pair[1]))
    if mistakes := find_mistakes(problem, best):
        raise PlanError(f"the choice of regions is wrong: {mistakes[0]}")
    found = predicted_ns(problem, best)
    return RegionPlan(choice=best, predicted_ns=found, solver_bound_ns=result.bound, source=source)


def _lower(problem: RegionProblem) -> RegionInstance:
    return RegionInstance(
        lengths=problem.lengths_ns,
        alone=tuple(each.alone_ns for each in problem.weight_grads),
        beside=tuple(
            {region: (problem.slowdown_ns(number, region), each.beside[region].own_ns) for region in each.regions}
            for number, each in enumerate(problem.weight_grads)
        ),
    )
