"""Forwards and backwards in turn: tests of planner/baselines/alternation.py; the orders are drawn by hand."""

import pytest

from planner.actions import Action
from planner.baselines.alternation import alternate, forward_steps, fused_steps, order_one_f_one_b, split_steps
from planner.baselines.pipeline import Pipeline, make_pipeline, make_plan
from planner.baselines.sequential import assign_sequential
from planner.layout.costs import CostModel, StageCost
from planner.verify import verify
from tests.planner.baselines import test_sequential
from tests.planner.baselines.drawings import require_as_kept
from tests.planner.builders import make_layer, make_problem, make_stage


def pipeline(count: int, *, has_weights: bool = True) -> Pipeline:
    """One stage on one device."""
    times = (1, 1, 1) if has_weights else (1, 1, 0)
    costs = CostModel(make_problem([make_layer("x", times)], [], more_devices="a", num_microbatches=count))
    made = make_pipeline(costs, [make_stage("x @ a")])
    assert isinstance(made.costs[0], StageCost)
    return made


def words(order: list[Action]) -> str:
    """Kinds and microbatches."""
    return " ".join(f"{action.kind}{action.microbatch}" for action in order)


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (0, "F0 B0 F1 B1 F2 B2"),
        (1, "F0 B0 F1 B1 F2 B2"),
        (2, "F0 F1 B0 F2 B1 B2"),
        (3, "F0 F1 F2 B0 B1 B2"),
        (9, "F0 F1 F2 B0 B1 B2"),
    ],
)
def test_forwards_run_ahead(ahead: int, expected: str):
    """Tests that at least one forward comes first and at most all, and that every action is there once."""
    made = pipeline(3)
    assert words(alternate(forward_steps(made, 0), fused_steps(made, 0), num_ahead=ahead)) == expected


def test_weight_gradients_wait():
    """Tests that W of some microbatches before follow an I, and that those left over come at the end."""
    steps = split_steps(pipeline(4), 0, deferral=2)
    assert [words(step) for step in steps] == ["I0", "I1", "I2 W0", "I3 W1 W2 W3"]
    steps = split_steps(pipeline(2, has_weights=False), 0, deferral=1)
    assert [words(step) for step in steps] == ["I0", "I1"]
    assert [words(step) for step in fused_steps(pipeline(2, has_weights=False), 0)] == ["I0", "I1"]


@pytest.mark.parametrize("memory", ["loose", "tight", "scarce"])
def test_one_forward_one_backward_fits(memory: str):
    """Tests that where the full depth was granted, 1F1B on the stages passes the verifier, memory included."""
    problem = test_sequential.make_problem(f"chain-48x8-m16-{memory}-two-level-classes")
    costs = CostModel(problem)
    seating = assign_sequential(costs)
    plan = make_plan(costs, seating.stages, device_orders=order_one_f_one_b(make_pipeline(costs, seating.stages)))
    if seating.in_flight == len(problem.cluster.devices):
        assert verify(problem, plan).passed
    else:
        assert memory == "scarce"


@pytest.mark.parametrize("method", ["GPipe", "1F1B", "ZB-H1", "ZB-H2"])
def test_the_schedule_is_drawn_as_kept(method: str):
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept(method)
