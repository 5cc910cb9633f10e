"""What a plan costs that takes over from a running one: tests of planner/replanning/transition.py."""

from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest

from planner.batch_problem import problem_for
from planner.decisions.price.device_kinds import cost_of
from planner.device_subsets import problem_on
from planner.errors import InfeasibleProblemError
from planner.evidence.check_evidence import rederive
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.replanning.transition import Transition, going_over
from planner.simulation.simulate import simulate
from tests.planner.hasty import make_plan, make_plans
from tests.planner.planning.runs.test_driver import FIRST, PRICES, QUICK, assert_derived, priced, row, sized


def transition_from(*stages: Stage, steps_left: int) -> Transition:
    """From stages whose devices are all still there."""
    return Transition(before=stages, absent=frozenset(), steps_left=steps_left, bytes_per_s=1e9)


@pytest.mark.slow
@pytest.mark.parametrize("steps_left", [1, 50])
def test_taking_over_at_any_size(steps_left: int):
    """Tests that over all sizes of microbatches the sum of iterations and moving is the least, with a bound of each."""
    batch = sized()
    transition = transition_from(Stage(layers=("x", "y", "z"), replicas=(("b",),)), steps_left=steps_left)
    plan, *_ = make_plans(batch, top=1, limits=QUICK, transition=transition)
    problem = problem_for(batch, plan)
    assert rederive(problem, plan).passed
    assert [result.microbatch_size for result in plan.evidence.sizes] == [1, 2, 4]

    def total(where: Problem, made: Plan) -> int:
        iteration_ns = simulate(where, made).makespan_ns
        return going_over(where, made, iteration_ns=iteration_ns, transition=transition).total_ns

    alone = [(each, make_plans(each, top=1, limits=QUICK, transition=transition)[0]) for each in batch.candidates]
    assert total(problem, plan) == min(total(each.at_its_size(), made) for each, made in alone)


@cache
def plans_of_parts() -> list[Plan]:
    """Of the priced row on some of its devices, wherever it fits; none of them knows of a transition."""
    problem, plans = priced(row(), PRICES), list[Plan]()
    for chosen in (("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")):
        with suppress(InfeasibleProblemError):
            plans.append(make_plan(problem_on(problem, chosen), limits=FIRST))
    return plans


@pytest.mark.slow
@pytest.mark.parametrize("steps_left", [1, 1000])
def test_taking_over_at_the_least_cost(steps_left: int):
    """Tests that devices are paid for while state moves: few iterations stay where it is, many go where it is cheap."""
    problem = priced(row(), PRICES)
    before = (Stage(layers=("l0", "l1"), replicas=(("a",),)), Stage(layers=("l2", "l3"), replicas=(("b",),)))
    transition = transition_from(*before, steps_left=steps_left)
    plan, *_ = make_plans(problem, top=1, limits=replace(QUICK, max_rounds=4), transition=transition)
    assert rederive(problem, plan).passed

    def money(made: Plan) -> int:
        spent = going_over(problem, made, iteration_ns=simulate(problem, made).makespan_ns, transition=transition)
        return cost_of(problem, made, makespan_ns=spent.total_ns)

    assert set(plan.devices) == ({"a", "b"} if steps_left == 1 else {"a", "c"})
    assert all(money(plan) <= money(other) for other in plans_of_parts())


@pytest.mark.slow
def test_kinds_that_take_over():
    """Tests that behind the least sum and what moves least there are plans of other kinds, the least sum first."""
    problem = row()
    before = (Stage(layers=("l0", "l1"), replicas=(("a",),)), Stage(layers=("l2", "l3"), replicas=(("c",),)))
    transition = transition_from(*before, steps_left=20)
    least = make_plans(problem, top=1, limits=QUICK, transition=transition)
    plans = make_plans(problem, top=4, limits=QUICK, transition=transition)
    assert plans[: len(least)] == least
    assert len(plans) == 4
    others = plans[len(least) :]
    assert_derived(problem, [plans[0], *others])
    sums = [
        going_over(problem, each, iteration_ns=each.evidence.makespan_ns, transition=transition).total_ns
        for each in (plans[0], *others)
    ]
    assert sums == sorted(sums)
