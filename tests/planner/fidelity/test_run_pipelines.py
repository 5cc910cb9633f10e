"""The pipelines of a step, whatever stages devices have: tests of planner/fidelity/run_pipelines.py."""

from planner.fidelity.advice import advise
from planner.fidelity.run_pipelines import find_shape
from tests.planner.fidelity.chunked_runs import pipelines_that_differ


def test_pipelines_that_differ_get_other_orders_only():
    """Tests that where one pipeline's devices have other stages, nothing but an order is offered."""
    step = pipelines_that_differ()
    assert find_shape(step) is None
    assert len(advise([step], blocks_per_stage=2).remedies) == 1
