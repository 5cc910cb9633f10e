"""Pure data parallelism: tests of planner/baselines/data_parallel.py."""

from itertools import pairwise

from planner.planning import Limits
from planner.problem import Problem
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan as plan_jointly
from tests.strategies import AMPLE


def unit_problem(num_microbatches: int, **options: object) -> Problem:
    """24 layers with F = I = W on four devices, no time on links."""
    layers = [make_layer(f"l{number:02}", (1000, 1000, 1000), parameter_bytes=1) for number in range(24)]
    links = [make_link(f"d{a} d{b}") for a, b in pairwise(range(4))]
    return make_problem(layers, links, num_microbatches=num_microbatches, memory_bytes=AMPLE, **options)


def test_joint_planner_may_deal_layers_out():
    """Tests that the joint planner returns a plan with many stages per device that are no neighbours."""
    problem = unit_problem(4, max_stages_per_device=6, max_replicas=1)
    plan = plan_jointly(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns <= 78_000
    held = [[n for n, stage in enumerate(plan.stages) if stage.replicas == ((device,),)] for device in plan.devices]
    assert max(map(len, held)) > 2
    assert all(b - a > 1 for own in held for a, b in pairwise(own))
