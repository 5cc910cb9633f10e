"""The end of a planning run: tests of planner/planning/evidence.py."""

import pytest

from planner.evidence.certificate import Bound
from planner.planning.evidence import Conclusion


@pytest.mark.parametrize(("searched", "proved"), [(None, None), (8, None), (9, "complete search")])
def test_claims_are_no_proof(searched: int | None, proved: str | None):
    """Tests that a bound that solvers claim proves nothing, and what the search has shown by itself does."""
    bound = Bound(value_ns=7, kind="work", certificate={})
    conclusion = Conclusion(bound=bound, solver_bound_ns=9, searched_ns=searched, stopped_by="complete_search")
    assert conclusion.proof_of(9) == proved
    assert conclusion.proof_of(7) == "certificate"
