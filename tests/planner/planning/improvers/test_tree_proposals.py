"""Trees for a refutation, found by the compiled search: tests of planner/planning/improvers/tree_proposals.py."""

from random import Random

from planner.evidence.certificate import check_certificate, refute
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.planning.improvers.tree_proposals import TreeProposals
from solver_models.local_search.search import Searcher
from tests.long_runs import shortened
from tests.planner.bounds.cases.test_refutation import EFFORT, hard, small_problem
from tests.planner.brute_force import brute_force


def test_proposed_trees_hold_against_brute_force():
    """Tests that with the trees of the compiled search as well the optimum is reached, and nothing beyond it."""
    num_proved = num_problems = num_nodes = 0
    for seed in range(shortened(25, whole=1_000)):
        problem = small_problem(Random(f"proposed {seed}")) if seed else hard()
        best = brute_force(problem)
        if not best:
            continue
        costs, num_problems = CostModel(problem), num_problems + 1
        searcher = Searcher(make_instance(problem, costs))
        for value in (best, best + 1):
            trees = TreeProposals(problem, searcher, value=value)
            bound = refute(problem, costs, value=value, effort=EFFORT, propose=trees.propose)
            assert bound is None or value == best, f"seed {seed}"
            if bound is not None:
                num_proved += 1
                num_nodes += sum(len(tree) for tree in bound.certificate["trees"])
                assert check_certificate(problem, bound.certificate) == best, f"seed {seed}"
    assert num_proved >= 0.7 * num_problems
    assert num_nodes > 0
