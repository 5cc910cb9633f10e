"""The plans that are worth a run: the best of all, and the best of other kinds."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from api.inputs import make_problem, question_of
from planner.errors import InfeasibleProblemError, NoPlanFoundError, PipeplanError
from planner.export.targets import TARGETS, restrict_problem
from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from profiles.workload import Workload

_UNRESTRICTED = "unrestricted"
"""What the plan is called that answers the question as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnablePlan:
    """A plan that may be run."""

    name: str
    """Name of the question that it answers best."""
    plan: Plan
    """With its evidence."""
    predicted_ns: int
    """By the profile that it was made with."""

    @property
    def key(self) -> str:
        """The same for plans that run alike."""
        return key_of(self.plan)


def key_of(plan: Plan) -> str:
    """A hash of what is run: stages and orders."""
    orders = sorted((device, " ".join(map(str, order))) for device, order in plan.schedule.items() if order)
    return hashlib.sha256(repr((plan.stages, orders)).encode()).hexdigest()


def _other_questions(problem: Problem, choice: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """What else is asked where the choice leaves it open: names, each with options that make it another question."""
    devices = tuple(device.name for device in problem.cluster.devices)
    if any(len(stage.replicas) > 1 for stage in choice.stages):
        yield "without replicas", {"max_replicas": 1}
    elif len(devices) in problem.allowed_replicas and len(devices) > 1 and not problem.options.pinned:
        whole = (tuple(problem.profile.topological_order),)
        yield "data parallel", {"partition": whole, "placement": (tuple((name,) for name in devices),)}
    if any(action.kind in "IW" for order in choice.schedule.values() for action in order):
        yield "whole backwards", {"split_backward": False}
    if max(len({action.stage for action in order}) for order in choice.schedule.values() if order) > 1:
        yield "one stage per device", {"max_stages_per_device": 1}


def make_candidates(
    workload: Workload, *, seconds: float, should_stop: Callable[[], bool], hear: Callable[[str], None]
) -> list[RunnablePlan]:
    """The best plan of several kinds, each planned for so many `seconds`; what the planner prefers comes first.

    Raises InfeasibleProblemError or NoPlanFoundError if not even the first question has an answer.
    """
    problem = restrict_problem(make_problem(workload), TARGETS["executor"])
    hear(_UNRESTRICTED)
    found = [_make_runnable(_UNRESTRICTED, problem, seconds=seconds, should_stop=should_stop)]
    for name, changes in _other_questions(problem, found[0].plan):
        if should_stop():
            break
        hear(name)
        asked = replace(problem, options=replace(problem.options, **changes))
        try:
            candidate = _make_runnable(name, asked, seconds=seconds, should_stop=should_stop)
        except (InfeasibleProblemError, NoPlanFoundError):
            continue
        if candidate.key not in {each.key for each in found}:
            found.append(candidate)
    return sorted(found, key=lambda each: each.predicted_ns)  # a short search may do better where less is open


def _make_runnable(name: str, problem: Problem, *, seconds: float, should_stop: Callable[[], bool]) -> RunnablePlan:
    plan = _make_plan(problem, seconds=seconds, should_stop=should_stop)
    return RunnablePlan(name=name, plan=plan, predicted_ns=simulate(problem, plan).makespan_ns)


def _make_plan(problem: Problem, *, seconds: float, should_stop: Callable[[], bool]) -> Plan:
    from planner.planning import make_plan

    limits = Limits(time_limit_s=seconds)
    return make_plan(problem, limits=limits, should_stop=should_stop, target=TARGETS["executor"])


def predict(workload: Workload, plan: Plan) -> int | None:
    """What a plan takes by another profile; None where that lacks a cost."""
    try:
        return simulate(question_of(plan, workload), plan).makespan_ns
    except (PipeplanError, ValueError, KeyError):
        return None
