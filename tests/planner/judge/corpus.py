"""A small corpus of valid plans in which everything that the contract speaks of occurs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from random import Random

from planner.plan import Plan
from planner.problem import Problem
from tests.planner.layout.test_gathers import random_case
from tests.planner.listed_cases import random_listed_case
from tests.strategies import (
    draws_turns,
    random_plan,
    random_problem,
    random_split,
    random_split_schedule,
    random_stages,
)

PLAIN, SPLIT = (*range(40), 46, 61, 74, 78, 86, 97), range(1000, 1025)
"""Seeds of plans without and with split placement; behind the first forty are some whose routes take several links."""

SHARDED = (2003, 2007, 2013, 2018, 2026, 2032, 2034, 2040, 2379)
"""Seeds of plans with sharded stages; in the last one a device waits for another to gather."""

LISTED = range(3000, 3010)
"""Seeds of plans whose microbatches differ, most of them dealt to pipelines."""


@cache
def _made() -> tuple[tuple[Problem, Plan], ...]:
    """All of them, one of each kind in turn: most faults are noticed by the first few."""
    plain = [_plain(Random(seed)) for seed in PLAIN]
    listed = [random_listed_case(Random(seed)) for seed in LISTED]
    kinds = zip_longest(map(random_case, SHARDED), listed, (_split(Random(seed)) for seed in SPLIT), plain)
    return tuple(each for row in kinds for each in row if each is not None)


def _plain(rng: Random) -> tuple[Problem, Plan]:
    problem = random_problem(rng)
    if problem.options.recompute and draws_turns(problem.profile.layers):
        problem = replace(problem, options=replace(problem.options, recompute_in_turn=True))
    return problem, random_plan(rng, problem)


def _split(rng: Random) -> tuple[Problem, Plan]:
    problem = random_problem(rng)
    options = replace(problem.options, split_placement=True, split_backward=True, keep_workspace=False)
    problem = replace(problem, options=options)
    stages = tuple(random_split(rng, problem, stage) for stage in random_stages(rng, problem))
    schedule = random_split_schedule(rng, problem, stages=stages)
    return problem, Plan(problem=problem.reference(), stages=stages, schedule=schedule)


def corpus() -> Iterator[tuple[Problem, Plan]]:
    """Every plan with its problem; clusters remember no routes."""
    for problem, plan in _made():
        yield replace(problem, cluster=replace(problem.cluster)), plan
