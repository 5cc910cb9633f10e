"""Tests of planner/bounds/cases/tree_codes.py."""

from random import Random

from planner.bounds.cases.tree_codes import TreeCodes
from planner.evidence.certificate import refute
from planner.layout.costs import CostModel
from planner.plan import Stage
from tests.planner.bounds.cases.test_refutation import EFFORT, small_problem
from tests.planner.brute_force import brute_force


def test_nothing_is_proposed_without_time():
    """Tests that once time is up no other case is looked into: each may take as long as the caller has to spare."""
    problem, asked = small_problem(Random(8)), list[int]()
    best = brute_force(problem)
    assert best is not None

    def propose(stages: tuple[Stage, ...], codes: TreeCodes) -> None:
        del stages, codes
        asked.append(1)

    costs = CostModel(problem)
    assert refute(problem, costs, value=best, effort=EFFORT, has_time=lambda: len(asked) < 1, propose=propose) is None
    assert len(asked) == 1
    asked.clear()
    refute(problem, costs, value=best, effort=EFFORT, propose=propose)
    assert len(asked) > 1
