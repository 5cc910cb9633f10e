"""The regions that weight gradients of one device run beside, from a measured table of co-runs."""

import importlib.util
import itertools
from dataclasses import dataclass

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
    bound_ns: int
    """What no choice falls below; where CP-SAT was asked, it claims so."""
    source: str
    """`plain`, `greedy`, `CP-SAT` or `exhaustive`: the first of these that takes as little."""


def plan_regions(problem: RegionProblem, *, time_limit_s: float = 10.0, seed: int = 0) -> RegionPlan:
    """The choice of least predicted time; never worse than plain order or the greedy choice.

    Where ortools is not installed (on a machine that is lent), all choices are tried. Raises PlanError if our own check
    rejects the best.
    """
    known: dict[str, Choice] = {"plain": problem.plain, "greedy": choose_greedily(problem)}
    bound = None
    if importlib.util.find_spec("ortools") is None:
        known["exhaustive"] = try_all(problem)
    else:
        choice, bound = _solve(problem, known["greedy"], time_limit_s=time_limit_s, seed=seed)
        known |= {} if choice is None else {"CP-SAT": choice}
    source, best = min(known.items(), key=lambda pair: predicted_ns(problem, pair[1]))
    if mistakes := find_mistakes(problem, best):
        raise PlanError(f"the choice of regions is wrong: {mistakes[0]}")
    found = predicted_ns(problem, best)
    return RegionPlan(choice=best, predicted_ns=found, bound_ns=found if bound is None else bound, source=source)


def try_all(problem: RegionProblem) -> Choice:
    """The best of all choices, of which six blocks have some ten thousand."""
    choices = itertools.product(*((None, *each.regions) for each in problem.weight_grads))
    return min(choices, key=lambda choice: predicted_ns(problem, choice))


def _solve(problem: RegionProblem, known: Choice, *, time_limit_s: float, seed: int) -> tuple[Choice | None, int]:
    from benchmarks.co_running.region_model import RegionInstance, solve_regions

    instance = RegionInstance(
        lengths=problem.lengths_ns,
        alone=tuple(each.alone_ns for each in problem.weight_grads),
        beside=tuple(
            {region: (problem.slowdown_ns(number, region), each.beside[region].own_ns) for region in each.regions}
            for number, each in enumerate(problem.weight_grads)
        ),
    )
    result = solve_regions(instance, known=known, time_limit_s=time_limit_s, seed=seed)
    return result.choice, result.bound
