"""A problem as the complete programme takes it: tests of planner/planning/complete/complete_question.py."""

import pytest

from planner.bounds.cases.case_tables import CaseTables, TooManyCasesError
from planner.layout.costs import CostModel
from planner.planning.complete.complete_question import require_covered
from tests.planner.decisions.recompute_layers.test_option import tight_chain


def test_complete_searches_refuse_maps():
    """Tests that the complete model and refutations, which know stages that recompute, say that they do not hold."""
    problem = tight_chain(recompute=True, recompute_layers=True)
    with pytest.raises(ValueError, match="recompute_layers = true is not in the complete model"):
        require_covered(problem)
    with pytest.raises(TooManyCasesError, match="does not hold with recompute_layers = true"):
        CaseTables(problem, CostModel(problem))
