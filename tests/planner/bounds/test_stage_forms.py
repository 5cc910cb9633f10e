"""Bounds that tell stages of several widths, and stages that recompute, from others."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.batch_problem import question_of_workload
from planner.bounds import pipeline_bound, work
from planner.bounds.bisection import largest_refuted
from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Least
from planner.bounds.stage_forms import stage_forms
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from planner.lowering import make_schedule_instance
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.load import load_workload
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from solver_models.recomputation.cp_sat_recomputation import solve_orders
from solver_models.recomputation.microbatch_recomputation import MicrobatchRecomputation
from solver_models.schedule.effort import SolveEffort
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force, every_mapping
from tests.planner.layer_kinds import with_kinds
from tests.strategies import random_layer, random_links


def two_equal_layers(*, memory: int) -> Problem:
    """On two devices, four microbatches: F, I, W and the recomputation 10 each; a stash of 10, a checkpoint of 2."""
    cost = LayerCost(device_type="gpu", forward_ns=10, input_grad_ns=10, weight_grad_ns=10, recompute_ns=10)
    layers = tuple(
        Layer(name=name, costs=(cost,), parameter_bytes=1, state_bytes=0, stash_bytes=10, checkpoint_bytes=2)
        for name in ("l0", "l1")
    )
    devices = tuple(Device(name=name, type="gpu", memory_bytes=memory) for name in ("d0", "d1"))
    return Problem(
        profile=ModelProfile(
            name="two", layers=layers, edges=(Edge(producer="l0", consumer="l1", bytes=0),), microbatch_size=1
        ),
        cluster=Cluster(name="two", devices=devices, links=(Link(a="d0", b="d1", bandwidth_bytes_per_s=10**9),)),
        num_microbatches=4,
        options=Options(max_stages_per_device=1, max_replicas=1, recompute=True, receive_buffers=0),
    )


def test_a_stage_that_keeps_its_stash_or_recomputes():
    """Tests that the bound is the optimum where a second microbatch fits only if the first stage recomputes."""
    problem = two_equal_layers(memory=19)
    bound = make_bound(problem, CostModel(problem))
    assert (bound.kind, bound.value_ns) == ("pipeline", 160)
    assert check_certificate(problem, bound.certificate) == brute_force(problem) == 160
    roomy = two_equal_layers(memory=20)
    assert make_bound(roomy, CostModel(roomy)).value_ns == brute_force(roomy) == 130


def test_no_forms_where_nothing_tells_stages_apart():
    """Tests that there is a form of each width and kind, of 0, 1, 2, 3 and all of four microbatches that recompute, and
    of 1, of 2 or 3, and of more microbatches that fit where layers choose; none where both do, or parts decide alone.
    """
    problem = two_equal_layers(memory=19)

    def count(**options: bool) -> int:
        asked = replace(problem, options=replace(problem.options, **options))
        least = Least(asked, CostModel(asked))
        return len(stage_forms(Trunk(least), dict.fromkeys(least.types, 1)))

    assert (count(), count(recompute=False), count(split_placement=True)) == (2, 0, 0)
    assert (count(recompute_microbatches=True), count(recompute_layers=True)) == (5, 3)
    assert count(recompute_microbatches=True, recompute_layers=True) == 0


@pytest.mark.parametrize(("option", "value"), [("recompute_layers", 160), ("recompute_microbatches", 140)])
def test_single_layers_and_microbatches_recompute(option: str, value: int):
    """Tests that where only one microbatch fits that keeps its stash, what else may recompute has its price."""
    problem = two_equal_layers(memory=19)
    problem = replace(problem, options=replace(problem.options, **{option: True}))
    bound = make_bound(problem, CostModel(problem))
    assert (bound.kind, bound.value_ns) == ("pipeline", value)
    assert check_certificate(problem, bound.certificate) == value


def random_forms(rng: Random) -> Problem:
    """A chain on two or three devices, which may be shared by pairs, where memory often asks for recomputation."""
    num_devices, size = rng.randint(2, 3), rng.choice([1, 1, 2])
    types, widths = ("fast", "slow")[: rng.choice([1, 1, 2])], rng.choice([(1,), (1, 2), (1, 2)])
    names = [f"l{number}" for number in range(rng.randint(1, 6 - num_devices))]
    layers = tuple(random_layer(rng, name, types=types, widths=widths, size=size) for name in names)
    needed = sum(layer.state_bytes + 2 * layer.stash_bytes for layer in layers)
    devices = tuple(
        Device(name=f"d{number}", type=rng.choice(types), memory_bytes=rng.randint(max(1, needed // 4), needed + 1))
        for number in range(num_devices)
    )
    edges = tuple(Edge(producer=a, consumer=b, bytes=rng.randint(0, 8)) for a, b in pairwise(names))
    return Problem(
        profile=ModelProfile(name="chain", layers=layers, edges=edges, microbatch_size=size),
        cluster=Cluster(name="few", devices=devices, links=random_links(rng, [device.name for device in devices])),
        num_microbatches=rng.randint(1, 5 - num_devices),
        options=Options(
            max_stages_per_device=rng.randint(1, 2) if num_devices == 2 else 1,
            max_replicas=rng.choice([1, None]),
            max_width=max(widths),
            recompute=rng.random() < 0.7,
            receive_buffers=rng.randint(0, 1),
        ),
    )


def best_by_microbatch(problem: Problem) -> int | None:
    """The least makespan where each microbatch of a stage recomputes or not, by CP-SAT; transfers take no time."""
    costs, ends = CostModel(problem), list[int]()
    for stages in every_mapping(problem):
        if all(stage.recompute for stage in stages):
            kept = tuple(replace(stage, recompute=False) for stage in stages)
            orders = MicrobatchRecomputation(
                make_schedule_instance(problem, kept, costs=costs), make_schedule_instance(problem, stages, costs=costs)
            )
            starts = [each for own in (orders.greedy(), orders.alternating(1.0)) for each in own]
            if starts:
                start = min(starts, key=lambda each: each.end)
                found, is_closed = solve_orders(orders, start, effort=SolveEffort(time_limit_s=60, seed=1))
                assert is_closed
                ends.append(found.end)
    return min(ends, default=None)


def with_choices(rng: Random, problem: Problem) -> Problem:
    """The problem where each layer recomputes or not, or each microbatch, then without transfers and replicas."""
    if rng.random() < 0.5:
        return with_kinds(rng, problem)
    edges = tuple(replace(edge, bytes=0) for edge in problem.profile.edges)
    links = tuple(replace(link, latency_ns=0, message_overhead_ns=None) for link in problem.cluster.links)
    options = replace(problem.options, recompute=True, recompute_microbatches=True, max_replicas=1, max_width=1)
    return replace(
        problem, profile=replace(problem.profile, edges=edges), cluster=replace(problem.cluster, links=links),
        options=options,
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=shortened(25, whole=400), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_brute_force_is_not_below_it(rng):
    """Tests that the best of all plans is never out of reach, with widths, replicas, two chunks, and recomputation of
    stages, layers or microbatches.
    """
    problem = random_forms(rng)
    problem = with_choices(rng, problem) if rng.random() < 0.5 else problem
    best = best_by_microbatch(problem) if problem.options.recompute_microbatches else brute_force(problem)
    if best is not None:
        least = Least(problem, CostModel(problem))
        trunk = Trunk(least)
        for weights in (work.find_weights(least), None):
            price = pipeline_bound.make_price(least, best, weights=weights)
            for forms in pipeline_bound.every_forms(trunk, price):
                division = pipeline_bound.DivisionProgramme(trunk, best, price=price, forms=forms)
                assert division.is_exact
                assert not division.is_out_of_reach()


def test_forms_lose_nothing():
    """Tests that where stages may recompute the bound is not below what loads of devices say, and forms do not."""
    options = Options(recompute=True, max_replicas=1, max_stages_per_device=2)
    problem = question_of_workload(load_workload("demo:lora-13b-estimate"), options)
    assert isinstance(problem, Problem)
    least = Least(problem, CostModel(problem))
    trunk, price = Trunk(least), pipeline_bound.make_price(least, 1, weights=work.find_weights(least))

    def is_out(deadline: int, **forms: Any) -> bool:
        return pipeline_bound.DivisionProgramme(trunk, deadline, price=price, **forms).is_out_of_reach()

    by_loads = largest_refuted(is_out, 1, steps=40)
    assert not is_out(by_loads - 1, forms=stage_forms(trunk, price.weights))
    assert pipeline_bound.raise_bound(trunk, 1, price=price, steps=40) >= by_loads
