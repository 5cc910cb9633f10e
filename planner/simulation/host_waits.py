"""Where the host sets the pace of a plan: what its cards wait for, and what a host that takes no time would save."""

from dataclasses import dataclass, replace

from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import Timeline, simulate

_TELLING_PERCENT = 1
"""A stage waits for its host if its actions take so much longer than the card's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWaits:
    """What actions wait for their hosts."""

    stages: tuple[int, ...]
    """The stages in which the host sets the pace: cards wait there for a hundredth of their work or more."""
    objective_ns: int
    """Objective of the plan, with the host's time."""
    without_host_ns: int
    """What it takes, its orders kept, where the host takes no time, as with captured graphs."""


def find_host_waits(problem: Problem, plan: Plan) -> HostWaits | None:
    """None where the profile tells no host times, or cards wait nowhere."""
    if not problem.profile.has_host_times:
        return None
    free = replace(problem, profile=problem.profile.without_host_times(), batch=None)
    timelines = [simulate(each, plan) for each in (problem, free)]
    taken, work = (_time_per_stage(timeline) for timeline in timelines)
    stages = tuple(number for number in sorted(work) if 100 * taken[number] > (100 + _TELLING_PERCENT) * work[number])
    objective = problem.options.objective
    ours, theirs = (timeline.objective_ns(objective) for timeline in timelines)
    return HostWaits(stages=stages, objective_ns=ours, without_host_ns=theirs) if stages else None


def _time_per_stage(timeline: Timeline) -> dict[int, int]:
    found: dict[int, int] = {}
    for order in timeline.actions.values():
        for timed in order:
            found[timed.action.stage] = found.get(timed.action.stage, 0) + timed.end_ns - timed.start_ns
    return found
