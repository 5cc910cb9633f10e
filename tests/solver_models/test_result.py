"""How a solve went: tests of solver_models/result.py."""

import pytest

from solver_models.pulp_solvers import (
    CheckedAnswer,
    checked,
)
from solver_models.result import SolverFailedError
from tests.solver_models.test_pulp_solvers import two_variables

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # PuLP leaves the log of a failed program open


def test_a_claim_above_a_known_solution_is_a_failure():
    """Tests that a bound above the objective of the start is refused."""
    claim = CheckedAnswer(status="optimal", values={"x": 3, "y": 0}, bound=6.0)
    with pytest.raises(SolverFailedError, match="nothing is below 6, but was given 4"):
        checked(two_variables(), claim, solver="any", hint={"x": 1, "y": 2})
