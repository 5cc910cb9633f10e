"""The door: a problem, or a global batch whose microbatches may have any size that was measured."""

from collections.abc import Callable
from functools import partial
from typing import Unpack

from planner.batch_problem import BatchProblem
from planner.export.targets import Target
from planner.plan import Plan
from planner.planning import driver
from planner.planning.batch_driver import make_batch_plan
from planner.planning.planning_params import SearchParams
from planner.problem import Problem
from planner.progress import Limits, Progress


def make_plans(problem: Problem | BatchProblem, *, top: int, **how: Unpack[driver.PlanningOptions]) -> tuple[Plan, ...]:
    """The best plan and the best of other kinds; see `planner.planning.driver.make_plans`.

    Raises ValueError if more than one is asked for with a global batch.
    """
    if isinstance(problem, Problem):
        return driver.make_plans(problem, top=top, **how)
    if top > 1:
        raise ValueError(f"top = {top}: with a global batch one plan is made; give a number of microbatches")
    return (make_batch_plan(problem, **how),)


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
    """The best verified plan within the limits; see `planner.planning.driver.make_plan` and `make_batch_plan`."""
    if isinstance(problem, BatchProblem):
        make: Callable[..., Plan] = partial(make_batch_plan, problem)
    else:
        make = partial(driver.make_plan, problem)
    return make(
        limits=limits,
        start=start,
        on_progress=on_progress,
        should_stop=should_stop,
        target=target,
        params=params,
    )
