"""The door: a problem, whose microbatches may differ, or a global batch, which any measured size may cut."""

from collections.abc import Callable
from typing import Unpack

from planner.batch_problem import BatchProblem
from planner.export.targets import Target, require_possible
from planner.option_conflicts import require_consistent
from planner.plan import Plan
from planner.planning.planning_params import SearchParams
from planner.planning.runs import run as driver
from planner.planning.runs.batch_run import make_batch_plans
from planner.planning.runs.cost_run import make_cheapest_plan
from planner.planning.runs.variable_microbatches import make_listed_plan
from planner.problem import Problem
from planner.progress import Limits, Progress


def make_plans(problem: Problem | BatchProblem, *, top: int, **how: Unpack[driver.PlanningOptions]) -> tuple[Plan, ...]:
    """The best plan and the best of other kinds; see `planner.planning.runs.run.make_plans`.

    `others` is heard where a number of microbatches is given and time is minimised, a `transition` there and for
    microbatches that differ.

    Raises ValueError if more than one is asked for where only one is made, TypeError for options that there are not.
    """
    if unknown := how.keys() - driver.PlanningOptions.__annotations__.keys():
        raise TypeError(f"make_plans() got an unexpected keyword argument {min(unknown)!r}")
    if isinstance(problem, Problem) and problem.microbatches is not None:
        require_consistent(problem)
        if top > 1:
            raise ValueError(f"top = {top}: different microbatches allow one plan only; leave top out")
        return (make_listed_plan(problem, **how),)
    require_possible(problem, how.get("target"))
    require_consistent(problem)
    if how.get("transition") is not None and (problem.options.objective == "cost" or isinstance(problem, BatchProblem)):
        raise ValueError("transition: needs a number of microbatches and time as objective; leave it out")
    if problem.options.objective == "cost":
        if top > 1:
            raise ValueError(f"top = {top}: objective = cost makes one plan; use make_pareto for more")
        return (make_cheapest_plan(problem, **how),)
    if isinstance(problem, Problem):
        return driver.make_plans(problem, top=top, **how)
    return make_batch_plans(problem, top=top, **how)


def make_plan(
    problem: Problem | BatchProblem,
    *,
    limits: Limits | None = None,
    start: Plan | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    target: Target | None = None,
    params: SearchParams = SearchParams(),
) -> Plan:
    """The best verified plan found within the limits, never worse than any baseline that fits, nor than `start`.

    `start` may answer a similar question: if its stages and orders pass the verifier here, the search begins with them.
    `target`: the program that is to run the plan; only plans that it can run are ever returned, and where it runs
    stages in a loop in the order of 1F1B alone, chunks and cuts are searched for that order. `params`: what steers the
    search. `on_progress` hears of every step; `should_stop` is asked several times a second and ends the search early.
    Raises InfeasibleProblemError if no plan can exist, NoPlanFoundError if none was found,
    PlanError if our own verifier rejects every plan found.
    """
    best, *_ = make_plans(
        problem,
        top=1,
        limits=limits,
        start=start,
        on_progress=on_progress,
        should_stop=should_stop,
        target=target,
        params=params,
    )
    return best
