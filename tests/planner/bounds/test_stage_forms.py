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
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.load import load_workload
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
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
    """Tests that there is a form of each width and kind, and none where layers or parts decide alone."""
    problem = two_equal_layers(memory=19)

    def count(**options: bool) -> int:
        asked = replace(problem, options=replace(problem.options, **options))
        least = Least(asked, CostModel(asked))
        return len(stage_forms(Trunk(least), dict.fromkeys(least.types, 1)))

    assert (count(), count(recompute=False), count(recompute_layers=True), count(split_placement=True)) == (2, 0, 0, 0)


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


@pytest.mark.slow
@settings(max_examples=shortened(25, whole=400), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_brute_force_is_not_below_it(rng):
    """Tests that the best of all plans is never out of reach, with widths, recomputation, replicas and two chunks."""
    problem = random_forms(rng)
    best = brute_force(problem)
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
