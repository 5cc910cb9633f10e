"""The door: a question of any kind, and the driver that has its objective."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Unpack

from planner import decisions
from planner.batch_problem import BatchProblem
from planner.export.targets import Target, require_possible
from planner.option_conflicts import require_consistent
from planner.plan import Plan
from planner.planning.planning_params import SearchParams
from planner.planning.runs.driver import Driver
from planner.planning.runs.run import PlanningOptions
from planner.problem import Problem
from planner.progress import Limits, Progress


def make_plans(problem: Problem | BatchProblem, *, top: int, **how: Unpack[PlanningOptions]) -> tuple[Plan, ...]:
    """The plan that `make_plan` returns, and behind it the best of other kinds (`planner.plan_kind`).

    At most `top` in all, the best first, no two of one kind, each verified and with evidence of its own; fewer where
    the run came by fewer kinds. `workers` do tasks of the search elsewhere.
    `limits.max_rounds` counts the rounds of the candidate that
    has most: a size of microbatches, a subset of the devices. Raises as `make_plan` does.

    With a `transition`, the plan with the least sum of iterations that are left and of moving, and next to it, if that
    is another, the plan for which least moves (`planner.planning.runs.transition_search`).

    Raises TypeError for options that there are not.
    """
    if unknown := how.keys() - PlanningOptions.__annotations__.keys():
        raise TypeError(f"make_plans() got an unexpected keyword argument {min(unknown)!r}")
    require_possible(problem, how.get("target"))
    require_consistent(problem)
    makers = [each.make_driver for each in decisions.modules("driver", problem.options)]
    make = makers[0] if makers else Driver
    with ExitStack() as stack:
        return make(problem, stack, top=top, **how).plans()


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
