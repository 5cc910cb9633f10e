"""Stashes travel where not all fit: plans that are valid, and quicker than without."""

from dataclasses import replace

import pytest

from planner.decisions.offload.plans import RULES, offloading_plan
from planner.evidence.check_evidence import rederive
from planner.layout.costs import CostModel
from planner.problem import Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.builders import make_plan as plan_of
from tests.planner.hasty import make_plan
from tests.planner.offloads import with_host_links
from tests.planner.recomputed_chain import recomputed_chain


def scarce(stages: int, *, count: int, kept: float, **options: object) -> Problem:
    """A chain whose devices have room for so many stashes, each with a link of its own that takes 5 ns for one."""
    problem = recomputed_chain(stages, num_microbatches=count, kept=kept, **options)
    return with_host_links(problem, bandwidth=2 * 10**9)


KEEPING = {"recompute": False, "recompute_microbatches": False}


def test_stashes_travel_until_orders_fit():
    """Tests that of four forwards in a row, with room for two, those that are needed last, or first, travel."""
    problem = scarce(1, count=4, kept=2.5, **KEEPING)
    plan = plan_of(problem, ["l0 @ d0"], {"d0": "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3"})
    found = {}
    for rule in RULES:
        made = offloading_plan(problem, plan, costs=CostModel(problem), rule=rule)
        assert made is not None
        assert verify(problem, made).passed
        found[rule.oldest_first] = [each.microbatch for each in made.stages[0].offload]
        assert simulate(problem, made).peak_bytes["d0"] <= 25
    assert found == {False: [1, 2], True: [0, 1, 2]}


@pytest.mark.slow
@pytest.mark.parametrize("options", [KEEPING, {}])
def test_the_search_offloads(options: dict):
    """Tests that three devices with room for a stash and a half are quicker with hosts than without."""
    problem = scarce(3, count=4, kept=1.5, **options)
    alone = replace(problem, options=replace(problem.options, offload=False))
    limits = Limits(time_limit_s=60, max_rounds=2)
    found, before = (make_plan(each, limits=limits) for each in (problem, alone))
    assert verify(problem, found).passed
    assert found.evidence.makespan_ns < before.evidence.makespan_ns or options == {}
    assert found.evidence.makespan_ns <= before.evidence.makespan_ns
    again = rederive(problem, found, with_baselines=False)
    assert not again.differences, again.differences
