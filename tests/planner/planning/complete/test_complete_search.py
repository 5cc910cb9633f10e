"""`--method cp-sat` and `--method ilp`: tests of planner/planning/complete/complete_search.py."""

from dataclasses import replace
from random import Random

from planner.planning.complete.complete_search import MODEL, longest
from planner.progress import Limits
from planner.simulation.simulate import simulate
from profiles.model_profile import LayerCost
from tests.long_runs import shortened
from tests.planner.hasty import make_plan
from tests.planner.planning.complete.test_complete_files import baseline_of
from tests.planner.planning.improvers.test_branch_and_check import chain_of
from tests.solver_models.complete.test_complete_model import open_problem
from tests.strategies import random_chain


def test_a_solvers_word_is_no_proof_of_ours():
    """Tests that what CP-SAT claims is labelled as its claim, and the plan is not called optimal for it."""
    evidence = make_plan(open_problem(), limits=Limits(time_limit_s=60, method="cp-sat")).evidence
    assert evidence is not None
    assert evidence.lower_bound_ns < evidence.makespan_ns == evidence.solver_bound_ns == 74
    assert (evidence.solution_status, evidence.proved_by, evidence.stopped_by) == ("feasible", None, "solver")
    assert evidence.solver_versions[MODEL].startswith("CP-SAT ")
    assert evidence.source == MODEL


def test_the_best_of_rounded_times_is_not_called_the_best():
    """Tests that a solver that is done claims no more than the times that it was given, which are rounded down."""
    problem = chain_of("chunks", 1006)
    layers = tuple(replace(each, costs=tuple(map(unround, each.costs))) for each in problem.profile.layers)
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    evidence = make_plan(problem, limits=Limits(time_limit_s=60, method="ilp")).evidence
    assert evidence is not None
    assert evidence.solver_bound_ns is not None
    assert evidence.solver_bound_ns < evidence.makespan_ns
    assert evidence.stopped_by == "no_improvement"


def unround(cost: LayerCost) -> LayerCost:
    """The cost in other units, and a nanosecond more for all but W."""
    return replace(
        cost,
        forward_ns=cost.forward_ns * 10**6 + 1,
        input_grad_ns=cost.input_grad_ns * 10**6 + 1,
        weight_grad_ns=cost.weight_grad_ns * 10**6,
        backward_ns=None,
    )


def test_nothing_takes_longer_than_everything_in_turn():
    """Tests that the horizon without a plan is above the makespan of plans."""
    for seed in range(shortened(20, whole=200)):
        problem = random_chain(Random(seed), sizes=(5, 3, 3), tight=False)
        assert simulate(problem, baseline_of(problem)).makespan_ns <= longest(problem)
