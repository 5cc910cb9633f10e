"""The judge's figures of a plan whose timeline, as the core claims it, satisfies all of its equations."""

import pytest

from planner.judge.reading import Reading
from planner.judge.times import Judgement, check_times
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import Timeline, simulate


def judged(problem: Problem, plan: Plan, *, timeline: Timeline | None = None) -> Judgement:
    """What the judge adds up; fails where the core says anything else."""
    claimed = timeline or simulate(problem, plan)
    found = check_times(Reading(problem, plan), claimed)
    assert found.inconsistencies == ()
    assert (claimed.makespan_ns, claimed.span_ns) == (found.makespan_ns, found.span_ns)
    assert claimed.peak_bytes == found.peak_bytes
    assert claimed.bubble == pytest.approx(found.bubble, abs=1e-12)
    return found
