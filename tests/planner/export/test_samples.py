"""How many samples a microbatch has, for programs that have to be told: tests of planner/export/samples.py."""

from dataclasses import replace
from fractions import Fraction

import pytest

from planner.execute.table.layout import make_layout
from planner.export.targets import TARGETS, restrict_problem
from planner.layout.costs import CostModel
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.judge.test_samples import cut_samples, num_problems, plan_for, replicated, shared_problem

pytestmark = pytest.mark.slow


def test_the_executor_takes_what_was_planned_for_it():
    """Tests that every plan for the executor passes its own check, and that none has replicas of unknown shares."""
    found = 0
    for seed in range(num_problems()):
        problem = shared_problem(seed)
        plan = plan_for(problem, seed=seed, target="executor")
        if plan is not None:
            found += 1
            make_layout(plan)
            assert plan.evidence is not None
            assert plan.evidence.assumed_divisible == ()
            assert not cut_samples(problem, plan), f"seed {seed}"
    assert found > num_problems() // 2


def test_nobody_shares_samples_of_unknown_number_in_the_executor():
    """Tests that neither replicas nor parts of I are looked at for a program that has to cut samples."""
    problem = make_problem([make_layer("x", (9, 9, 9))], [make_link("a b")])
    problem = replace(problem, options=replace(problem.options, split_placement=True))
    restricted = restrict_problem(problem, TARGETS["executor"])
    assert problem.profile.microbatch_size is None
    assert restricted.options.max_replicas == 1
    assert CostModel(problem).has_share(Fraction(1, 2))
    assert not CostModel(restricted).has_share(Fraction(1, 2))


def test_an_unknown_size_is_told_and_not_executed():
    """Tests that a replicated plan of microbatches of unknown size says so, and that the executor names the remedy."""
    problem, plan = replicated(microbatch_size=None, idle_devices=False)
    assert [len(stage.replicas) for stage in plan.stages] == [2]
    assert plan.evidence is not None
    assert plan.evidence.assumed_divisible == (0,)
    with pytest.raises(ValueError, match=r"stage 0 .* microbatch_size = null; state the samples"):
        make_layout(plan)
    with pytest.raises(ValueError, match="the executor cannot divide the samples"):
        TARGETS["executor"].fit(problem, replace(plan, evidence=None))
