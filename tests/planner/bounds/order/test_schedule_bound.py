"""What waits for the W that frees its memory: never more than the best order takes, and more than without that rule."""

from random import Random
from unittest.mock import patch

import pytest

from benchmarks.orders import make_problem
from planner.bounds.order.schedule_bound import HeadsAndTails
from planner.evidence.certificate import check_certificate, make_bound, schedule_bound
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force

RAISED = (2, 46, 57, 62, 67)
"""Seeds of which the rule raises the bound."""


def scarce(seed: int) -> Problem:
    """Three stages, each on a device that holds two of four stashes until the end of W."""
    rng = Random(seed)
    times = [(rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 9)) for _ in range(3)]
    return make_problem(times, num_microbatches=4, memory=2 / 3, transfer_us=rng.randint(0, 2))


def bound_of(problem: Problem) -> int:
    """The schedule and windows bounds of the given stages."""
    pairs = zip(problem.options.partition or (), problem.options.placement or (), strict=True)
    stages = [Stage(layers=layers, replicas=groups) for layers, groups in pairs]
    return schedule_bound(problem, stages, costs=CostModel(problem))


@pytest.mark.parametrize("seeds", [RAISED, range(shortened(4, whole=400))])
def test_no_best_order_is_below_it(seeds: tuple[int, ...] | range):
    """Tests that the best order of brute force is never below the bound, which is raised where it should be."""
    for seed in seeds:
        problem = scarce(seed)
        best, bound = brute_force(problem), bound_of(problem)
        assert best is not None
        assert bound <= best, f"seed {seed}"
        with patch.object(HeadsAndTails, "_unfinished", lambda self, _: self.count):
            assert bound_of(problem) < bound or seed not in RAISED


@pytest.mark.parametrize("less", [0, 1, 1_000])
def test_a_certificate_of_fewer_rules_holds(less: int):
    """Tests that a schedule certificate may state less than today's rules show, but not more."""
    problem = make_problem([(2, 3, 4)] * 2, num_microbatches=3, memory=0.5)
    shown = make_bound(problem, CostModel(problem)).value_ns
    assert check_certificate(problem, {"kind": "schedule", "value_ns": shown - less}) == shown - less
    with pytest.raises(ValueError, match="but proves"):
        check_certificate(problem, {"kind": "schedule", "value_ns": shown + 1})


def test_one_microbatch_at_a_time():
    """Tests that where one stash fits, rounds of F, transfer, F, I, transfer, I and W follow each other."""
    problem = make_problem([(2, 3, 4)] * 2, num_microbatches=3, memory=0.5, transfer_us=1)
    assert bound_of(problem) == brute_force(problem) == 1_000 * 3 * (2 + 1 + 2 + 3 + 1 + 3 + 4)
