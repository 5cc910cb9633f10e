"""Tests of planner/bounds/device_packing/boundaries.py."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from profiles.model_profile import Edge
from solver_models.covering import Covering
from tests.long_runs import shortened
from tests.planner.bounds.device_packing.test_packing_bound import heavy, unlike
from tests.planner.bounds.test_stage_forms import random_forms, two_equal_layers
from tests.planner.brute_force import brute_force
from tests.planner.layer_kinds import with_kinds


def test_five_kinds_of_devices_are_four_at_most():
    """Tests that devices of many speeds are taken together by speed, every one in one kind."""
    kinds = Boundaries(Least(unlike(5, 1, 4, 2, 3), CostModel(unlike(5, 1, 4, 2, 3)))).kinds
    assert [[name for name, _ in kind.members] for kind in kinds] == [["slow1", "slow2"], ["slow3", "slow4"], ["slow5"]]
    assert [kind.count for kind in kinds] == [2, 2, 1]


@pytest.mark.parametrize(("room", "is_scarce"), [(0, False), (-1, True)])
def test_memory_is_scarce_where_not_all_layers_may_have_half_the_replicas(room, is_scarce):
    """Tests that memory is scarce by one byte less than half as many replicas take, and not where none are allowed."""
    problem = heavy(4, 3)
    layers = tuple(replace(layer, state_bytes=30) for layer in problem.profile.layers)
    needed = problem.max_replicas * 30 * len(layers)
    devices = tuple(replace(each, memory_bytes=needed // 6 + room) for each in problem.cluster.devices)
    profile, cluster = replace(problem.profile, layers=layers), replace(problem.cluster, devices=devices)
    problem = replace(problem, profile=profile, cluster=cluster)
    assert problem.max_replicas == 3
    assert Boundaries(Least(problem, CostModel(problem))).is_scarce == is_scarce
    alone = replace(problem, options=replace(problem.options, max_replicas=1))
    assert not Boundaries(Least(alone, CostModel(alone))).is_scarce


def test_shares_of_a_microbatch():
    """Tests that three replicas that feed two give the middle one's samples to both, and the others' to one."""
    received, given = Boundaries(Least(heavy(4, 3), CostModel(heavy(4, 3)))).shares
    assert (received[3][2], given[3][2]) == (2, 1)
    assert (received[1][3], given[1][3]) == (1, 1)
    assert (received[2][2], given[2][2]) == (2, 2)


@pytest.mark.parametrize(("memory", "optimum"), [(28, 130), (40, 120)])
def test_stages_that_recompute_are_loads_of_their_own(memory, optimum):
    """Tests that the bound is the optimum of three layers on two devices, where a stage has to recompute."""
    problem = two_equal_layers(memory=memory)
    layers = tuple(replace(problem.profile.layers[0], name=name) for name in ("l0", "l1", "l2"))
    edges = tuple(Edge(producer=a, consumer=b, bytes=0) for a, b in (("l0", "l1"), ("l1", "l2")))
    problem = replace(
        problem,
        profile=replace(problem.profile, layers=layers, edges=edges),
        num_microbatches=2,
        options=replace(problem.options, max_stages_per_device=2),
    )
    bound = make_bound(problem, CostModel(problem), make_covering=Covering)
    assert check_certificate(problem, bound.certificate) == bound.value_ns == optimum == brute_force(problem)


@pytest.mark.parametrize(("seed", "optimum"), [("two12", 7), ("two23", 16), ("layers31", 39)])
def test_widths_and_single_layers_that_recompute(seed, optimum):
    """Tests that the bound is the optimum of chains where memory asks for wide stages, or recomputation of layers."""
    rng = Random(seed)
    problem = random_forms(rng)
    if seed.startswith("two"):
        recompute = rng.random() < 0.7
        problem = replace(problem, options=replace(problem.options, max_stages_per_device=2, recompute=recompute))
        assert Least(problem, CostModel(problem)).widths == (1, 2)
    else:
        problem = with_kinds(rng, problem)
    bound = make_bound(problem, CostModel(problem), make_covering=Covering)
    assert bound.kind == "packing"
    assert check_certificate(problem, bound.certificate) == bound.value_ns == optimum == brute_force(problem)


@pytest.mark.slow
@settings(max_examples=shortened(15, whole=300), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_brute_force_is_not_below_it_where_stages_have_forms(rng):
    """Tests that the best of all plans is not below the bound, with widths, and layers that recompute or do not."""
    problem = with_kinds(rng, random_forms(rng))
    best = brute_force(problem)
    if best is not None:
        bound = make_bound(problem, CostModel(problem), make_covering=Covering)
        assert check_certificate(problem, bound.certificate) == bound.value_ns <= best


@pytest.mark.slow
@settings(max_examples=shortened(15, whole=300), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_brute_force_is_not_below_it_where_stages_recompute(rng):
    """Tests that the best of all plans is not below the bound, alone or two on a device, with replicas or without."""
    problem = random_forms(rng)
    problem = replace(problem, options=replace(problem.options, max_width=1, recompute=True))
    best = brute_force(problem)
    if best is not None:
        bound = make_bound(problem, CostModel(problem), make_covering=Covering)
        assert check_certificate(problem, bound.certificate) == bound.value_ns <= best
