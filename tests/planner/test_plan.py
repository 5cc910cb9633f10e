"""What must not matter does not, and what can only help does: at the level of whole plans.

Everything here is deterministic: the same seed and the same rounds give the same search.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from planner.actions import Action
from planner.evidence.certificate import make_bound
from planner.layout.costs import CostModel
from planner.plan import Evidence, Plan
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from profiles.cluster import Device, Link
from tests.planner.builders import make_layer, make_link, make_problem, with_times
from tests.planner.hasty import make_plan

pytestmark = pytest.mark.slow

LIMITS = Limits(time_limit_s=60, max_rounds=2)


def make_row(**fields: object) -> Problem:
    """Seven unequal layers on three devices in a row; memory binds."""
    layers = [
        make_layer(
            f"l{i}", (30 + 7 * i % 20, 40 + i, 20 + 3 * i), state_bytes=50, stash_bytes=30, weight_stash_bytes=10
        )
        for i in range(7)
    ]
    links = [make_link(f"d{a} d{b}", latency=1) for a, b in pairwise(range(3))]
    return make_problem(layers, links, edge_bytes=4, **({"num_microbatches": 5, "memory_bytes": 400} | fields))


def evidence_of(plan: Plan) -> Evidence:
    assert plan.evidence is not None
    return plan.evidence


@pytest.fixture(scope="module")
def planned() -> tuple[Problem, Plan]:
    problem = make_row()
    return problem, make_plan(problem, limits=LIMITS)


def scale_times(problem: Problem, factor: int) -> Problem:
    """Every time times `factor`: costs, latencies, bytes over bandwidth (the latter divided)."""
    assert all(link.bandwidth_bytes_per_s % factor == 0 for link in problem.cluster.links)
    links = tuple(
        replace(
            link,
            latency_ns=factor * link.latency_ns,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s // factor,
        )
        for link in problem.cluster.links
    )
    return replace(
        problem,
        profile=replace(problem.profile, layers=tuple(with_times(layer, factor) for layer in problem.profile.layers)),
        cluster=replace(problem.cluster, links=links),
    )


def test_scaled_times(planned: tuple[Problem, Plan]):
    """Tests that with all times ten times as long, the same plan takes ten times as long, and so does its bound."""
    problem, plan = planned
    scaled = scale_times(problem, 10)
    moved = replace(plan, problem=scaled.reference(), evidence=None)
    verdict = verify(scaled, moved)
    assert verdict.passed
    assert verdict.timeline is not None
    rounding = len(plan.stages) * len(problem.profile.edges) * 10 * problem.num_microbatches
    assert abs(verdict.timeline.makespan_ns - 10 * evidence_of(plan).makespan_ns) <= rounding
    bounds = [make_bound(each, CostModel(each)).value_ns for each in (problem, scaled)]
    assert 10 * (bounds[0] - len(problem.profile.layers)) <= bounds[1] <= 10 * (bounds[0] + len(problem.profile.layers))
    again = make_plan(scaled, limits=LIMITS, start=plan)
    assert evidence_of(again).makespan_ns <= verdict.timeline.makespan_ns


def rename(problem: Problem) -> Problem:
    """Other names for layers and devices, in the same order."""
    layers = {layer.name: f"x{number:03}" for number, layer in enumerate(problem.profile.layers)}
    devices = {device.name: f"y{9 - number}" for number, device in enumerate(problem.cluster.devices)}
    profile = replace(
        problem.profile,
        layers=tuple(replace(layer, name=layers[layer.name]) for layer in problem.profile.layers),
        edges=tuple(
            replace(edge, producer=layers[edge.producer], consumer=layers[edge.consumer])
            for edge in problem.profile.edges
        ),
    )
    cluster = replace(
        problem.cluster,
        devices=tuple(replace(device, name=devices[device.name]) for device in problem.cluster.devices),
        links=tuple(replace(link, a=devices[link.a], b=devices[link.b]) for link in problem.cluster.links),
    )
    return replace(problem, profile=profile, cluster=cluster)


def shape(problem: Problem, plan: Plan) -> object:
    """The plan with numbers for names."""
    layers = {layer.name: number for number, layer in enumerate(problem.profile.layers)}
    devices = {device.name: number for number, device in enumerate(problem.cluster.devices)}
    stages = [
        ([layers[name] for name in stage.layers], [[devices[name] for name in group] for group in stage.replicas])
        for stage in plan.stages
    ]
    words: dict[int, tuple[Action, ...]] = {devices[name]: word for name, word in plan.schedule.items()}
    return stages, words


def test_names_do_not_matter(planned: tuple[Problem, Plan]):
    """Tests that other names for layers and devices give the same plan, the same figures and the same bound."""
    problem, plan = planned
    renamed = rename(problem)
    other = make_plan(renamed, limits=LIMITS)
    assert shape(renamed, other) == shape(problem, plan)
    ours, theirs = evidence_of(plan), evidence_of(other)
    assert (ours.makespan_ns, ours.lower_bound_ns, ours.bound_kind, ours.gap) == (
        theirs.makespan_ns,
        theirs.lower_bound_ns,
        theirs.bound_kind,
        theirs.gap,
    )


def test_more_memory_never_hurts(planned: tuple[Problem, Plan]):
    """Tests that from the old plan on, more memory gives no slower one, and no larger bound."""
    problem, plan = planned
    devices = tuple(replace(device, memory_bytes=2 * device.memory_bytes) for device in problem.cluster.devices)
    roomier = replace(problem, cluster=replace(problem.cluster, devices=devices))
    better = evidence_of(make_plan(roomier, limits=LIMITS, start=plan))
    assert better.makespan_ns <= evidence_of(plan).makespan_ns
    assert better.lower_bound_ns <= evidence_of(plan).makespan_ns


def test_an_idle_device_never_hurts(planned: tuple[Problem, Plan]):
    """Tests that from the old plan on, a device more that may stay idle gives no slower one; nor does a faster link."""
    problem, plan = planned
    last = problem.cluster.devices[-1]
    spare = Device(name="spare", type=last.type, memory_bytes=last.memory_bytes)
    link = Link(a=last.name, b="spare", bandwidth_bytes_per_s=10**9)
    cluster = problem.cluster
    grown = replace(problem, cluster=replace(cluster, devices=(*cluster.devices, spare), links=(*cluster.links, link)))
    faster = tuple(replace(each, bandwidth_bytes_per_s=2 * each.bandwidth_bytes_per_s) for each in cluster.links)
    for other in (grown, replace(problem, cluster=replace(cluster, links=faster))):
        again = make_plan(other, limits=LIMITS, start=plan)
        assert verify(other, again).passed
        assert evidence_of(again).makespan_ns <= evidence_of(plan).makespan_ns


def test_the_same_again(planned: tuple[Problem, Plan]):
    """Tests that the same question, seed and rounds give the same plan; another seed keeps every promise.

    How far a bound climbs depends on the plan that is known.
    """
    problem, plan = planned
    again = make_plan(problem, limits=LIMITS)
    assert (again.stages, again.schedule) == (plan.stages, plan.schedule)
    other = evidence_of(make_plan(problem, limits=replace(LIMITS, seed=7), start=plan))
    assert max(other.lower_bound_ns, evidence_of(plan).lower_bound_ns) <= other.makespan_ns
    assert other.makespan_ns <= evidence_of(plan).makespan_ns
