"""No plan cuts a sample: what the planner returns, and what the executor is given."""

import os
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from planner.errors import PipeplanError
from planner.export.targets import TARGETS, restrict_problem
from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from tests.planner.brute_force import broken_rules, brute_force
from tests.planner.builders import make_layer, make_link, make_problem, make_stage, with_evidence
from tests.planner.hasty import make_plan
from tests.strategies import random_problem

pytestmark = pytest.mark.slow

LIMITS = Limits(time_limit_s=60, max_rounds=1)
"""One round of search after every way to a first plan was taken."""

SEEDS_ONLY = replace(LIMITS, max_rounds=0)
"""Without the round, as nine of ten random problems are planned."""


def num_problems() -> int:
    """How many problems this run plans for: 10, and 5,000 in `make test-long`."""
    return int(os.environ.get("PIPEPLAN_SAMPLE_CASES", "10"))


def shared_problem(seed: int) -> Problem:
    """A random problem, now and then with an odd size, uneven replication forbidden, or split placement."""
    rng = Random(seed)
    problem = random_problem(rng)
    options = replace(
        problem.options,
        max_stages_per_device=rng.randint(1, 2),
        uneven_replication=rng.random() < 0.7,
        idle_devices=rng.random() < 0.8,
        split_placement=rng.random() < 0.3,
        recompute=False,
        keep_workspace=False,
    )
    return replace(problem, options=options)


def plan_for(problem: Problem, *, seed: int, target: str | None = None) -> Plan | None:
    """The plan of a short search; None if there is none."""
    program = None if target is None else TARGETS[target]
    asked = problem if program is None else restrict_problem(problem, program)
    try:
        return make_plan(asked, limits=SEEDS_ONLY if seed % 10 else LIMITS, target=program)
    except PipeplanError:
        return None


def cut_samples(problem: Problem, plan: Plan) -> list[int]:
    """The stages of a plan of which some device takes a part of a sample."""
    size = problem.profile.microbatch_size
    if size is None:
        return []
    shares = [
        [Fraction(1, len(stage.replicas)), *(Fraction(s.numerator, s.denominator) for s in stage.input_grad_replicas)]
        for stage in plan.stages
    ]
    return [number for number, own in enumerate(shares) if any((size * share).denominator > 1 for share in own)]


def test_no_plan_cuts_a_sample():
    """Tests that no stage of a returned plan works on parts of samples, nor where nothing was measured."""
    found = 0
    for seed in range(num_problems()):
        problem = shared_problem(seed)
        plan = plan_for(problem, seed=seed)
        if plan is not None:
            found += 1
            assert not cut_samples(problem, plan), f"seed {seed}"
            if not any(stage.is_split for stage in plan.stages):
                assert not list(broken_rules(problem, plan.stages))
    assert found > num_problems() // 2


def replicated(**profile: object) -> tuple[Problem, Plan]:
    """A plan of one stage on two devices, with its evidence."""
    problem = make_problem([make_layer("x", (9, 9, 9))], [make_link("a b")], **profile)
    plan = make_plan(problem, limits=LIMITS)
    return problem, plan


def test_an_odd_microbatch_stays_whole():
    """Tests that three samples are not cut for two devices, whose baselines say why."""
    _, plan = replicated(microbatch_size=3)
    assert [len(stage.replicas) for stage in plan.stages] == [1]
    assert plan.evidence is not None
    row = next(row for row in plan.evidence.baselines if row.name == "data parallel")
    assert row.makespan_ns is None
    assert "microbatch_size = 3" in row.note


def test_layers_are_replicated_as_each_was_measured():
    """Tests that a layer that was measured at half a microbatch is replicated although another layer was not."""
    whole, other = make_layer("x", (20, 20, 20)), make_layer("y", (3, 3, 3))
    (cost,) = whole.costs
    half = replace(cost, microbatch_size=2, forward_ns=10, input_grad_ns=10, weight_grad_ns=10)
    layers = [replace(whole, costs=(cost, half)), other]
    fields = {"microbatch_size": 4, "scaling": "measured", "max_stages_per_device": 2}
    problem = make_problem(layers, [make_link("a b")], **fields)
    plan = make_plan(problem, limits=LIMITS)
    assert {stage.layers: len(stage.replicas) for stage in plan.stages} == {("x",): 2, ("y",): 1}
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns == brute_force(problem)


def test_brute_force_knows_both_rules():
    """Tests that stages that cut samples, or take shares that nobody measured, are no choice of brute force."""
    problem, plan = replicated(microbatch_size=2)
    whole = replace(plan, stages=(make_stage("x @ a | b"),), schedule=dict.fromkeys("ab", plan.schedule["a"]))
    assert not list(broken_rules(problem, whole.stages))
    for change in ({"microbatch_size": 3}, {"scaling": "measured"}):
        other = replace(problem, profile=replace(problem.profile, **change))
        assert list(broken_rules(other, whole.stages))
        assert not verify(other, replace(whole, problem=other.reference(), evidence=None)).passed


def test_evidence_of_assumed_shares_is_checked():
    """Tests that evidence can be made with and without the statement (documents of version 1 have none)."""
    problem, plan = replicated(microbatch_size=2)
    assert verify(problem, with_evidence(problem, plan)).passed
