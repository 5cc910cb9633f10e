"""The optimizer's steps of layers: who takes them, what plans and bounds make of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound, schedule_bound
from planner.fidelity.calibration import calibrate_profile
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning.complete.complete_question import require_covered
from planner.problem import Problem
from planner.progress import Limits
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Link, MessageTime
from profiles.model_profile import Layer, WidthBytes
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.planner.fidelity.runs import compare, run
from tests.planner.hasty import make_plan as find_plan
from tests.planner.judged import judged
from tests.strategies import random_plan, random_problem, tiny_problem


def stepping(name: str, step: int, times: tuple[int, ...] = (2, 2, 2), **fields: object) -> Layer:
    """A layer of type `gpu` with an optimizer's step."""
    layer = make_layer(name, times, **fields)
    return replace(layer, costs=(replace(layer.costs[0], optimizer_ns=step), *layer.costs[1:]))


def two_stages(*steps: int, optimizer_ns: int = 0) -> tuple[Problem, Plan]:
    """One microbatch through as many layers as there are steps, the last of them on b."""
    layers = [stepping(f"l{number}", step) for number, step in enumerate(steps)]
    problem = make_problem(layers, [make_link("a b")], optimizer_ns=optimizer_ns)
    first = " ".join(layer.name for layer in layers[:-1])
    return problem, make_plan(problem, [f"{first} @ a", f"{layers[-1].name} @ b"], {"a": "0F0 0B0", "b": "1F0 1B0"})


@pytest.mark.parametrize(("steps", "closing"), [((5, 7), 7), ((5, 4, 7), 9), ((0, 3), 3), ((0, 0), 0)])
def test_the_device_with_most_to_step_ends_the_iteration(steps: tuple[int, ...], closing: int):
    """Tests that a device takes the steps of all its layers, all at once, after everything else and the profile's."""
    problem, plan = two_stages(*steps, optimizer_ns=11)
    without, same = two_stages(*(0 for _ in steps))
    before = simulate(without, same).makespan_ns
    assert judged(problem, plan).makespan_ns == before + 11 + closing
    assert verify(problem, plan).violations == ()


def test_every_replica_takes_the_whole_step():
    """Tests that two copies of a model step all of it each, whatever their share of the samples."""
    problem = make_problem([stepping("x", 9, (4, 4, 4))], [make_link("a b")])
    one = make_plan(problem, ["x @ a"], {"a": "0F0 0B0"})
    both = make_plan(problem, ["x @ a | b"], {"a": "0F0 0B0", "b": "0F0 0B0"})
    assert simulate(problem, one).makespan_ns == 12 + 9
    assert simulate(problem, both).makespan_ns == 6 + 1 + 9
    assert verify(problem, both).violations == ()


def test_a_group_steps_in_equal_parts():
    """Tests that each of two devices that share a layer takes half of its step, rounded up."""
    layer = stepping("x", 9, wider=(WidthBytes(width=2, state_bytes=0, stash_bytes=0),))
    layer = replace(layer, costs=(*layer.costs, replace(layer.costs[0], width=2, optimizer_ns=0)))
    problem = make_problem([layer], [make_link("a b")], max_width=2)
    plan = make_plan(problem, ["x @ a+b"], {"a": "0F0 0B0", "b": "0F0 0B0"})
    assert simulate(problem, plan).makespan_ns == 6 + 5
    assert verify(problem, plan).violations == ()


def test_a_copy_that_steps_everything_no_longer_pays():
    """Tests that the plan turns from copies into a pipeline where the step is dear, and that both are optimal."""
    plans = []
    for step in (0, 20):
        problem = make_problem([stepping(name, step, (4, 4, 4)) for name in "xy"], [make_link("a b")])
        plan = find_plan(problem, limits=Limits(time_limit_s=5.0, max_rounds=2))
        assert plan.evidence is not None
        assert plan.evidence.makespan_ns == brute_force(problem)
        plans.append(plan)
    assert [len(plan.stages[0].replicas) for plan in plans] == [2, 1]


def test_a_bound_with_steps_is_reached():
    """Tests that two equal layers on two devices are bounded by fill, work and step, as the best plan takes them."""
    layers = [stepping(name, 10, (4, 4, 4)) for name in "xy"]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=2, max_replicas=1, max_stages_per_device=1)
    best = brute_force(problem)
    bound = make_bound(problem, CostModel(problem))
    assert Least(problem, CostModel(problem)).optimizer_ns == 10
    assert bound.value_ns == best == 4 + 2 * 12 + 10
    assert check_certificate(problem, bound.certificate) == bound.value_ns


def bounded(make: Callable[[Problem, Random], Problem]) -> Iterator[Problem]:
    """Tiny problems, changed, that have a plan; of none is the bound above the best of all plans."""
    for seed in range(shortened(60, whole=1000)):
        problem = make(tiny_problem(Random(seed)), Random(seed))
        best = brute_force(problem)
        if best is not None:
            bound = make_bound(problem, CostModel(problem))
            assert bound.value_ns <= best, seed
            assert check_certificate(problem, bound.certificate) == bound.value_ns
            yield problem


@pytest.mark.slow
def test_no_plan_is_below_bounds_with_steps():
    """Tests that for tiny problems of every kind whose steps are long no bound is above the best of all plans."""
    assert sum(problem.profile.has_layer_steps for problem in bounded(with_long_steps)) > 10


def with_long_steps(problem: Problem, rng: Random) -> Problem:
    """Steps of up to 60 ns on the trained layers of a problem, another one on each device type."""

    def slower(layer: Layer) -> Layer:
        steps = {cost.device_type: rng.choice([0, 5, 60]) for cost in layer.costs}
        costs = tuple(replace(cost, optimizer_ns=steps[cost.device_type]) for cost in layer.costs)
        return replace(layer, costs=costs) if layer.is_trainable else layer

    return replace(problem, profile=replace(problem.profile, layers=tuple(map(slower, problem.profile.layers))))


def with_ring_steps(problem: Problem, rng: Random) -> Problem:
    """Most links of the cluster say what a step of each ring takes at one to three sizes."""

    def points() -> tuple[MessageTime, ...]:
        times = sorted(rng.choices(range(80), k=rng.randint(0, 3)))
        sizes = sorted(rng.sample(range(1, 60), k=len(times)))
        return tuple(MessageTime(bytes=size, time_ns=time) for size, time in zip(sizes, times, strict=True))

    def stated(link: Link) -> Link:
        return link.with_step_times({name: points() for name in link.step_times})

    cluster = problem.cluster
    return replace(problem, cluster=replace(cluster, links=tuple(map(stated, cluster.links))))


def test_rings_take_no_less_than_their_steps():
    """Tests that both take two steps of half of the gradients where these take longer than the formula says."""
    points = (MessageTime(bytes=4, time_ns=50), MessageTime(bytes=8, time_ns=70))
    layers = [make_layer("l", (2, 2, 2), parameter_bytes=12)]
    problem = make_problem(layers, [replace(make_link("a b"), reduction_times=points)], num_microbatches=1)
    plan = make_plan(problem, ["l @ a | b"], {"a": "0F0 0B0", "b": "0F0 0B0"})
    played = judged(problem, plan)
    assert played.makespan_ns == 1 + 2 + 2 * 60
    assert Least(problem, CostModel(problem)).synchronisation_ns(12, 2) == 2 * 60


def test_gathers_and_scatters_have_steps_of_their_own():
    """Tests that each takes what is stated for it: F gathers 30 and computes 1, B computes 2 and scatters 50."""
    one = MessageTime(bytes=6, time_ns=10)
    link = make_link("a b").with_step_times(
        {"reduction": (one,), "gather": (replace(one, time_ns=30),), "scatter": (replace(one, time_ns=50),)}
    )
    layers = [make_layer("l", (2, 2, 2), parameter_bytes=12)]
    problem = make_problem(layers, [link], num_microbatches=1, shard_optimizer="allow", fully_shard=True)
    plan = make_plan(problem, ["l @ a | b"], {"a": "0F0 0B0", "b": "0F0 0B0"})
    plan = replace(plan, stages=(replace(plan.stages[0], shard="full"),))
    assert judged(problem, plan).makespan_ns == 30 + 1 + 2 + 50


@pytest.mark.slow
def test_no_plan_is_below_bounds_with_ring_steps():
    """Tests that for tiny problems of every kind whose rings are slow no bound is above the best of all plans."""
    assert sum(problem.max_replicas > 1 for problem in bounded(with_ring_steps)) > 10


@pytest.mark.parametrize("slower", [with_long_steps, with_ring_steps])
def test_core_and_judge_agree_on_steps(slower: Callable[[Problem, Random], Problem]):
    """Tests that plans with long steps, or on slow rings, end when judge and core say, not below their bounds."""
    for seed in range(shortened(60, whole=1000)):
        rng = Random(seed)
        problem = slower(random_problem(rng), Random(seed))
        plan = random_plan(rng, problem)
        played = judged(problem, plan)
        assert verify(problem, plan).violations == ()
        objective = played.span_ns if problem.options.objective == "span" else played.makespan_ns
        assert schedule_bound(problem, plan.stages, costs=CostModel(problem)) <= objective


def test_devices_that_step_less_wait():
    """Tests that the explanation tells each device's own step, and that its parts add up to the makespan."""
    problem, plan = two_stages(5, 4, 7, optimizer_ns=1)
    explanation = explain(problem, plan, timeline=simulate(problem, plan))
    assert [row.optimizer_ns for row in explanation.devices] == [10, 8]
    assert {row.total_ns for row in explanation.devices} == {explanation.makespan_ns}


@pytest.mark.parametrize(("measured", "base", "steps"), [(30, 20, [6, 4]), (5, 0, [3, 2])])
def test_calibration_keeps_or_shortens_steps(measured: int, base: int, steps: list[int]):
    """Tests that what a run's end took beyond the steps is the profile's, and that steps never take longer than it."""
    problem, plan = two_stages(6, 4, 0)
    predicted = compare(problem, plan)
    usual = predicted.predicted()
    slow = replace(usual, optimizer_ns=dict.fromkeys(usual.optimizer_ns, measured))
    comparison = compare(problem, plan, run(predicted, slow))
    profile = calibrate_profile(problem.profile, comparison, source="a run")
    assert profile.optimizer_ns == base
    assert [layer.optimizer_ns("gpu") for layer in profile.layers][:2] == steps
    assert simulate(replace(problem, profile=profile), plan).makespan_ns == comparison.iterations[0].duration_ns


def test_a_step_is_stated_once_per_type():
    """Tests that contradicting steps, and steps without trained weights, are refused with what to do."""
    layer = stepping("x", 3)
    other = replace(layer.costs[0], microbatch_size=2, optimizer_ns=4)
    with pytest.raises(ValueError, match=r"optimizer_ns = 4 and 3 on 'gpu'; .* state one number per device type"):
        replace(layer, costs=(*layer.costs, other))
    with pytest.raises(ValueError, match="no trainable weights"):
        stepping("x", 3, (1, 1, 0))


@pytest.mark.parametrize(
    ("orders", "lost"),
    [
        (("0F0 1F0 1B0 0B0", "0F0 1F0 1B0 0B0"), [0, 5, 6, 10]),
        (("0F0 1F0 1I0 0B0 1W0", "0F0 1F0 1I0 0B0 1W0"), [0, 10, 11, 20]),
        (("0F0 1F0 1I0 0I0 0W0 1W0", "0F0 1F0 1I0 0I0 1W0 0W0"), [0, 5, 6, 10]),
    ],
)
def test_all_reductions_but_one_that_comes_last_occupy_their_devices(orders: tuple[str, str], lost: list[int]):
    """Tests that a device ends later by its part of what it reduces while it computes: half of 8 + 2, rounded up.

    y's gradients are 8 bytes, its ring 2 x 1/2 x 8 + 2 x 1 long, x's 2 x 1/2 x 18 + 2 x 1. Whichever ends last is
    reduced when nothing is computed; of two that end at once the longer.
    """
    layers = [
        make_layer(name, (4, 4, 4), parameter_bytes=size, state_bytes=size) for name, size in (("x", 18), ("y", 8))
    ]
    problem = make_problem(layers, [make_link("a b", latency=1)])
    ends = []
    for part in (0, 500, 501, 1000):
        asked = replace(problem, cluster=replace(problem.cluster, collective_occupancy=part))
        plan = make_plan(asked, ["x @ a | b", "y @ a | b"], dict(zip("ab", orders, strict=True)))
        ends.append(judged(asked, plan).makespan_ns)
        assert verify(asked, plan).violations == ()
    assert [end - ends[0] for end in ends] == lost
    assert asked.may_lose_time
    assert not replace(asked, options=replace(asked.options, max_stages_per_device=1)).may_lose_time
    with pytest.raises(ValueError, match="collective_occupancy is not in the complete model"):
        require_covered(asked)
