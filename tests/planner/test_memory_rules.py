"""Rules of memory that options turn on: the judge, the core and the oracle read them alike."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings

from planner.judge.reading import Reading
from planner.plan import Plan
from planner.problem import Problem
from planner.simulate import simulate
from planner.verify import verify
from tests.planner.oracle import evaluate
from tests.strategies import RANDOMS, random_plan, random_problem, with_memory, with_reference


def peaks(problem: Problem, plan: Plan) -> dict[str, int]:
    """Peak bytes per device, on which the judge, the core and the oracle agree."""
    asked = with_reference(problem, plan)
    found = dict(simulate(problem, asked).peak_bytes)
    assert verify(problem, asked).passed
    assert found == {device: use.peak_bytes for device, use in Reading(problem, asked).memory.items()}
    assert found == evaluate(problem, asked).peak_bytes
    return found


def keeping(problem: Problem, *, keeps: bool = True) -> Problem:
    """The problem in which I keeps its workspace, or does not."""
    return replace(problem, options=replace(problem.options, keep_workspace=keeps))


@settings(max_examples=300, deadline=None)
@given(rng=RANDOMS)
def test_kept_workspace_is_read_alike(rng: Random):
    """Tests that all agree where I keeps its workspace, which never needs less, and as much where all is B."""
    problem = random_problem(rng)
    plan = random_plan(rng, problem)
    kept, given_back = (peaks(keeping(problem, keeps=keeps), plan) for keeps in (True, False))
    assert all(kept[device] >= given_back[device] for device in kept)
    for device, word in plan.schedule.items():
        if all(action.kind in "FB" for action in word):
            assert kept[device] == given_back[device]


@settings(max_examples=100, deadline=None)
@given(rng=RANDOMS)
def test_kept_workspace_has_to_fit(rng: Random):
    """Tests that a plan is refused with a byte less than its peak where I keeps its workspace, and not with all."""
    problem = keeping(random_problem(rng))
    plan = random_plan(rng, problem)
    for device, peak in peaks(problem, plan).items():
        for memory, fits in ((peak, True), (peak - 1, False)) if peak > 0 else ():
            tight = with_memory(problem, {device: memory})
            assert verify(tight, with_reference(tight, plan)).passed == fits
