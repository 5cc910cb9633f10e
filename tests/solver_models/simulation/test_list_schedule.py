"""Pipelines as nets, and which action a rule takes of several that are ready."""

from dataclasses import replace

import pytest

from planner.actions import parse_action
from planner.baselines.encoded_orders import make_net, name_actions
from planner.baselines.layouts import EVEN, LOOPED, make_stages
from planner.baselines.pipeline import Pipeline, make_pipeline
from planner.layout.costs import CostModel
from planner.problem import Options
from solver_models.device_rows import DeviceRow, column
from solver_models.simulation.evaluator import FAR
from solver_models.simulation.list_schedule import list_schedule, play_orders
from solver_models.simulation.preferences import BACKWARD_FIRST, DEEPEST, OLDEST
from tests.planner.evidence.test_certificate import make_chain


def two_chunks(*, memory: int = 99) -> Pipeline:
    """Two stages of F 1, I 2 and W 1 on one device, two microbatches, a byte of stash that W gives back."""
    problem = make_chain(
        [(1, 2, 1)] * 2,
        num_devices=1,
        num_microbatches=2,
        stash=(1, 1),
        options=Options(max_stages_per_device=2, receive_buffers=0),
    )
    costs = CostModel(problem)
    return replace(make_pipeline(costs, make_stages(costs, LOOPED, cut=EVEN)), devices=(DeviceRow(memory=memory),))


@pytest.mark.parametrize(
    ("stages", "most_pending", "expected"),
    [
        (DEEPEST, FAR, "0F0 1F0 1I0 0I0 0F1 1F1 1I1 0I1 1W0 0W0 1W1 0W1"),
        (OLDEST, FAR, "0F0 1F0 1I0 0I0 0F1 1F1 1I1 0I1 1W0 0W0 1W1 0W1"),
        (DEEPEST, 1, "0F0 1F0 1I0 0I0 1W0 0F1 1F1 1I1 0I1 0W0 1W1 0W1"),
        (DEEPEST, 0, "0F0 1F0 1I0 0I0 1W0 0W0 0F1 1F1 1I1 0I1 1W1 0W1"),
    ],
)
def test_backward_passes_first(stages: int, most_pending: int, expected: str):
    """Tests that W wait, in the order of their I, until nothing else can run or more than so many of them wait."""
    net = make_net(two_chunks())
    played = list_schedule(net, column([2, 2]), kinds=BACKWARD_FIRST, stages=stages, most_pending=most_pending)
    assert name_actions(played.device_orders, played.lengths) == [[parse_action(a) for a in expected.split()]]
    assert (played.makespan, played.span) == (16, 16)


def test_what_has_no_room_is_left_over():
    """Tests that no schedule is complete where memory holds one stash, and that two do where W come at once."""
    tight, enough = (make_net(two_chunks(memory=memory)) for memory in (1, 2))
    assert list_schedule(tight, column([2, 2]), kinds=BACKWARD_FIRST, stages=DEEPEST).makespan == FAR
    assert list_schedule(enough, column([2, 2]), kinds=BACKWARD_FIRST, stages=DEEPEST, most_pending=0).makespan == 16


def test_a_schedule_that_is_late_breaks_off():
    """Tests that a threshold above the makespan changes nothing, and that one it reaches is what is stated."""
    net = make_net(two_chunks())
    whole = list_schedule(net, column([2, 2]), kinds=BACKWARD_FIRST, stages=DEEPEST)
    above = list_schedule(net, column([2, 2]), kinds=BACKWARD_FIRST, stages=DEEPEST, threshold=17)
    assert (above.makespan, above.device_orders.tolist()) == (16, whole.device_orders.tolist())
    assert list_schedule(net, column([2, 2]), kinds=BACKWARD_FIRST, stages=DEEPEST, threshold=12).makespan == 12
    assert play_orders(net, whole, threshold=17).makespan == 16
    assert play_orders(net, whole, threshold=12).makespan == 12
