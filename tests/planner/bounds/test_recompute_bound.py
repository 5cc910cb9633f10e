"""What has to be recomputed for want of memory: never above the best plan, and near it where one device does all."""

from dataclasses import replace
from random import Random

import pytest

from planner.actions import Action
from planner.bounds.minimum_costs import Least
from planner.bounds.recompute_bound import PricedRecomputation, applies_to
from planner.bounds.work import find_weights
from planner.evidence.certificate import check_certificate, make_bound, prove_infeasible
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.verify import verify
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.hasty import make_plan
from tests.strategies import random_chain, tiny_problem


def recomputing_problem(rng: Random) -> Problem:
    """A graph or a chain of any kind that may recompute, with little memory."""
    problem = tiny_problem(rng) if rng.random() < 0.5 else random_chain(rng, sizes=(4, 2, 2), tight=True)
    layers = tuple(
        replace(
            layer, stash_bytes=(stash := layer.stash_bytes + rng.randint(0, 20)), workspace_bytes=rng.randint(0, 2),
            weight_stash_bytes=min(layer.weight_stash_bytes, stash), checkpoint_bytes=rng.randint(0, stash // 3),
            costs=tuple(replace(cost, recompute_ns=rng.randint(0, 9)) for cost in layer.costs),
        )
        for layer in problem.profile.layers
    )  # fmt: skip
    least = sum(layer.state_bytes + layer.checkpoint_bytes for layer in layers)
    most = sum(layer.state_bytes + layer.stash_bytes for layer in layers) + 2
    devices = tuple(
        replace(device, memory_bytes=max(1, rng.randint(least, most) // rng.choice([1, len(problem.cluster.devices)])))
        for device in problem.cluster.devices[: rng.randint(1, 2)]
    )
    names = {device.name for device in devices}
    links = tuple(link for link in problem.cluster.links if {link.a, link.b} <= names)
    options = replace(
        problem.options, recompute=True, objective="makespan", receive_buffers=0, recompute_in_turn=rng.random() < 0.7,
        max_stages_per_device=rng.randint(1, 3), max_replicas=min(problem.options.max_replicas or 2, len(devices)),
    )  # fmt: skip
    return replace(
        problem,
        profile=replace(problem.profile, layers=layers),
        cluster=replace(problem.cluster, devices=devices, links=links),
        options=options,
    )


@pytest.mark.slow
def test_no_plan_is_below_it():
    """Tests that at any weights and price no plan of brute force is faster, that none is better than the one found,
    and that it is above the work bound in some.
    """
    num_problems = num_raised = 0
    for seed in range(shortened(120, whole=4_000)):
        rng = Random(seed)
        problem = recomputing_problem(rng)
        costs = CostModel(problem)
        least = Least(problem, costs)
        if not applies_to(least):
            continue
        best = brute_force(problem)
        if best is None:
            continue
        num_problems += 1
        weights = find_weights(least)
        turning = PricedRecomputation(least, weights)
        found = turning.value(turning.find_price())
        for _ in range(4):
            price = rng.choice([0, rng.randint(0, 1 << 12), rng.randint(0, 1 << 22), rng.randint(0, 1 << 34)])
            assert turning.value(price) <= found, f"seed {seed}"
            made_up = {name: rng.randint(1, 1 << 20) for name in weights}
            assert PricedRecomputation(least, made_up).value(price) <= best, f"seed {seed}"
        assert found + problem.profile.optimizer_ns <= best, f"seed {seed}"
        num_raised += found > turning.value(0)
    assert num_problems > shortened(30, whole=1_000)
    assert num_raised > shortened(3, whole=100)


def crossing_problem(rng: Random) -> Problem:
    """Two or three layers on two devices, two replicas and two stages on each, with next to no state and memory."""
    times = [(rng.randint(1, 4), rng.randint(1, 4), rng.randint(0, 3)) for _ in range(rng.randint(2, 3))]
    stash, checkpoint = rng.randint(2, 12), rng.randint(0, 4)
    problem = make_chain(
        times, num_devices=2, num_microbatches=1, memory=rng.randint(stash // 2, 3 * stash), stash=(stash, 0),
        state=rng.choice([0, 0, 1, 4]), options=Options(
            receive_buffers=0, max_replicas=2, max_stages_per_device=rng.randint(1, 2), recompute=rng.random() < 0.5,
        ),
    )  # fmt: skip
    options = replace(problem.options, recompute_in_turn=problem.options.recompute and rng.random() < 0.7)
    layers = tuple(
        replace(layer, checkpoint_bytes=min(checkpoint, stash), costs=tuple(
            replace(cost, recompute_ns=rng.randint(0, 9)) for cost in layer.costs
        ))
        for layer in problem.profile.layers
    )  # fmt: skip
    return replace(problem, profile=replace(problem.profile, layers=layers), options=options)


@pytest.mark.slow
def test_replicas_of_two_stages_may_cross():
    """Tests that no plan is said not to fit, and none is below the bound, where the replicas of a device take other
    samples of one stage than of the next: their parts come one after the other.
    """
    num_fitting = num_not = 0
    for seed in range(shortened(150, whole=2_000)):
        problem = crossing_problem(Random(seed))
        costs, best = CostModel(problem), brute_force(problem)
        reason = prove_infeasible(problem, costs)
        assert best is None or reason is None, f"seed {seed}: {reason}"
        num_not += reason is not None
        if best is None:
            continue
        num_fitting += 1
        assert make_bound(problem, costs).value_ns <= best, f"seed {seed}"
    assert num_fitting > shortened(60, whole=900)
    assert num_not > shortened(10, whole=150)


def test_half_a_microbatch_at_a_time_fits():
    """Tests that a plan is not denied which holds half of a microbatch at a time, in one of two stages per device."""
    problem = make_chain(
        [(4, 3, 2), (4, 3, 2)], num_devices=2, num_microbatches=1, memory=5, stash=(10, 0),
        options=Options(receive_buffers=0, max_stages_per_device=2, max_replicas=2),
    )  # fmt: skip
    assert prove_infeasible(problem, CostModel(problem)) is None
    stages = (
        Stage(layers=("l0",), replicas=(("d0",), ("d1",))),
        Stage(layers=("l1",), replicas=(("d1",), ("d0",))),
    )
    first, second = ([Action("F", n, 0), Action("B", n, 0)] for n in range(2))
    schedule = {"d0": (*first, *second), "d1": (*second, *first)}
    assert verify(problem, Plan(problem=problem.reference(), stages=stages, schedule=schedule)).passed
    alone = replace(problem, options=replace(problem.options, max_stages_per_device=1))
    assert prove_infeasible(alone, CostModel(alone)) is not None


def on_one_device(*, memory: int) -> Problem:
    """Twelve layers of 30 ns, three microbatches; of 10 bytes each all but one can be had again in 15 ns."""
    problem = make_chain(
        [(10, 10, 10)] * 12, num_devices=1, num_microbatches=3, memory=memory, stash=(10, 0),
        options=Options(receive_buffers=0, recompute=True, recompute_layers=True, max_stages_per_device=12),
    )  # fmt: skip
    layers = tuple(
        replace(layer, checkpoint_bytes=1, costs=tuple(replace(cost, recompute_ns=15) for cost in layer.costs))
        for layer in problem.profile.layers
    )
    return replace(problem, profile=replace(problem.profile, layers=layers))


def test_one_device_recomputes_what_does_not_fit():
    """Tests that a plan on one device is proved to be optimal where 5 of 12 layers, or 45 of 120 bytes, are too much.

    Each takes 15 ns more for each of three microbatches. With another byte free no more than a ninth of it is.
    """
    problem = on_one_device(memory=75)
    plan = make_plan(problem, limits=Limits(max_rounds=4))
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns == plan.evidence.lower_bound_ns == 12 * 3 * 30 + 5 * 3 * 15
    assert plan.evidence.bound_kind == "recomputation"
    bound = make_bound(on_one_device(memory=76), CostModel(on_one_device(memory=76)))
    assert bound.value_ns == plan.evidence.lower_bound_ns - 3 * 15 // 9


def test_what_it_does_not_hold_for_is_refused():
    """Tests that nothing is proved where nothing may be recomputed, or by a price that is none."""
    problem = on_one_device(memory=75)
    certificate = make_bound(problem, CostModel(problem)).certificate
    assert check_certificate(problem, certificate) == certificate["value_ns"]
    for price in (-1, 1.0, True, None, "1", 1 << 60, 2 * certificate["memory_price"]):
        with pytest.raises(ValueError, match="certificate: "):
            check_certificate(problem, certificate | {"memory_price": price})
    with pytest.raises(ValueError, match="weights"):
        check_certificate(problem, certificate | {"weights": {"gpu": 0}})
    without = replace(problem, options=replace(problem.options, recompute=False, recompute_layers=False))
    with pytest.raises(ValueError, match="does not hold"):
        check_certificate(without, certificate)
