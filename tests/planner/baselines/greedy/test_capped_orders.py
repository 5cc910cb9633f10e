"""Greedy orders under memory: uniform chains reach the schedule bound, memory is kept, no plan is above them."""

import os
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.capped_uniform import TICK_NS, make_uniform
from planner.baselines.applicability import NoRoomError
from planner.baselines.greedy.capped_orders import Rule, best_capped, caps_within, largest_slope, room_for
from planner.baselines.layouts import EVEN, GIVEN, looped, zigzag
from planner.baselines.pipeline import make_pipeline
from planner.baselines.registry import METHODS, make_baselines, make_method_plan, play_baseline
from planner.evidence.certificate import schedule_bound
from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.problem import Options
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.baselines.test_registry import chain_problem
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.hasty import make_plan

CAPPED = next(method for method in METHODS if method.name == "capped greedy")
NUM_RANDOM = int(os.environ.get("PIPEPLAN_CAPPED_PROBLEMS", "6"))
"""Random problems that plans are held against; `make test-long` asks for many."""


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("turns", [1, 2, 4])
def test_uniform_chains_reach_the_schedule_bound(devices: int, turns: int):
    """Tests that with F = I = W the greedy order is optimal for every number of activations that fit."""
    for room in range(1, devices + 1):
        problem = make_uniform(devices, num_microbatches=turns * devices, room=room)
        costs = CostModel(problem)
        plan = make_method_plan(costs, CAPPED, cut=GIVEN)
        timeline = simulate(problem, plan, costs=costs)
        assert verify(problem, plan).passed
        assert timeline.makespan_ns == schedule_bound(problem, plan.stages, costs=costs)


def test_known_figure():
    """Tests that 8 devices with room for 4 of 16 microbatches take 71 steps."""
    problem = make_uniform(8, num_microbatches=16, room=4)
    plan = make_method_plan(CostModel(problem), CAPPED, cut=GIVEN)
    assert simulate(problem, plan).makespan_ns == 71 * TICK_NS


@given(rng=st.randoms(use_true_random=False))
def test_memory_is_kept(rng: Random):
    """Tests that every plan of the capped family passes all rules on uneven chains in any memory, or does not exist."""
    for baseline, problem in capped_baselines(rng):
        if baseline.plan is not None:
            assert verify(problem, baseline.plan).passed, baseline.name
        else:
            assert baseline.note


def capped_baselines(rng: Random):
    """The capped family's plans of a random chain."""
    problem = random_chain(rng, max_stages=rng.randint(1, 4))
    return [(each, problem) for each in make_baselines(problem, CostModel(problem)) if each.name.startswith("capped")]


def random_chain(rng: Random, *, max_stages: int):
    """Uneven layers and stashes on a few devices with room for a few microbatches."""
    devices = rng.randint(1, 4)
    times = [tuple(rng.randint(1, 9) for _ in range(3)) for _ in range(rng.randint(devices, 3 * devices))]
    held = rng.randint(1, 9)
    return make_chain(
        times,
        num_devices=devices,
        num_microbatches=rng.randint(1, 8),
        stash=(held, rng.randint(0, held)),
        memory=rng.randint(1, 4) * held * -(-len(times) // devices),
        options=Options(max_stages_per_device=max_stages, max_replicas=1, receive_buffers=0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_RANDOM))
def test_plans_are_never_above_the_capped_orders(seed: int):
    """Tests that what the planner returns is at least as good as every capped order that fits."""
    problem = random_chain(Random(seed), max_stages=2)
    costs = CostModel(problem)
    reached = [
        row.makespan_ns
        for each in make_baselines(problem, costs)
        if each.name.startswith("capped")
        for row in [play_baseline(problem, each, costs=costs)[0]]
        if row.fits_memory and row.makespan_ns is not None
    ]
    if reached:
        plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
        assert plan.evidence is not None
        assert plan.evidence.makespan_ns <= min(reached)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_any_number_of_chunks(chunks: int):
    """Tests that every chunked method is played with as many chunks as the layers allow, in its own placement."""
    problem = chain_problem(num_layers=4 * chunks, options=Options(max_stages_per_device=chunks))
    plans = {each.name: each.plan for each in make_baselines(problem, CostModel(problem))}
    suffix = "" if chunks == 2 else f" x {chunks}"
    for method, placement in (("interleaved 1F1B", looped), ("capped loop", looped), ("capped V", zigzag)):
        plan = plans[f"{method}{suffix} (even layers)"]
        assert plan is not None
        seats = [f"d{number}" for number in placement(chunks).devices_of(4)]
        assert [stage.replicas[0][0] for stage in plan.stages] == seats


def test_caps_respect_memory():
    """Tests that caps fall along the pipeline, count one microbatch of the other chunk, and shrink until they fit."""
    problem = chain_problem(num_layers=8, options=Options(max_stages_per_device=2))
    costs = CostModel(problem)
    loop = next(method for method in METHODS if method.name == "capped loop")
    pipeline = make_pipeline(costs, make_method_plan(costs, loop, cut=EVEN).stages)
    assert caps_within(pipeline, 1, denominator=1) == (8, 7, 6, 5, 4, 3, 2, 1)
    assert min(room_for(pipeline)) > 1
    assert largest_slope(pipeline) >= 24


def test_no_room_is_no_order():
    """Tests that a rule ends without an order where a single microbatch does not fit."""
    problem = make_uniform(2, num_microbatches=2, room=1)
    costs = CostModel(problem)
    stages = make_method_plan(costs, CAPPED, cut=EVEN).stages
    pipeline = make_pipeline(costs, stages)
    tight = replace(pipeline, devices=tuple(row._replace(memory=1) for row in pipeline.devices))
    with pytest.raises(NoRoomError):
        best_capped(tight, [Rule(caps=(1, 1))])
