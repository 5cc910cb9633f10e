"""Names to numbers and back: nothing is lost on the way."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.actions import KINDS
from planner.layout.costs import CostModel
from planner.layout.device_groups import overlap_anywhere
from planner.lowering import (
    make_candidate_arrays,
    make_instance,
    make_plan_from_orders,
    make_schedule_instance,
    make_stages,
    modes_of,
)
from planner.plan import Plan, Stage
from planner.problem import PinnedLayer
from planner.simulation.simulate import simulate
from planner.verify import verify
from solver_models.simulation.evaluator import TAIL
from tests.planner.builders import make_edge, make_layer, make_link, make_problem, make_stage
from tests.strategies import random_problem, random_schedule, random_stages

randoms = st.randoms(use_true_random=False)


def is_narrow(stages: Sequence[Stage]) -> bool:
    """Whether every group is a single device, as the search knows them."""
    return all(len(group) == 1 for stage in stages for group in stage.replicas)


@given(randoms)
def test_stages_survive_the_round_trip(rng: Random):
    """Tests that stages on single devices, turned into arrays and back, are what they were."""
    problem = random_problem(rng)
    stages = random_stages(rng, problem)
    if is_narrow(stages):
        stage_of, groups = make_candidate_arrays(problem, stages)
        assert make_stages(problem, stage_of, groups=groups, modes=modes_of(stages)) == stages


@given(randoms)
def test_words_survive_the_round_trip(rng: Random):
    """Tests that orders, turned into triples of numbers and back, are what they were."""
    problem = random_problem(rng)
    stages = random_stages(rng, problem)
    schedule = random_schedule(rng, problem, stages=stages)
    index = {device.name: number for number, device in enumerate(problem.cluster.devices)}
    leaders = {group[0] for stage in stages for group in stage.replicas}
    if is_narrow(stages):
        words = {
            index[device]: [(KINDS.index(kind), stage, microbatch) for kind, stage, microbatch in schedule[device]]
            for device in leaders
        }
        assert make_plan_from_orders(problem, stages, device_orders=words).schedule == schedule


@given(randoms)
def test_costs_are_those_of_the_plan(rng: Random):
    """Tests that the lanes of a schedule instance last as long, and its devices have as much room, as in the plan.

    A group is as one device with the least room of its devices.
    """
    problem = random_problem(rng)
    stages = random_stages(rng, problem)
    assume(not overlap_anywhere(stages))
    plan = Plan(problem=problem.reference(), stages=stages, schedule=random_schedule(rng, problem, stages=stages))
    costs = CostModel(problem)
    instance = make_schedule_instance(problem, stages, costs=costs)
    timeline = simulate(problem, plan)
    lanes = {(problem.cluster.devices[lane.device].name, lane.stage): lane for lane in instance.replicas}
    for device, word in timeline.actions.items():
        for action, start_ns, end_ns in word:
            lane = lanes.get((device, action.stage))
            if lane is not None:
                ticks = {"F": lane.forward, "I": lane.input_grad, "W": lane.weight_grad, "B": lane.backward}
                assert end_ns - start_ns == ticks[action.kind]
    static = costs.static_bytes(stages)
    room = {device.name: device.usable_bytes - static.get(device.name, 0) for device in problem.cluster.devices}
    groups = [group for stage in stages for group in stage.replicas]
    for number, device in enumerate(problem.cluster.devices):
        led = (group for group in groups if group[0] == device.name)
        acting_as_one = {device.name, *(name for group in led for name in group)}
        assert instance.devices[number].memory == min(room[name] for name in acting_as_one)


def test_figures_stand_where_they_belong():
    """Tests that layers are numbered in topological order, and that edges, routes and pins use these numbers."""
    problem = make_problem(
        [
            make_layer("y", (3, 4, 5)),
            make_layer("x", (1, 2, 0), parameter_bytes=0),
            make_layer("z", (1, 1, 0), frozen=True),
        ],
        [make_link("a b", bandwidth=2 * 10**9, latency=7), make_link("b c", latency=1)],
        edges=[make_edge("y z", num_bytes=6, gradient_bytes=0), make_edge("x y", num_bytes=5)],
        pinned=(PinnedLayer(layer="y", device="b"),),
        optimizer_ns=11,
    )
    instance = make_instance(problem, CostModel(problem))
    assert problem.profile.topological_order == ("x", "y", "z")
    assert instance.work[0, :4, 0, :2].tolist() == [[1, 3], [2, 4], [0, 5], [2, 9]]
    assert instance.layers.trainable.tolist() == [0, 1, 0]
    assert instance.layers.frozen.tolist() == [0, 0, 1]
    assert instance.layers.edges.tolist() == [[0, 1, 5, 5, 1, 1], [1, 2, 6, 0, 0, 0]]
    assert instance.pinned.tolist() == [-1, 1, -1]
    assert instance.layers.latency.tolist() == [[0, 7, 8], [7, 0, 1], [8, 1, 0]]
    assert instance.layers.bandwidth[0].tolist()[1:] == [2 * 10**9, 10**9]
    starts = instance.layers.route_start.tolist()
    routes = [instance.layers.route_links[a:b].tolist() for a, b in pairwise(starts)]
    assert routes == [[], [0], [0, 2], [1], [], [2], [3, 1], [3], []]
    assert (instance.layers.options[TAIL], instance.given_stages, instance.given_groups) == (11, None, None)


def test_numbers_of_replicas_share_a_table_where_costs_are_linear():
    """Tests that work measured at one size only is stored once, however many replicas there may be."""
    problem = make_problem([make_layer("x")], [make_link("a b"), make_link("b c")])
    instance = make_instance(problem, CostModel(problem))
    assert instance.work.shape == (1, 5, 1, 1)
    assert instance.layers.table_of_replicas.tolist() == [0, 0, 0, 0]


def test_given_stages_and_devices_become_numbers():
    """Tests that a given partition and placement reach the search."""
    problem = make_problem(
        [make_layer(name) for name in "xyz"],
        [make_link("a b")],
        partition=(("x", "y"), ("z",)),
        placement=((("b",),), (("a",), ("b",))),
        max_stages_per_device=2,
    )
    instance = make_instance(problem, CostModel(problem))
    assert instance.given_stages is not None
    assert instance.given_stages.tolist() == [0, 0, 1]
    assert instance.given_groups == ((1,), (0, 1))


@pytest.mark.parametrize("objective", ["makespan", "span"])
def test_plans_from_words_are_valid(objective: str):
    """Tests that a plan made from numbers answers its problem."""
    problem = make_problem([make_layer("x"), make_layer("y")], [make_link("a b")], objective=objective)
    stages = (make_stage("x @ a"), make_stage("y @ b"))
    words = {0: [(0, 0, 0), (1, 0, 0), (2, 0, 0)], 1: [(0, 1, 0), (3, 1, 0)]}
    assert verify(problem, make_plan_from_orders(problem, stages, device_orders=words)).passed
