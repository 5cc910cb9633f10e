"""Tests of planner/planning/runs/candidate_run.py."""

import pytest

from planner.errors import NoPlanFoundError
from planner.planning.runs import candidate_run
from planner.progress import Limits
from tests.planner.hasty import make_plan
from tests.solver_models.complete.test_complete_model import two_stages_on_a_device


@pytest.mark.parametrize("method", ["cp-sat", "ilp"])
def test_a_claim_that_nothing_fits_is_called_one(method: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that where no limit of ours is proved, what the solver claims is said, and nothing of a rejected plan."""
    monkeypatch.setattr(candidate_run, "prove_infeasible", lambda *_: None)
    with pytest.raises(NoPlanFoundError, match=r"claims that no plan fits into memory"):
        make_plan(two_stages_on_a_device(memory=59), limits=Limits(time_limit_s=60, method=method))  # type: ignore[arg-type]
