"""The orders that SPP compares: tests of planner/baselines/spp/compared_orders.py."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from planner.baselines.pipeline import make_pipeline, make_plan
from planner.baselines.spp.compared_orders import order_greedy, order_slotted
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import Timeline, simulate
from tests.long_runs import shortened
from tests.planner.baselines.spp.test_plans import random_spp_problem
from tests.planner.builders import make_layer, make_link, make_problem
from tests.strategies import AMPLE


def slotted_bound_ns(costs: CostModel, stages: Sequence[Stage], timeline: Timeline) -> int:
    """(M + 4 S - 4) C + the longest all-reduce; C from the parts of a played plan."""
    load: dict[object, int] = {}
    for stage, placed in enumerate(stages):
        for replica in range(len(placed.replicas)):
            cost = costs.stage_cost(placed, replica)
            backward = cost.backward_ns if cost.has_weight_grad else cost.input_grad_ns
            load[stage, replica] = cost.forward_ns + backward
    for sent in timeline.transfers:
        load[sent.links] = max(load.get(sent.links, 0), sent.end_ns - sent.start_ns)
    slots = costs.problem.num_microbatches + 4 * len(stages) - 4
    return slots * max(load.values()) + max(costs.synchronisation_ns(stage) for stage in stages)


def random_stages(rng: Random, problem: Problem) -> tuple[Stage, ...]:
    """Contiguous stages on disjoint devices, some of them replicated."""
    names = [device.name for device in problem.cluster.devices]
    layers = problem.profile.topological_order
    count = rng.randint(1, min(len(names), len(layers)))
    cuts = [0, *sorted(rng.sample(range(1, len(layers)), count - 1)), len(layers)]
    ends = [0, *sorted(rng.sample(range(1, len(names)), count - 1)), len(names)]
    return tuple(
        Stage(layers=layers[a:b], replicas=tuple((name,) for name in names[c:d]))
        for (a, b), (c, d) in zip(pairwise(cuts), pairwise(ends), strict=True)
    )


def play(costs: CostModel, stages: tuple[Stage, ...], order: object) -> tuple[Plan, Timeline]:
    plan = make_plan(costs, stages, device_orders=order(make_pipeline(costs, stages)))
    return plan, simulate(costs.problem, plan, costs=costs)


@pytest.mark.slow
def test_slotted_order_keeps_its_bound():
    """Tests that in thousands of cases, replicas included, the slotted order takes at most (M + 4S - 4) C + AR."""
    rng = Random(3)
    tightest, problem = 0.0, None
    for number in range(shortened(1_000, whole=10_000)):
        if number % 5 == 0:
            problem = random_spp_problem(
                rng, num_layers=rng.randint(1, 6), num_devices=rng.randint(1, 6), num_microbatches=rng.randint(1, 8)
            )
        assert problem is not None
        costs = CostModel(problem)
        stages = random_stages(rng, problem)
        _, timeline = play(costs, stages, order_slotted)
        bound = slotted_bound_ns(costs, stages, timeline)
        assert timeline.makespan_ns <= bound
        tightest = max(tightest, timeline.makespan_ns / bound if bound else 0)
    assert tightest > 0.99


def test_slotted_order_is_drawn():
    """Tests that the slotted order is as drawn, and that stage s stashes up to 4(S-s)+1 microbatches."""
    problem = random_spp_problem(Random(4), num_layers=3, num_devices=3, num_microbatches=12)
    costs = CostModel(problem)
    names = problem.profile.topological_order
    stages = tuple(Stage(layers=(name,), replicas=((f"d{n}",),)) for n, name in enumerate(names))
    words = order_slotted(make_pipeline(costs, stages))
    assert " ".join(map(str, words[1][:12])) == "1F0 1F1 1F2 1F3 1B0 1F4 1B1 1F5 1B2 1F6 1B3 1F7".replace(
        "B", words[1][4].kind
    )
    for stage, word in enumerate(words):
        held = most = 0
        for action in word:
            held += 1 if action.kind == "F" else -1
            most = max(most, held)
        assert most <= 4 * (3 - 1 - stage) + 1
        assert len(word) == 24


def test_greedy_order_breaks_the_bound():
    """Tests that first in, first out takes 1.8 times the bound where a stage's long F keep the next one's B waiting."""
    times = ((1, 99, 0), (99, 1, 0), (30, 70, 0))
    layers = [make_layer(name, time) for name, time in zip("abc", times, strict=True)]
    problem = make_problem(layers, [make_link("d0 d1"), make_link("d1 d2")], num_microbatches=120, memory_bytes=AMPLE)
    costs = CostModel(problem)
    stages = tuple(Stage(layers=(name,), replicas=((f"d{n}",),)) for n, name in enumerate("abc"))
    _, greedy = play(costs, stages, order_greedy)
    _, slotted = play(costs, stages, order_slotted)
    bound = slotted_bound_ns(costs, stages, slotted)
    assert bound == (120 + 4 * 3 - 4) * 100
    assert slotted.makespan_ns <= bound
    assert greedy.makespan_ns > 1.8 * bound
