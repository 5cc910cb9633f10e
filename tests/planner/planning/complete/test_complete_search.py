"""`--method cp-sat` and `--method ilp`: tests of planner/planning/complete/complete_search.py."""

from random import Random

from planner.planning.complete.complete_search import MODEL, longest
from planner.progress import Limits
from planner.simulation.simulate import simulate
from tests.long_runs import shortened
from tests.planner.hasty import make_plan
from tests.planner.planning.complete.test_complete_files import baseline_of
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


def test_nothing_takes_longer_than_everything_in_turn():
    """Tests that the horizon without a plan is above the makespan of plans."""
    for seed in range(shortened(20, whole=200)):
        problem = random_chain(Random(seed), sizes=(5, 3, 3), tight=False)
        assert simulate(problem, baseline_of(problem)).makespan_ns <= longest(problem)
