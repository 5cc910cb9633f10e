"""W, and halves of I, on other devices: as decisions of the planner, and as the compiled search sees them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.convnets import NETWORKS, Shape
from planner.layout.costs import CostModel
from planner.lowering import make_instance, make_split_plan
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from solver_models.local_search.search import Searcher
from solver_models.local_search.split_placement_search import SplitCandidate, SplitSearcher
from solver_models.starts.first_candidates import make_seeds
from tests.long_runs import long_only
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan

pytestmark = pytest.mark.slow

MICROBATCHES, SAMPLES, MACS_PER_NS, BANDWIDTH = 8, 4, 7_000, 12_000_000_000


def make_network_problem(shapes: list[Shape], num_devices: int) -> Problem:
    """A chain of a network's layers (shortcuts left out), fp32, on devices joined pair by pair."""
    layers = tuple(_network_layer(shape, is_first=not number) for number, shape in enumerate(shapes))
    edges = tuple(
        Edge(producer=a.name, consumer=b.name, bytes=4 * SAMPLES * min(a.outputs, b.inputs))
        for a, b in pairwise(shapes)
    )
    devices = tuple(Device(name=f"d{number}", type="estimate", memory_bytes=2**40) for number in range(num_devices))
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=BANDWIDTH, latency_ns=5_000)
        for number, a in enumerate(devices)
        for b in devices[number + 1 :]
    )
    return Problem(
        profile=ModelProfile(
            name="layers of a network", layers=layers, edges=edges, microbatch_size=SAMPLES, provenance="from shapes"
        ),
        cluster=Cluster(name="full mesh", devices=devices, links=links),
        num_microbatches=MICROBATCHES,
        options=Options(split_placement=True, max_stages_per_device=len(layers), max_replicas=1),
    )


def _network_layer(shape: Shape, *, is_first: bool) -> Layer:
    time = -(-SAMPLES * shape.macs // MACS_PER_NS)
    stash = 4 * SAMPLES * (shape.inputs + shape.outputs)
    return Layer(
        name=shape.name,
        costs=(
            LayerCost(
                device_type="estimate",
                forward_ns=time,
                input_grad_ns=0 if is_first else time,
                weight_grad_ns=time,
            ),
        ),
        parameter_bytes=4 * shape.weights,
        state_bytes=16 * shape.weights,
        stash_bytes=stash,
        weight_stash_bytes=stash,
    )


def one_layer(times: tuple[int, int, int], **options: object) -> Problem:
    """A layer with little to send, two devices, eight microbatches, no replicas."""
    layer = make_layer("x", times, stash_bytes=1, weight_stash_bytes=1)
    return make_problem(
        [layer], [make_link("a b")], num_microbatches=8, split_placement=True, max_replicas=1, **options
    )


def makespan_ns(problem: Problem, *, rounds: int = 2) -> int:
    """What the planner comes to; the plan verifies."""
    plan = make_plan(problem, limits=Limits(max_rounds=rounds, time_limit_s=120))
    assert plan.evidence is not None
    assert verify(problem, plan).passed
    return plan.evidence.makespan_ns


def forbidden(problem: Problem) -> Problem:
    return replace(problem, options=replace(problem.options, split_placement=False))


def test_weight_gradient_goes_elsewhere():
    """Tests that W of a single layer goes to the idle device, which halves the time; without the option it stays."""
    problem = one_layer((10, 10, 20))
    plan = make_plan(problem, limits=Limits(max_rounds=2, time_limit_s=120))
    assert len(plan.stages[0].weight_grad_replicas) == 1
    assert makespan_ns(problem) < 200
    assert makespan_ns(forbidden(problem)) == 8 * 40


@long_only
def test_half_of_the_input_gradient_goes_elsewhere():
    """Tests that a long I without a W is cut in two halves on two devices; without the option it stays whole."""
    problem = one_layer((10, 40, 0))
    plan = make_plan(problem, limits=Limits(max_rounds=2, time_limit_s=120))
    assert sorted(share.group for share in plan.stages[0].input_grad_replicas) == [("a",), ("b",)]
    assert makespan_ns(problem) < 300
    assert makespan_ns(forbidden(problem)) == 8 * 50


def test_given_stages_leave_it_open():
    """Tests that where partition and placement are given, W may still go elsewhere."""
    problem = one_layer((10, 10, 20), partition=(("x",),), placement=((("a",),),))
    plan = make_plan(problem, limits=Limits(max_rounds=2, time_limit_s=120))
    assert plan.stages[0].replicas == (("a",),)
    assert [share.group for share in plan.stages[0].weight_grad_replicas] == [("b",)]


def test_what_has_to_travel_far_stays():
    """Tests that W stays at home where its stash takes longer on the link than it takes itself."""
    layer = make_layer("x", (10, 10, 20), stash_bytes=100, weight_stash_bytes=100)
    problem = make_problem(
        [layer], [make_link("a b")], num_microbatches=8, split_placement=True, max_replicas=1, memory_bytes=10**6
    )
    plan = make_plan(problem, limits=Limits(max_rounds=2, time_limit_s=120))
    assert not plan.stages[0].is_split


def test_memory_forbids_it():
    """Tests that W stays at home where the other device has no room for a gradient."""
    problem = one_layer((10, 10, 20), memory_bytes=100)
    layer = replace(problem.profile.layers[0], parameter_bytes=60, state_bytes=60)
    problem = replace(problem, profile=replace(problem.profile, layers=(layer,)))
    devices = tuple(replace(d, memory_bytes=100 if d.name == "a" else 50) for d in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    plan = make_plan(problem, limits=Limits(max_rounds=2, time_limit_s=120))
    assert plan.stages[0].replicas == (("a",),)
    assert not plan.stages[0].is_split


def test_a_network_gains_a_fifth():
    """Tests that VGG11 without replicas takes 0.8 of the time, partition and placement of W and I decided together."""
    problem = make_network_problem(NETWORKS["VGG11"], 8)
    apart, whole = makespan_ns(problem, rounds=1), makespan_ns(forbidden(problem), rounds=1)
    assert apart < 0.8 * whole


def test_layer_pipe_is_a_baseline_then():
    """Tests that LayerPipe stands among the baselines where split placement is allowed, and is never shorter."""
    problem = make_network_problem(NETWORKS["VGG11"][5:], 4)
    plan = make_plan(problem, limits=Limits(max_rounds=1, time_limit_s=120))
    assert plan.evidence is not None
    (row,) = [row for row in plan.evidence.baselines if row.name == "LayerPipe"]
    assert row.makespan_ns is not None
    assert plan.evidence.makespan_ns <= row.makespan_ns


@pytest.mark.parametrize("way", [0, 1])
def test_the_search_plays_what_the_simulator_plays(way: int):
    """Tests that the compiled objective of random placements of W, or of halves of I, is close to the simulator's.

    Weights and finished gradients are small here: the search does not let these queue on the links.
    """
    problem = make_network_problem(NETWORKS["VGG11"], 4)
    layers = tuple(replace(layer, parameter_bytes=4) for layer in problem.profile.layers)
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    searcher = Searcher(make_instance(problem, CostModel(problem)))
    apart, rng = SplitSearcher(searcher), np.random.default_rng(way)
    seeds = [seed for seed in make_seeds(searcher) if all(len(group) == 1 for group in seed.groups)]
    for seed in seeds[:12]:
        preferences = np.full((2, len(seed.stage_of)), -1, np.int64)
        preferences[way] = rng.integers(-1, 4, size=len(seed.stage_of))
        orders = apart.order(SplitCandidate(base=seed, preferences=preferences), iterations=0, temperature=0.0, seed=1)
        assert orders is not None
        plan = make_split_plan(problem, orders)
        assert any(stage.is_split for stage in plan.stages)
        verdict = verify(problem, plan)
        assert verdict.violations == ()
        assert verdict.timeline is not None
        found = verdict.timeline.makespan_ns
        assert found == pytest.approx(orders.objective, rel=0.02)


def test_improved_orders_are_what_they_say():
    """Tests that polishing shortens or keeps a plan, and that the words that come out still verify."""
    problem = make_network_problem(NETWORKS["VGG11"], 4)
    searcher = Searcher(make_instance(problem, CostModel(problem)))
    apart = SplitSearcher(searcher)
    start = min(make_seeds(searcher), key=lambda seed: seed.sort_key)
    found = apart.anneal(apart.begin(start), iterations=300, temperature=(0.03, 0.001), seed=1)
    assert found.base.objective <= start.objective
    plain = apart.order(found, iterations=0, temperature=0.0, seed=1)
    better = apart.order(found, iterations=300, temperature=0.0003, seed=1)
    assert plain is not None
    assert better is not None
    assert better.objective <= plain.objective == found.base.objective
    assert verify(problem, make_split_plan(problem, better)).passed
