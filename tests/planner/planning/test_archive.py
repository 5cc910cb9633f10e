"""The best plans of different kinds: verified, honest, the same on any machine, and the first is `make_plan`'s."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.baselines.registry import make_baselines, play_baseline
from planner.document import parse_plan, render_plan
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.evidence.check_evidence import rederive
from planner.export.targets import TARGETS, restrict_problem
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.plan_kind import PlanKind, kind_of
from planner.problem import Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.long_runs import examples, shortened
from tests.planner.hasty import make_plan, make_plans
from tests.planner.planning.runs.test_dispatch import make_row
from tests.strategies import random_problem

QUICK = Limits(time_limit_s=60, max_rounds=2)
MANY = 20


def objective_of(problem: Problem, plan: Plan) -> int:
    return simulate(problem, plan).objective_ns(problem.options.objective)


def assert_kinds(problem: Problem, plans: Sequence[Plan]) -> None:
    """Each is verified with its evidence, no two are alike, and none is faster than those before."""
    for plan in plans:
        assert verify(problem, plan).passed
        assert plan.evidence is not None
        assert plan.evidence.makespan_ns == simulate(problem, plan).makespan_ns
        assert plan.evidence.lower_bound_ns <= objective_of(problem, plan)
        assert parse_plan(render_plan(plan)) == plan
    assert len({kind_of(plan) for plan in plans}) == len(plans)
    times = [objective_of(problem, plan) for plan in plans]
    assert times == sorted(times)


def best_baselines(problem: Problem) -> dict[PlanKind, int]:
    """The fastest baseline of every kind that fits."""
    found: dict[PlanKind, int] = {}
    costs = CostModel(problem)
    for baseline in make_baselines(problem, costs):
        row, timeline = play_baseline(problem, baseline, costs=costs)
        if baseline.plan is not None and timeline is not None and row.fits_memory:
            kind, time_ns = kind_of(baseline.plan), timeline.objective_ns(problem.options.objective)
            found[kind] = min(time_ns, found.get(kind, time_ns))
    return found


def test_the_first_is_the_plan_of_make_plan():
    """Tests that who asks for more gets the same best plan, byte for byte, and no more than asked for."""
    problem = make_row(max_replicas=None)
    best = make_plan(problem, limits=QUICK)
    for top in shortened((2,), whole=(1, 2, 5)):
        plans = make_plans(problem, top=top, limits=QUICK)
        assert render_plan(plans[0]) == render_plan(best)
        assert len(plans) == top
        assert_kinds(problem, plans)


def test_threads_and_runs_make_no_difference():
    """Tests that with rounds the plans are the same, byte for byte, on one thread and on three."""
    problem = make_row()
    found = [
        [render_plan(plan) for plan in make_plans(problem, top=6, limits=replace(QUICK, threads=threads))]
        for threads in (1, 3)
    ]
    assert found[0] == found[1]
    assert len(found[0]) > 2


def test_certificates_hold_for_every_kind():
    """Tests that the evidence of each plan, its own gap included, follows from the plan."""
    problem = make_row()
    for plan in make_plans(problem, top=4, limits=QUICK):
        outcome = rederive(problem, plan)
        assert outcome.passed, outcome.differences


def test_baselines_that_fit_are_candidates():
    """Tests that for every kind of baseline there is a plan that is no slower, unless others fill the list."""
    problem = make_row()
    plans = make_plans(problem, top=MANY, limits=QUICK)
    times = {kind_of(plan): objective_of(problem, plan) for plan in plans}
    baselines = best_baselines(problem)
    assert len(baselines) >= 4
    for kind, time_ns in baselines.items():
        assert kind in times or (len(plans) == MANY and max(times.values()) <= time_ns)
        assert times.get(kind, 0) <= time_ns


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.randoms(use_true_random=False))
def test_of_any_problem(rng: Random):
    """Tests that of random problems all plans are verified, of different kinds, and no slower than baselines alike."""
    problem = random_problem(rng)
    try:
        plans = make_plans(problem, top=5, limits=replace(QUICK, max_rounds=1))
    except (InfeasibleProblemError, NoPlanFoundError):
        return
    assert_kinds(problem, plans)
    times = {kind_of(plan): objective_of(problem, plan) for plan in plans}
    for kind, time_ns in best_baselines(problem).items():
        assert times.get(kind, 0) <= time_ns


@pytest.mark.parametrize("name", ["megatron", "torch"])
def test_a_target_runs_all_of_them(name: str):
    """Tests that where plans are made for a program, it can run each of them."""
    target = TARGETS[name]
    problem = restrict_problem(make_row(), target)
    plans = make_plans(problem, top=3, limits=QUICK, target=target)
    assert_kinds(problem, plans)
    assert len(plans) > 1
    for plan in plans:
        assert target.fit(problem, plan).schedule == plan.schedule


def test_given_stages_leave_orders():
    """Tests that with given stages on given devices the plans differ in their orders alone."""
    problem = make_row(4, 2)
    names = [layer.name for layer in problem.profile.layers]
    given_ = {"partition": (tuple(names[:2]), tuple(names[2:])), "placement": ((("d0",),), (("d1",),))}
    fixed = replace(problem, options=replace(problem.options, **given_))
    plans = make_plans(fixed, top=4, limits=QUICK)
    assert_kinds(fixed, plans)
    assert len(plans) > 1
    for first, second in pairwise(plans):
        assert first.stages == second.stages
