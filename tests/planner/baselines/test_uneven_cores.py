"""Cores of a host shared out among stages: the dynamic programme against every division, and what becomes of it."""

from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest

from benchmarks.cpu_hosts import host_problems
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.uneven_cores import (
    divide_cores,
    host_runs,
    make_core_stages,
    make_even_cores_plan,
    make_uneven_cores_plan,
    place_blocks,
)
from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes
from tests.planner.hasty import make_plan

WIDTHS = (1, 2, 3)


def random_problem(rng: Random, *, hosts: tuple[int, ...], num_layers: int) -> Problem:
    """A chain on hosts with so many cores; times fall with the width, not in proportion."""
    layers = []
    for number in range(num_layers):
        work = rng.randint(20, 200)
        costs = tuple(
            LayerCost(device_type="core", width=w, forward_ns=work // w + rng.randint(1, 9), input_grad_ns=work // w,
                      weight_grad_ns=work // w)
            for w in WIDTHS
        )  # fmt: skip
        wider = tuple(WidthBytes(width=w, state_bytes=1, stash_bytes=1, weight_stash_bytes=1) for w in WIDTHS[1:])
        layers.append(Layer(name=f"l{number}", costs=costs, parameter_bytes=1, stash_bytes=1, wider=wider))
    devices = tuple(
        Device(name=f"h{host}c{core}", type="core", host=f"h{host}", memory_bytes=10**6)
        for host, count in enumerate(hosts)
        for core in range(count)
    )
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=10**9, latency_ns=1) for a, b in combinations(devices, 2)
    )
    edges = tuple(Edge(producer=f"l{n}", consumer=f"l{n + 1}", bytes=1) for n in range(num_layers - 1))
    return Problem(
        profile=ModelProfile(name="chain", layers=tuple(layers), edges=edges, microbatch_size=1),
        cluster=Cluster(name="hosts", devices=devices, links=links),
        num_microbatches=4,
        options=Options(max_width=3, max_replicas=1, max_stages_per_device=1),
    )


def least_period(problem: Problem, num_stages: int) -> float:
    """By trying all cuts and widths; stages are on hosts in ascending order."""
    costs, order = CostModel(problem), problem.profile.topological_order
    room = [len(run) for run in host_runs(costs)]
    best = float("inf")
    for cuts in combinations(range(1, len(order)), num_stages - 1):
        bounds = [0, *cuts, len(order)]
        for widths in product(WIDTHS, repeat=num_stages):
            if not fits(widths, room):
                continue
            times = []
            for number, width in enumerate(widths):
                works = [
                    costs.layer_work(name, "core", width=width, replicas=1)
                    for name in order[bounds[number] : bounds[number + 1]]
                ]
                times.append(sum(work.forward_ns + work.backward_ns for work in works if work))
            best = min(best, max(times))
    return best


def fits(widths: tuple[int, ...], room: list[int]) -> bool:
    """Whether the stages, in order, find their cores on the hosts, in order."""
    host, left = 0, room[0]
    for width in widths:
        while left < width:
            host += 1
            if host == len(room):
                return False
            left = room[host]
        left -= width
    return True


@pytest.mark.parametrize("hosts", [(4,), (5,), (3, 2), (2, 4)])
def test_division_has_the_shortest_period(hosts: tuple[int, ...]):
    """Tests that on small chains every division is as good as the best of all cuts and widths, and seated on a host."""
    rng = Random(sum(hosts))
    for _ in range(6):
        problem = random_problem(rng, hosts=hosts, num_layers=5)
        costs = CostModel(problem)
        found = {len(division.cuts): division for division in divide_cores(costs, WIDTHS)}
        for num_stages in range(1, 5):
            least = least_period(problem, num_stages)
            assert (found[num_stages].period_ns if num_stages in found else float("inf")) == least
        for division in found.values():
            stages = make_core_stages(costs, division)
            used = [name for stage in stages for name in stage.replicas[0]]
            assert len(used) == len(set(used))
            assert all(len({name[:2] for name in stage.replicas[0]}) == 1 for stage in stages)


@pytest.mark.slow
def test_plans_verify_and_uneven_widths_are_never_worse():
    """Tests that on every graph both plans pass the verifier, and that free widths are no worse than one for all."""
    gains = []
    for _, problem in host_problems():
        costs = CostModel(problem)
        even, uneven = make_even_cores_plan(costs), make_uneven_cores_plan(costs)
        assert verify(problem, even).violations == verify(problem, uneven).violations == ()
        assert len({len(stage.replicas[0]) for stage in even.stages}) == 1
        times = [simulate(problem, plan).makespan_ns for plan in (even, uneven)]
        gains.append(times[1] / times[0])
    assert max(gains) <= 1
    assert min(gains) < 0.95


def test_cores_of_a_host_are_a_limit():
    """Tests that no host runs stages on more cores than it has, where the sum over hosts would allow more."""
    problem = random_problem(Random(1), hosts=(3, 3), num_layers=6)
    plan = make_uneven_cores_plan(CostModel(problem))
    for host in ("h0", "h1"):
        widths = [len(stage.replicas[0]) for stage in plan.stages if stage.replicas[0][0].startswith(host)]
        assert sum(widths) <= 3


def test_blocks_begin_at_multiples():
    """Tests that widths are seated at multiples of themselves where that is possible, and behind one another if not."""
    assert place_blocks([4, 4, 3, 3, 2], 16) == [0, 12, 6, 9, 4]
    assert place_blocks([3, 2], 5) == [0, 3]


@pytest.mark.slow
def test_joint_planner_decides_widths():
    """Tests that the planner gives three of four cores to a layer three times as dear, and loses by any one width."""
    problem = random_problem(Random(1), hosts=(4,), num_layers=2)
    layers = tuple(
        replace(
            layer,
            costs=tuple(
                LayerCost(device_type="core", width=w, forward_ns=t // w, input_grad_ns=t // w, weight_grad_ns=t // w)
                for w in WIDTHS
            ),
        )
        for layer, t in zip(problem.profile.layers, (600, 200), strict=True)
    )
    problem = replace(problem, profile=replace(problem.profile, layers=layers), num_microbatches=8)
    plan = make_plan(problem, limits=Limits(max_rounds=2))
    assert plan.evidence is not None
    assert verify(problem, plan).passed
    assert [len(stage.replicas[0]) for stage in plan.stages] == [3, 1]
    rows = {row.name: row.makespan_ns for row in plan.evidence.baselines}
    assert plan.evidence.makespan_ns <= (rows["concurrency control"] or 0) < (rows["even widths"] or 0)
    single = replace(problem, options=replace(problem.options, max_width=1))
    alone = make_plan(single, limits=Limits(max_rounds=2))
    assert alone.evidence is not None
    assert alone.evidence.makespan_ns > 1.5 * plan.evidence.makespan_ns
    assert "concurrency control" not in {row.name for row in alone.evidence.baselines}


def test_what_does_not_apply():
    """Tests that without measured widths, or with a given partition, the method says so."""
    problem = random_problem(Random(1), hosts=(3,), num_layers=3)
    narrow = replace(problem, options=replace(problem.options, max_width=1))
    with pytest.raises(DoesNotApplyError, match="several widths"):
        make_uneven_cores_plan(CostModel(narrow))
    given = replace(problem, options=replace(problem.options, partition=(("l0", "l1", "l2"),)))
    with pytest.raises(DoesNotApplyError, match="partition is given"):
        make_uneven_cores_plan(CostModel(given))
