"""Where the W go: into waits, before a forward that has no room, or to the end."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from planner.actions import Action, parse_action
from planner.baselines.layouts import EVEN, ONE_EACH, make_stages
from planner.baselines.pipeline import Pipeline, make_pipeline
from planner.baselines.registry import METHODS, make_method_plan
from planner.baselines.zero_bubble.weight_grads import Habit, fill
from planner.layout.costs import CostModel
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from tests.strategies import random_chain

ZB_AUTOMATIC = next(method for method in METHODS if method.name == "ZB automatic")


def two_stages(*, delay_ns: int, num_microbatches: int = 2) -> Pipeline:
    """F = I = W = 4 on two devices, a stash of one byte that W gives back."""
    cost = LayerCost(device_type="x", forward_ns=4, input_grad_ns=4, weight_grad_ns=4)
    layers = tuple(
        Layer(name=name, costs=(cost,), parameter_bytes=1, stash_bytes=1, weight_stash_bytes=1) for name in "ab"
    )
    problem = Problem(
        profile=ModelProfile(name="two", layers=layers, edges=(Edge(producer="a", consumer="b", bytes=delay_ns),)),
        cluster=Cluster(
            name="pair",
            devices=(Device(name="d0", type="x", memory_bytes=100), Device(name="d1", type="x", memory_bytes=100)),
            links=(Link(a="d0", b="d1", bandwidth_bytes_per_s=10**9),),
        ),
        num_microbatches=num_microbatches,
    )
    costs = CostModel(problem)
    return make_pipeline(costs, make_stages(costs, ONE_EACH, cut=EVEN))


def actions(text: str) -> list[Action]:
    return [parse_action(word) for word in text.split()]


def filled(pipeline: Pipeline, orders: tuple[str, str], *, habit: Habit, limits: tuple[int, int] = (9, 9)) -> list[str]:
    done = fill(pipeline, [actions(order) for order in orders], habit=habit, limits=limits)
    return [" ".join(map(str, word)) for word in done.device_orders]


ORDERS = ("0F0 0F1 0I0 0I1", "1F0 1I0 1F1 1I1")


def test_long_waits_are_used():
    """Tests that a W runs where the device would wait for at least as long: 0I1 comes 4 ns after 0I0 has ended."""
    words = filled(two_stages(delay_ns=0), ORDERS, habit=Habit(quarters=4))
    assert words == ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"]


def test_short_waits_are_used_by_habit():
    """Tests that a wait of a quarter is used by the habit that says so, and by the one that evens out."""
    pipeline = two_stages(delay_ns=1)
    # Stage 1 takes F1 4 ns after F0, so nothing waits there but for the first gradient on stage 0.
    orders = ("0F0 0F1 0F2 0I0 0I1 0I2", "1F0 1I0 1F1 1I1 1F2 1I2")
    longer = replace(pipeline, num_microbatches=3)
    assert filled(longer, orders, habit=Habit(quarters=4))[0] == "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2"
    slower = replace(longer, costs=(replace(pipeline.costs[0], weight_grad_ns=8), pipeline.costs[1]))
    assert filled(slower, orders, habit=Habit(quarters=4))[0] == "0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2"
    assert filled(slower, orders, habit=Habit(quarters=2))[0] == "0F0 0F1 0F2 0I0 0W0 0I1 0I2 0W1 0W2"
    assert filled(slower, orders, habit=Habit(quarters=4, evens_out=True))[0] == "0F0 0F1 0F2 0I0 0W0 0I1 0I2 0W1 0W2"


def test_room_is_made_before_a_forward():
    """Tests that a W runs before a forward that would not fit, although nothing waits."""
    words = filled(two_stages(delay_ns=0), ORDERS, habit=Habit(quarters=4), limits=(9, 1))
    assert words[1] == "1F0 1I0 1W0 1F1 1I1 1W1"


def test_at_once_while_forwards_are_left():
    """Tests that the habit runs W after its I until the last forward, and in waits from then on."""
    words = filled(two_stages(delay_ns=0), ORDERS, habit=Habit(quarters=4, at_once=True))
    assert words[1] == "1F0 1I0 1W0 1F1 1I1 1W1"


@given(rng=st.randoms(use_true_random=False))
def test_automatic_schedule_keeps_the_memory(rng: Random):
    """Tests that the automatic schedule fits wherever every device has room for one microbatch."""
    problem = random_chain(rng, sizes=(6, 3, 6), tight=True)
    costs = CostModel(problem)
    pipeline = make_pipeline(costs, make_stages(costs, ONE_EACH, cut=EVEN))
    plan = make_method_plan(costs, ZB_AUTOMATIC, cut=EVEN)
    if all(cost.held_bytes <= row.memory for cost, row in zip(pipeline.costs, pipeline.devices, strict=True)):
        assert verify(problem, plan).violations == ()


@given(rng=st.randoms(use_true_random=False))
def test_estimated_times_are_the_played_ones(rng: Random):
    """Tests that where no two transfers share a link the times of the filling are those of the simulator."""
    problem = random_chain(rng, sizes=(6, 2, 6), tight=False)
    costs = CostModel(problem)
    stages = make_stages(costs, ONE_EACH, cut=EVEN)
    plan = make_method_plan(costs, ZB_AUTOMATIC, cut=EVEN)
    timeline = simulate(problem, plan, costs=costs)
    if any(transfer.start_ns > transfer.ready_ns for transfer in timeline.transfers):
        return
    words = [plan.schedule[stage.replicas[0][0]] for stage in stages]
    orders = [[action for action in word if action.kind != "W"] for word in words]
    pipeline = make_pipeline(costs, stages)
    outcomes = [
        fill(
            pipeline,
            orders,
            habit=Habit(quarters=quarters, evens_out=evens_out),
            limits=[row.memory for row in pipeline.devices],
        )
        for quarters in (0, 2, 3, 4)
        for evens_out in (False, True)
    ]
    same = [outcome for outcome in outcomes if list(map(tuple, outcome.device_orders)) == words]
    assert same
    closing_ns = costs.optimizer_ns(plan.stages)
    assert (same[0].makespan_ns + closing_ns, same[0].span_ns) == (timeline.makespan_ns, timeline.span_ns)
