"""Where a problem is small enough to try everything, the planner finds the best there is."""

from dataclasses import replace
from random import Random

import pytest

from planner.errors import InfeasibleProblemError
from planner.planning import make_plan
from planner.problem import Problem
from planner.progress import Limits
from tests.planner.oracle import brute_force
from tests.strategies import random_chain

BATCH = 10
"""Seeds per test; the odd ones have ample memory."""


def planned(problem: Problem) -> int | None:
    """The planner's makespan; None if it says that there is no plan."""
    try:
        plan = make_plan(problem, limits=Limits(time_limit_s=30))
    except InfeasibleProblemError:
        return None
    assert plan.evidence is not None
    return plan.evidence.makespan_ns


def assert_optimal(seeds: range, *, sizes: tuple[int, int, int], **options: object) -> None:
    """The planner's best equals the best of all, and claims no bound above it."""
    for seed in seeds:
        chain = random_chain(Random(seed), sizes=sizes, tight=seed % 2 == 0)
        problem = replace(chain, options=replace(chain.options, **options))
        assert planned(problem) == brute_force(problem), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 60, BATCH))
def test_one_stage_per_device(first: int):
    """Tests that nothing beats the plan for a chain on at most three devices with one stage each."""
    assert_optimal(range(first, first + BATCH), sizes=(6, 3, 3))


@pytest.mark.parametrize("first", range(100, 140, BATCH))
def test_replication(first: int):
    """Tests that nothing beats the plan where stages may be replicated."""
    assert_optimal(range(first, first + BATCH), sizes=(6, 3, 3), max_replicas=None)


@pytest.mark.parametrize("first", range(200, 240, BATCH))
def test_several_stages_per_device(first: int):
    """Tests that nothing beats the plan where a device may hold two stages."""
    assert_optimal(range(first, first + BATCH), sizes=(3, 2, 2), max_stages_per_device=2)
