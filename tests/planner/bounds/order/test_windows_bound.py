"""The windows bound: tests of planner/bounds/order/windows_bound.py."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.order import windows_bound as windows
from planner.layout.costs import CostModel
from planner.problem import Problem
from tests.long_runs import examples
from tests.planner.bounds.test_pipeline_bound import SINGLE
from tests.planner.brute_force import brute_force_plan
from tests.planner.evidence.test_certificate import (
    make_chain,
    one_each,
    plans_of,
)
from tests.strategies import random_problem, tiny_problems, with_memory


def is_ruled_out(problem: Problem, stages: tuple[Any, ...], value: int) -> bool:
    """Whether the windows bound denies that some order of these stages has the given objective, however it is asked."""
    times = windows.make_times(problem, stages, costs=CostModel(problem))
    return times is not None and any(windows.is_out_of_reach(times, value, probes=probes) for probes in (0, 7, 200))


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(problem=tiny_problems())
def test_best_orders_are_within_their_windows(problem):
    """Tests that the best order of the best stages, found by brute force, is not ruled out by the windows bound."""
    found = brute_force_plan(problem)
    if found is not None:
        assert not is_ruled_out(problem, found[1].stages, found[0])


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_order_is_outside_its_windows(rng):
    """Tests that no random order of random stages is ruled out, even in the least memory that it fits."""
    problem = random_problem(rng)
    for tight, plan, value in plans_of(rng, problem, tries=3):
        assert not is_ruled_out(tight, plan.stages, value)


def test_trying_both_orders_closes_more():
    """Tests that what both orders of two actions have in common is seen where neither is impossible."""
    problem = make_chain(
        [(837, 1282, 1267), (764, 961, 520), (1207, 1160, 883), (1088, 914, 496)],
        num_devices=4, num_microbatches=8, memory=200, stash=(100, 50), edge_bytes=20, options=SINGLE,
    )  # fmt: skip
    times = windows.make_times(problem, one_each(problem), costs=CostModel(problem))
    assert times is not None
    # CP-SAT proves 44,058 to be the optimum
    assert not windows.is_out_of_reach(times, 43_000)
    assert windows.is_out_of_reach(times, 43_000, probes=80)
    assert not windows.is_out_of_reach(times, 44_058, probes=1_000)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(rng=st.randoms(use_true_random=False), factor=st.sampled_from([2, 7, 1000]))
def test_scaled_times_scale_the_windows(rng, factor):
    """Tests that what is out of reach stays so with all times and the value k times as large, and nothing else does."""
    times = [(rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 5)) for _ in range(3)]
    chains = [
        make_chain(
            [tuple(k * t for t in row) for row in times],
            num_devices=3, num_microbatches=3, memory=rng.choice([10, 20]), stash=(10, 0), options=SINGLE,
        )
        for k in (1, factor)
    ]  # fmt: skip
    chains[1] = with_memory(chains[1], {d.name: d.memory_bytes for d in chains[0].cluster.devices})
    small, large = (windows.make_times(chain, one_each(chain), costs=CostModel(chain)) for chain in chains)
    assert small is not None
    assert large is not None
    for value in rng.sample(range(20, 120), 6):
        for probes in (0, 40):
            found = [windows.is_out_of_reach(t, k * value, probes=probes) for t, k in ((small, 1), (large, factor))]
            assert found[0] == found[1]
