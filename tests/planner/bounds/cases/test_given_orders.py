"""The orders bound: tests of planner/bounds/cases/given_orders.py."""

from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest

from benchmarks.orders import make_problem, uneven_times
from planner.bounds.cases import given_orders
from planner.bounds.cases.case_tables import WorkCount
from planner.evidence.certificate import Bound, OtherRulesError, check_certificate, make_bound, refute
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.planning import Limits, make_plan
from planner.planning.improvers.tree_proposals import TreeProposals
from planner.problem import Problem
from solver_models.local_search.search import Searcher
from tests.long_runs import shortened
from tests.planner.bounds.cases.test_refutation import small_problem
from tests.planner.bounds.test_pipeline_bound import placed
from tests.planner.brute_force import brute_force, brute_force_plan

EFFORT = 200_000


def closed(problem: Problem, value: int) -> Bound | None:
    """The refutation of every order below `value`, with the trees of the compiled search."""
    costs = CostModel(problem)
    trees = TreeProposals(problem, Searcher(make_instance(problem, costs)), value=value)
    return refute(problem, costs, value=value, effort=EFFORT, propose=trees.propose)


def test_the_best_order_is_never_refuted():
    """Tests that no tree goes beyond the best order of random stages, and that nearly all of them reach it."""
    num_problems = num_proved = 0
    for seed in range(shortened(40, whole=1_500)):
        problem = small_problem(Random(f"orders {seed}"))
        found = brute_force_plan(problem)
        fixed = None if found is None else placed(problem, found[1].stages)
        if fixed is None or not given_orders.applies_to(fixed):
            continue
        best = brute_force(fixed)
        if not best:
            continue
        assert closed(fixed, best + 1) is None, f"seed {seed}"
        bound, num_problems = closed(fixed, best), num_problems + 1
        if bound is not None and bound.kind == given_orders.KIND:
            num_proved += 1
            assert check_certificate(fixed, bound.certificate) == best, f"seed {seed}"
    assert num_problems > 0
    assert num_proved >= 0.9 * num_problems


def uneven() -> tuple[Problem, int]:
    """Five stages in half of 1F1B's memory, and what CP-SAT proves to be the best of their orders."""
    return make_problem(uneven_times(5, seed=2), num_microbatches=15, memory=0.5), 105_774_000


def test_trees_close_what_windows_leave_open():
    """Tests that uneven stages in half memory are proved optimal, where the bound before is 1 % below."""
    problem, best = uneven()
    before = make_bound(problem, CostModel(problem))
    bound = closed(problem, best)
    assert before.value_ns < 0.995 * best
    assert bound is not None
    assert bound.kind == given_orders.KIND
    assert check_certificate(problem, bound.certificate) == best


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(4, 21), (3, 22)])
def test_devices_with_more_actions_than_a_word_has_bits(num_stages: int, num_microbatches: int):
    """Tests that trees close more than 62 actions per device, below an order."""
    problem = make_problem(uneven_times(num_stages, seed=2), num_microbatches=num_microbatches, memory=0.5)
    plan = make_plan(problem, limits=Limits(time_limit_s=600, max_rounds=0, threads=1))
    assert plan.evidence is not None
    best, before = plan.evidence.makespan_ns, make_bound(problem, CostModel(problem)).value_ns
    value = before + (best - before) // 4
    bound = closed(problem, value)
    assert bound is not None
    assert bound.kind == given_orders.KIND
    assert check_certificate(problem, bound.certificate) == value
    assert value <= best


def test_what_does_not_close_is_refused():
    """Tests that a larger value, a broken tree, one with fewer nodes, other rules and open stages are refused."""
    problem, best = uneven()
    bound = closed(problem, best)
    assert bound is not None
    broken = [deepcopy(bound.certificate) for _ in range(4)]
    broken[0]["value_ns"] += 1
    broken[1]["tree"] = []
    broken[2]["tree"] = broken[2]["tree"][:-1]
    broken[3]["tree"] = [0]
    for certificate in broken:
        with pytest.raises(ValueError, match=r"^certificate: "):
            check_certificate(problem, certificate)
    with pytest.raises(OtherRulesError, match="rules"):
        check_certificate(problem, {**broken[3], "rules": 1})
    options = replace(problem.options, placement=None)
    with pytest.raises(ValueError, match="does not hold for this problem"):
        check_certificate(replace(problem, options=options), bound.certificate)


def test_no_more_is_looked_at_than_fits():
    """Tests that problems with too many pairs of actions are left out, and a proof stops at its limit of work."""
    problem, best = uneven()
    assert given_orders.applies_to(problem)
    assert not given_orders.applies_to(replace(problem, num_microbatches=400))
    costs = CostModel(problem)
    assert given_orders.GivenOrders(costs).close(best, effort=WorkCount(100)) is None
