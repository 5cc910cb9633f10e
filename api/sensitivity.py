"""Shadow prices with the planner behind them: every question gets the same small effort."""

from collections.abc import Callable

from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits
from planner.sensitivity import ShadowPrice, count_questions, shadow_prices
from planner.simulate import Timeline

MAX_ROUNDS = 12
"""Rounds of the joint search per question: a deterministic limit, unless the seconds run out before."""


def find_prices(
    problem: Problem,
    plan: Plan,
    *,
    timeline: Timeline,
    time_limit_s: float,
    per_kind: int,
    hear: Callable[[str], None],
) -> list[ShadowPrice]:
    """What more of the resources that matter is worth, within `time_limit_s` in all; `hear` is told of each."""
    from planner.planning import make_plan  # the solvers come with it

    count = count_questions(problem, plan, timeline=timeline, per_kind=per_kind)
    limits = Limits(time_limit_s=time_limit_s / count, max_rounds=MAX_ROUNDS)

    def replan(question: Problem, start: Plan) -> Plan:
        return make_plan(question, limits=limits, start=start)

    return shadow_prices(
        problem,
        plan,
        timeline=timeline,
        replan=replan,
        per_kind=per_kind,
        hear=lambda question: hear(question.text),
    )
