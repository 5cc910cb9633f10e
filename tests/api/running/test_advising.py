"""What `pipeplan advise` says of the traces of a job."""

from api.running.advising import AdviceResult, describe_advice
from planner.fidelity.advice import advise
from tests.planner.fidelity.chunked_runs import pipelines_that_differ


def test_pipelines_that_differ_get_other_orders_only():
    """Tests that it is said why nothing else is offered where one pipeline's devices have other stages."""
    step = pipelines_that_differ()
    said = AdviceResult(advice=advise([step], blocks_per_stage=2), plan=None, blocks_per_stage=2)
    assert sum(line.startswith("remedies  other orders only: other assignments") for line in describe_advice(said)) == 1
