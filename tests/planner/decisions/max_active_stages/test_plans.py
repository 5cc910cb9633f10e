"""Tests of planner/decisions/max_active_stages/plans.py."""

from dataclasses import replace
from itertools import pairwise

import pytest

from planner.errors import PipeplanError
from planner.problem import Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan as find_plan
from tests.planner.judge.rules.test_gathered import SEEDS, random_case


def test_more_active_stages_hold_more_and_gather_less():
    """Tests that with every further active stage a device holds no less, and nothing is gathered more often."""
    for seed in SEEDS:
        found = []
        for active in (1, 2, 3, 4):
            problem, plan = random_case(seed, active=active)
            timeline = simulate(problem, plan)
            found.append((timeline.peak_bytes, len(timeline.gathers)))
        for (less, more_often), (more, less_often) in pairwise(found):
            assert all(less[device] <= more[device] for device in less)
            assert more_often >= less_often


def given_ranks(memory: int, **options: object) -> Problem:
    """Eight equal layers, each a stage, in a loop on two ranks of two devices; weights take 40 of 200 units a layer."""
    parts = {"parameter_bytes": 40, "gradient_bytes": 40, "optimizer_bytes": 120, "state_bytes": 200, "stash_bytes": 10}
    names, ranks = "abcd", ((("a",), ("b",)), (("c",), ("d",)))
    problem = make_problem(
        [make_layer(f"l{number}", (2000, 2000, 2000), **parts) for number in range(8)],
        [make_link(f"{a} {b}", bandwidth=10**8) for n, a in enumerate(names) for b in names[:n]],
        num_microbatches=4,
        memory_bytes=memory,
        microbatch_size=2,
        scaling="linear",
        shard_optimizer="always",
        split_backward=False,
        max_stages_per_device=4,
        max_active_stages=4,
    )
    given = {"partition": tuple((f"l{n}",) for n in range(8)), "placement": tuple(ranks[n % 2] for n in range(8))}
    return replace(problem, options=replace(problem.options, **given | options))


LIMITS = Limits(time_limit_s=60, max_rounds=1)


@pytest.mark.slow
def test_the_search_gathers_where_weights_do_not_fit_or_it_is_quicker():
    """Tests that a question with little memory is answered with one stage active at a time where it has no answer with
    whole weights, and that with more memory more stages are active, in a plan no slower than without gathering.
    """
    whole = 4 * (40 + 40 + 60)
    scarce = whole + 30
    with pytest.raises(PipeplanError):
        find_plan(given_ranks(scarce - 20, max_active_stages=None), limits=LIMITS)
    tight = find_plan(given_ranks(scarce - 20), limits=LIMITS)
    assert tight.max_active_stages == 1
    roomy, ample = given_ranks(10 * whole), given_ranks(10 * whole, max_active_stages=None)
    plan, other = find_plan(roomy, limits=LIMITS), find_plan(ample, limits=LIMITS)
    assert verify(roomy, plan).passed
    assert plan.max_active_stages is not None
    assert plan.evidence is not None
    assert other.evidence is not None
    assert plan.evidence.makespan_ns < other.evidence.makespan_ns
    assert plan.evidence.bound_kind in ("work", "layer", "path")
