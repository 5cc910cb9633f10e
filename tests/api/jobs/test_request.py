"""Tests of api/jobs/request.py."""

import time

import pytest

from api.jobs.request import PlanRequest
from api.jobs.workers.solver_handle import Child, ProcessLimits
from planner.progress import Limits
from tests.api.jobs.workers.test_pool import large_problem


@pytest.mark.usefixtures("_real_solvers")
def test_a_stop_is_heard_while_solvers_load():
    """Tests that a stop that comes before a fresh process has begun with its order is not forgotten."""
    request = PlanRequest(problem=large_problem(), limits=Limits(time_limit_s=600, patience_s=600, threads=1))
    child, until = Child(ProcessLimits()), time.monotonic() + 120
    child.order(op="solve", request=request.render(), start=None)
    child.ask_to_stop()
    answer = None
    while answer is None or answer["event"] == "progress":
        assert time.monotonic() < until
        answer = child.answer(0.1)
    child.kill()
    assert (answer["event"], answer["stopped_by"]) == ("done", "user")
