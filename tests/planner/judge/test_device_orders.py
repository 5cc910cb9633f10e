"""The schedule as arrays, to the judge: tests of planner/judge/device_orders.py."""

import pytest

from planner.actions import Action
from planner.judge.device_orders import are_actions, read_orders
from planner.judge.stage_replicas import make_stage_replicas
from tests.planner.builders import make_stage

SCHEDULE = {"a": (Action("F", 0, 0), Action("B", 0, 0)), "b": (), "c": (Action("F", 1, 0), Action("W", 7, 9))}


def test_rows_lead_back_to_actions():
    """Tests that every row is the action that the plan lists, on its device, an empty list between others as well."""
    orders = read_orders(SCHEDULE, num_stages=2, num_microbatches=1)
    rows = [(orders.device_name(row), orders.action(row)) for row in range(4)]
    assert rows == [(device, action) for device, order in SCHEDULE.items() for action in order]
    assert orders.place.tolist() == [0, 1, 0, 2]


def test_what_is_not_of_the_problem_is_nowhere():
    """Tests that stages and microbatches beyond the problem's are marked, and run by nobody."""
    orders = read_orders(SCHEDULE, num_stages=2, num_microbatches=1)
    assert (orders.stage.tolist()[-1], orders.microbatch.tolist()[-1]) == (-1, -1)
    replicas = make_stage_replicas([make_stage("x @ a"), make_stage("y @ c")], has_weight_grad=[True, True])
    assert orders.runners(replicas).tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((), True),
        ((Action("F", 0, 0),), True),
        (("0F0",), False),
        ((Action("F", True, 0),), False),
        ((Action("F", 0.0, 0),), False),
    ],
)
def test_what_is_an_action(order: tuple[object, ...], expected: bool):
    """Tests that texts, truth values and fractions are none."""
    assert are_actions(order) is expected
