"""Tests of planner/decisions/unequal_shares/share_layout_search.py."""

import pytest

from planner.decisions.unequal_shares.share_layout_search import ShareLayouts
from planner.progress import Limits
from tests.planner.decisions.unequal_shares.test_share_layouts import FOUND
from tests.planner.hasty import make_plan


@pytest.mark.slow
def test_a_run_takes_what_no_equal_shares_allow():
    """Tests that a whole run ends with two of three devices, which take 2 and 1 of 3 samples."""
    problem, samples, makespan_ns = FOUND["one layer on two of three devices"]
    plan = make_plan(problem, limits=Limits(time_limit_s=600, max_rounds=1))
    assert [stage.samples for stage in plan.stages] == samples
    assert plan.evidence is not None
    assert (plan.evidence.makespan_ns, plan.evidence.source) == (makespan_ns, ShareLayouts.name)
