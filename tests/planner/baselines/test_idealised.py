"""Idealised twins: what they round, and that no neighbour of a uniform chain loses by a nanosecond of transfer."""

import random
from dataclasses import replace

import pytest

from benchmarks.capped_uniform import TICK_NS, make_uniform
from planner.baselines.idealised import twins
from planner.baselines.layouts import GIVEN
from planner.baselines.pipeline import make_pipeline
from planner.baselines.registry import METHODS, make_baselines, make_method_plan, play_baseline
from planner.layout.costs import CostModel
from planner.plan import BaselineResult, Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate

CAPPED = next(method for method in METHODS if method.name == "capped greedy")


def neighbour_of(problem: Problem, *, edge_bytes: int, spread: float, ratio: tuple[int, int, int]) -> Problem:
    """The same chain with transfers, and times that differ by a share and in a ratio of F : I : W."""
    rng = random.Random(1)
    layers = []
    for layer in problem.profile.layers:
        ns = [round(TICK_NS * part / 10 * (1 + rng.uniform(-spread, spread))) for part in ratio]
        cost = replace(layer.costs[0], forward_ns=ns[0], input_grad_ns=ns[1], weight_grad_ns=ns[2])
        layers.append(replace(layer, costs=(cost,)))
    edges = tuple(replace(edge, bytes=edge_bytes) for edge in problem.profile.edges)
    return replace(problem, profile=replace(problem.profile, layers=tuple(layers), edges=edges))


def makespan_of(problem: Problem, plan: Plan) -> int:
    return simulate(problem, replace(plan, problem=problem.reference())).makespan_ns


@pytest.mark.parametrize(
    ("edge_bytes", "spread", "ratio"),
    [
        (1, 0.0, (10, 10, 10)),
        (TICK_NS // 1000, 0.0, (10, 10, 10)),
        (TICK_NS // 100, 0.0, (10, 10, 10)),
        (TICK_NS // 20, 0.0, (10, 10, 10)),
        (0, 0.02, (10, 10, 10)),
        (TICK_NS // 50, 0.05, (10, 10, 10)),
        (TICK_NS // 100, 0.0, (10, 12, 8)),
    ],
)
@pytest.mark.parametrize(("devices", "count", "room"), [(6, 18, 3), (8, 32, 5)])
def test_a_neighbour_is_near(
    devices: int, count: int, room: int, edge_bytes: int, spread: float, ratio: tuple[int, int, int]
):
    """Tests that the row of a disturbed chain is no more than 1 % above the clean row's order, played on it."""
    clean = make_uniform(devices, num_microbatches=count, room=room)
    problem = neighbour_of(clean, edge_bytes=edge_bytes, spread=spread, ratio=ratio)
    played = makespan_of(problem, make_method_plan(CostModel(clean), CAPPED, cut=GIVEN))
    assert makespan_of(problem, make_method_plan(CostModel(problem), CAPPED, cut=GIVEN)) <= 1.01 * played


class Asks:
    """A clock that denies once it was asked so often."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize("name", ["capped greedy", "capped 1F1B"])
def test_a_row_has_all_of_its_twins_or_none(name: str):
    """Tests that where time ends among twins the row is left out, and that the one always played has all of them."""
    clean = make_uniform(6, num_microbatches=18, room=3)
    problem = neighbour_of(clean, edge_bytes=TICK_NS // 50, spread=0.05, ratio=(10, 12, 8))
    costs = CostModel(problem)

    def rows(left: int) -> list[BaselineResult]:
        made = make_baselines(problem, costs, has_time=Asks(left))
        return [play_baseline(problem, each, costs=costs)[0] for each in made if each.name == f"{name} ({GIVEN.name})"]

    (whole,) = rows(10**9)
    found = [row for left in range(0, 30, 4) for row in rows(left)]
    assert all(row == whole or row.had_no_time for row in found)
    assert {row.had_no_time for row in found} == ({False} if name == "capped greedy" else {False, True})


def test_twins_round_in_classes():
    """Tests that durations within a tolerance are made equal, others are not, and transfers take no time."""
    problem = neighbour_of(
        make_uniform(4, num_microbatches=8, room=2), edge_bytes=10**6, spread=0.01, ratio=(10, 20, 10)
    )
    costs = CostModel(problem)
    stages = make_method_plan(costs, CAPPED, cut=GIVEN).stages
    free, rounded, *_ = twins(make_pipeline(costs, stages))
    assert {delay for legs in free.activations_to for _, delay in legs} == {0}
    assert len({cost.forward_ns for cost in free.costs}) == 4
    assert len({ns for cost in rounded.costs for ns in (cost.forward_ns, cost.weight_grad_ns)}) == 1
    assert len({cost.input_grad_ns for cost in rounded.costs}) == 1


def test_one_twin_waits_halfway():
    """Tests that all transfers stand in one place of a twin, whose order beats the clean one where devices are busy."""
    clean = make_uniform(12, num_microbatches=36, room=9)
    problem = neighbour_of(clean, edge_bytes=TICK_NS // 20, spread=0.0, ratio=(10, 10, 10))
    costs = CostModel(problem)
    plan = make_method_plan(costs, CAPPED, cut=GIVEN)
    free, delayed = twins(make_pipeline(costs, plan.stages))
    delays = [delay for legs in delayed.activations_to for _, delay in legs]
    assert (sum(delays), delays[5]) == (TICK_NS, TICK_NS)  # 11 of a twentieth, in halves
    assert delayed.gradients_to == free.gradients_to
    played = makespan_of(problem, make_method_plan(CostModel(clean), CAPPED, cut=GIVEN))
    assert (played, makespan_of(problem, plan)) == (1_271_000_000, 1_263_000_000)
