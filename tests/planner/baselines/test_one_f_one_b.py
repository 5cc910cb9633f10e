"""1F1B (PipeDream-Flush, Narayanan et al., 2021, arXiv 2006.09503): tests of planner/baselines/one_f_one_b.py."""

from benchmarks.generate import make_workload, parse_family
from planner.baselines.layouts import ONE_EACH, SMALLEST_LARGEST, make_stages
from planner.baselines.one_f_one_b import order_one_f_one_b
from planner.baselines.pipeline import make_pipeline, make_plan
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from planner.verify import verify
from tests.planner.baselines.drawings import require_as_kept


def test_one_forward_one_backward_fits():
    """Tests that on the cut whose largest stage is least 1F1B passes the verifier, memory included."""
    workload = make_workload(parse_family("chain-48x8-m16-loose-two-level-equal"))
    assert workload.cluster is not None
    problem = Problem(
        profile=workload.profile,
        cluster=workload.cluster,
        num_microbatches=16,
        options=Options(max_replicas=1, max_stages_per_device=1),
    )
    costs = CostModel(problem)
    stages = make_stages(costs, ONE_EACH, cut=SMALLEST_LARGEST)
    plan = make_plan(costs, stages, device_orders=order_one_f_one_b(make_pipeline(costs, stages)))
    assert verify(problem, plan).passed


def test_the_schedule_is_drawn_as_kept():
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept("1F1B")
