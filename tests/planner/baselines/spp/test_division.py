"""SPP's division of layers and devices among stages: tests of planner/baselines/spp/division.py."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from random import Random

import pytest

from planner.baselines.partitions import crossing_bytes
from planner.baselines.spp.division import CumulativeLoads, Division, divide, make_divided_stages
from planner.layout.costs import CostModel, overlaps
from planner.plan import Stage
from tests.planner.baselines.spp.test_plans import random_spp_problem


def every_division(num_layers: int, num_devices: int, num_stages: int) -> Iterator[tuple[list[int], list[int]]]:
    """Cuts and replicas of every way to share out all layers and all devices among so many stages."""
    for inner in combinations(range(1, num_layers), num_stages - 1):
        for ends in combinations(range(1, num_devices), num_stages - 1):
            replicas = [b - a for a, b in pairwise((0, *ends, num_devices))]
            yield [0, *inner, num_layers], replicas


def largest_load_ns(costs: CostModel, stages: Sequence[Stage]) -> float:
    """The objective of SPP's programme, from the stages themselves and not from its tables."""
    problem, count = costs.problem, costs.problem.num_microbatches
    loads: list[float] = []
    for stage in stages:
        each = [costs.stage_cost(stage, replica) for replica in range(len(stage.replicas))]
        slowest = max(cost.forward_ns + cost.backward_ns for cost in each)
        loads.append(count * slowest + costs.synchronisation_ns(stage))
    crossing, place = crossing_bytes(problem.profile), 0
    for before, after in pairwise(stages):
        place += len(before.layers)
        for i, j, share, whole in overlaps(len(before.replicas), len(after.replicas)):
            route = problem.cluster.route(before.replicas[i][0], after.replicas[j][0], num_bytes=1)
            slowness = 10**9 / route.bandwidth_bytes_per_s
            loads.append(count * (route.latency_ns + crossing[place] * (share / whole) * slowness))
    return max(loads)


def test_programme_equals_brute_force():
    """Tests that for every number of stages W is the least largest load of all divisions, up to 6 layers, 5 devices."""
    rng = Random(1)
    for _ in range(120):
        problem = random_spp_problem(
            rng, num_layers=rng.randint(1, 6), num_devices=rng.randint(1, 5), num_microbatches=rng.randint(1, 9)
        )
        costs = CostModel(problem)
        names = [device.name for device in problem.cluster.devices]
        loads = CumulativeLoads(costs, names)
        num_layers = len(problem.profile.layers)
        found = {
            len(division.replicas): division
            for division in divide(loads, replica_counts=range(1, len(names) + 1), uses_all=True)
        }
        assert set(found) == set(range(1, min(num_layers, len(names)) + 1))
        for num_stages, division in found.items():
            stages = make_divided_stages(loads, division)
            assert largest_load_ns(costs, stages) == pytest.approx(division.value_ns, rel=1e-9)
            every = [
                make_divided_stages(loads, Division(value_ns=0, cuts=tuple(cuts), replicas=tuple(replicas)))
                for cuts, replicas in every_division(num_layers, len(names), num_stages)
            ]
            least = min(largest_load_ns(costs, each) for each in every)
            assert division.value_ns == pytest.approx(least, rel=1e-9)


def test_programme_may_leave_the_last_devices_idle():
    """Tests that with idle devices W is the least over every number of devices, and never larger than without."""
    rng = Random(2)
    for _ in range(40):
        problem = random_spp_problem(rng, num_layers=rng.randint(2, 5), num_devices=4, num_microbatches=3)
        loads = CumulativeLoads(CostModel(problem), [device.name for device in problem.cluster.devices])
        used = {len(d.replicas): d.value_ns for d in divide(loads, replica_counts=(1, 2, 3, 4), uses_all=True)}
        idle = {len(d.replicas): d.value_ns for d in divide(loads, replica_counts=(1, 2, 3, 4), uses_all=False)}
        assert all(idle[stages] <= value for stages, value in used.items())
        alone = {len(d.replicas): d for d in divide(loads, replica_counts=(1,), uses_all=False)}
        assert all(set(division.replicas) == {1} for division in alone.values())
