"""Bounds hold for every plan, are tight where theory says so, and certificates that lie are found out."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.recomputed_chains import make_chain as make_recomputed
from planner.bounds.heaviest_path import Trunk, replica_ranges
from planner.bounds.minimum_costs import Least
from planner.bounds.pipeline_bound import DivisionProgramme, Price, make_price
from planner.evidence.certificate import Bound, check_certificate, make_bound, prove_infeasible, schedule_bound
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from solver_models.covering import Covering
from tests.long_runs import examples
from tests.planner.brute_force import brute_force
from tests.planner.builders import with_times
from tests.strategies import chain_problems, random_plan, random_problem, split_cases, with_memory

GIB = 2**30


def make_chain(
    times: list[tuple[int, int, int]],
    *,
    num_devices: int,
    num_microbatches: int,
    memory: int = 2**40,
    stash: tuple[int, int] = (0, 0),
    state: int = 0,
    gradient: int = 1,
    edge_bytes: int = 0,
    options: Options | None = None,
) -> Problem:
    """A chain of layers with the given (F, I, W) on equal devices, all linked at a byte per nanosecond."""
    layers = tuple(
        Layer(
            name=f"l{index}",
            costs=(LayerCost(device_type="gpu", forward_ns=f, input_grad_ns=i, weight_grad_ns=w),),
            parameter_bytes=gradient,
            state_bytes=state,
            stash_bytes=stash[0],
            weight_stash_bytes=stash[1],
        )
        for index, (f, i, w) in enumerate(times)
    )
    names = [f"d{index}" for index in range(num_devices)]
    return Problem(
        profile=ModelProfile(
            name="chain",
            layers=layers,
            edges=tuple(Edge(producer=a.name, consumer=b.name, bytes=edge_bytes) for a, b in pairwise(layers)),
        ),
        cluster=Cluster(
            name="cluster",
            devices=tuple(Device(name=name, type="gpu", memory_bytes=memory) for name in names),
            links=tuple(
                Link(a=a, b=b, bandwidth_bytes_per_s=10**9) for i, a in enumerate(names) for b in names[i + 1 :]
            ),
        ),
        num_microbatches=num_microbatches,
        options=options or Options(receive_buffers=0),
    )


def one_each(problem: Problem) -> tuple[Stage, ...]:
    """Stage k is layer k on device k."""
    pairs = zip(problem.profile.layers, problem.cluster.devices, strict=True)
    return tuple(Stage(layers=(layer.name,), replicas=((device.name,),)) for layer, device in pairs)


def zero_bubble(
    size: tuple[int, int], times: tuple[int, int, int, int], *, hidden: tuple[int, int], in_flight: int, objective: str
) -> Problem:
    """A setting of the zero-bubble paper (arXiv 2401.10241): one stage per device, in its units of time and memory."""
    (width, heads), (devices, count) = hidden, size
    stash = 34 * width + 5 * heads * 1024
    return make_chain(
        [times[:3]] * devices,
        num_devices=devices,
        num_microbatches=count,
        memory=in_flight * stash,
        stash=(stash, 32 * width),
        edge_bytes=times[3],
        options=Options(receive_buffers=0, max_replicas=1, max_stages_per_device=1, objective=objective),
    )


def bound_of(problem: Problem) -> Bound:
    return make_bound(problem, CostModel(problem))


def objective_of(problem: Problem, plan: Plan) -> tuple[int, dict[str, int]]:
    timeline = simulate(problem, plan)
    return timeline.objective_ns(problem.options.objective), dict(timeline.peak_bytes)


def restricted_problem(rng: Random) -> Problem:
    """A random problem with few chunks and few replicas, half of them chains."""
    problem = random_problem(rng)
    profile = problem.profile
    if rng.random() < 0.5:
        names = [layer.name for layer in profile.layers]
        edges = [Edge(producer=a, consumer=b, bytes=rng.randint(0, 9)) for a, b in pairwise(names)]
        profile = replace(profile, edges=tuple(edges))
    options = replace(
        problem.options,
        max_stages_per_device=rng.choice([1, 1, 2, 2, 3]),
        max_replicas=rng.choice([None, 1, 1, 2]),
        max_width=rng.choice([1, problem.options.max_width]),
    )
    return replace(problem, profile=profile, options=options)


def obeys(problem: Problem, plan: Plan) -> bool:
    """Whether the plan keeps the limits on chunks, replicas and widths."""
    used = Counter(device for stage in plan.stages for group in stage.replicas for device in group)
    return max(used.values()) <= problem.options.max_stages_per_device and all(
        len(stage.replicas) <= problem.max_replicas and len(stage.replicas[0]) <= problem.options.max_width
        for stage in plan.stages
    )


def plans_of(rng: Random, problem: Problem, *, tries: int) -> Iterator[tuple[Problem, Plan, int]]:
    """Random plans that keep the rules, each once with ample memory and once with just enough, and their objective."""
    for _ in range(tries):
        plan = random_plan(rng, problem)
        if obeys(problem, plan):
            value, peak = objective_of(problem, plan)
            yield problem, plan, value
            yield with_memory(problem, peak), plan, value


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_plan_is_below_the_bound(rng):
    """Tests that no random plan is faster than the bound over all plans, nor ruled out, and that the bound checks."""
    problem = restricted_problem(rng)
    for tight, _, value in plans_of(rng, problem, tries=4):
        bound = bound_of(tight)
        assert bound.value_ns <= value
        assert check_certificate(tight, bound.certificate) == bound.value_ns
        assert prove_infeasible(tight, CostModel(tight)) is None


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_order_is_below_the_schedule_bound(rng):
    """Tests that no random order is faster than the schedule bound of its stages, even in the least memory it fits."""
    problem = random_problem(rng)
    for tight, plan, value in plans_of(rng, problem, tries=3):
        assert schedule_bound(tight, plan.stages, costs=CostModel(tight)) <= value
        if not any(stage.recompute for stage in plan.stages):
            partition, placement = (tuple(getattr(s, name) for s in plan.stages) for name in ("layers", "replicas"))
            options = replace(tight.options, partition=partition, placement=placement, recompute=False)
            assert prove_infeasible(replace(tight, options=options), CostModel(tight)) is None


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(case=split_cases())
def test_split_placement_is_not_below_the_bounds(case):
    """Tests that plans whose I and W are on other devices than their F are not below the bounds either."""
    problem, plan = case
    value, _ = objective_of(problem, plan)
    bound = bound_of(problem)
    assert bound.value_ns <= value
    assert check_certificate(problem, bound.certificate) == bound.value_ns
    assert schedule_bound(problem, plan.stages, costs=CostModel(problem)) <= value
    with pytest.raises(ValueError, match="where split_placement is allowed"):
        check_certificate(problem, {"kind": "path", "value_ns": 1})


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(problem=chain_problems(max_layers=5))
def test_brute_force_is_not_below_the_bound(problem):
    """Tests that the best plan of all, found by brute force, is not below the bound, nor ruled out."""
    best = brute_force(problem)
    if best is not None:
        assert bound_of(problem).value_ns <= best
        assert prove_infeasible(problem, CostModel(problem)) is None


@pytest.mark.parametrize(
    ("size", "times", "hidden", "in_flight", "known"),
    [
        ((8, 24), (18522, 18086, 9337, 601), (2304, 24), 8, 0.1585),
        ((8, 24), (18522, 18086, 9337, 601), (2304, 24), 16, 0.0433),
        ((8, 32), (18513, 18086, 9331, 626), (2304, 24), 8, 0.1242),
        ((8, 24), (29718, 29444, 19927, 527), (4096, 32), 8, 0.1323),
        ((8, 32), (29802, 29428, 19530, 577), (4096, 32), 8, 0.1045),
        ((32, 96), (10419, 10207, 7715, 408), (6144, 48), 32, 0.1421),
        ((32, 96), (10419, 10207, 7715, 408), (6144, 48), 64, 0.0030),
    ],
)
def test_zero_bubble_optima(size, times, hidden, in_flight, known):
    """Tests that the schedule bound on the span is the published optimum of the zero-bubble paper, to four digits."""
    problem = zero_bubble(size, times, hidden=hidden, in_flight=in_flight, objective="span")
    bound = schedule_bound(problem, one_each(problem), costs=CostModel(problem))
    assert 1 - size[1] * sum(times[:3]) / bound == pytest.approx(known, abs=6e-5)


def test_zero_bubble_over_all_plans():
    """Tests that with one unreplicated stage per device, no other partition can beat ZB-1p under the barrier."""
    problem = zero_bubble((8, 24), (29718, 29444, 19927, 527), hidden=(4096, 32), in_flight=8, objective="makespan")
    bound = bound_of(problem)
    assert bound.kind == "pipeline"
    assert bound.value_ns == pytest.approx(
        schedule_bound(problem, one_each(problem), costs=CostModel(problem)), rel=1e-3
    )


def test_fill_and_drain():
    """Tests that four equal stages cannot fill and empty a pipeline faster than 3 F + M (F + I + W) + ..., by hand."""
    problem = make_chain(
        [(10, 10, 10)] * 4,
        num_devices=4,
        num_microbatches=8,
        options=Options(receive_buffers=0, max_replicas=1, max_stages_per_device=1),
    )
    assert schedule_bound(problem, one_each(problem), costs=CostModel(problem)) == 8 * 30 + 3 * 10
    assert bound_of(problem).value_ns == 8 * 30 + 3 * 10


def test_a_heavy_layer_on_slow_links():
    """Tests that a layer too large for one device and slow to synchronise costs the better of both evils."""
    problem = make_chain([(10, 10, 10), (100, 100, 100)], num_devices=2, num_microbatches=4, gradient=500)
    # two replicas: 10 / 2 before it, 4 x 300 / 2, and 2 (2 - 1) / 2 x 500 bytes; alone: 1200 and more
    certificate = {"kind": "layer", "layer": "l1", "value_ns": 5 + 600 + 500}
    assert check_certificate(problem, certificate) == 1105
    assert bound_of(problem).value_ns >= 1105


def test_unlike_devices_share_the_work():
    """Tests that the work bound weighs a device that is three times as fast three times as much."""
    problem = make_chain([(1, 1, 1)] * 40, num_devices=2, num_microbatches=10)
    fast, slow = (
        LayerCost(device_type=t, forward_ns=f, input_grad_ns=f, weight_grad_ns=f) for t, f in (("a", 10), ("b", 30))
    )
    layers = tuple(replace(layer, costs=(fast, slow)) for layer in problem.profile.layers)
    devices = tuple(replace(device, type=t) for device, t in zip(problem.cluster.devices, "ab", strict=True))
    problem = replace(
        problem, profile=replace(problem.profile, layers=layers), cluster=replace(problem.cluster, devices=devices)
    )
    # 400 x 30 on the fast one alone would take 12000; three quarters of it there take 9000
    assert bound_of(problem).value_ns == 9000


def test_memory_allows_one_microbatch_at_a_time():
    """Tests that with room for one microbatch everything happens one after the other."""
    problem = make_chain(
        [(10, 10, 10)] * 3,
        num_devices=3,
        num_microbatches=5,
        memory=10,
        stash=(10, 0),
        options=Options(receive_buffers=0, max_replicas=1, max_stages_per_device=1),
    )
    # the first device waits for 2 F and 2 I of the others before each of its I; its W fill the gaps but for the last
    assert schedule_bound(problem, one_each(problem), costs=CostModel(problem)) == 5 * (20 + 2 * 20) + 10
    assert bound_of(problem).value_ns == 5 * (20 + 2 * 20) + 10


def test_little_s_law():
    """Tests that memory held over time bounds the makespan where devices may hold several stages."""
    problem = make_chain(
        [(10, 10, 10)] * 8,
        num_devices=4,
        num_microbatches=32,
        memory=20,
        stash=(10, 10),
        options=Options(receive_buffers=0, max_replicas=1),
    )
    bound = bound_of(problem)
    assert bound.kind == "pipeline"
    assert bound.certificate["price"]["memory"] > 0
    # layer k holds 10 bytes for 20 (8 - k) and until its W for 10 more; 80 bytes in all
    assert bound.value_ns >= 32 * sum(10 * (20 * (8 - k) + 10) for k in range(8)) // 80


def test_placed_stages():
    """Tests that the schedule bound holds over all plans once stages and devices are given."""
    problem = make_chain([(10, 10, 10)] * 2, num_devices=2, num_microbatches=2)
    placed = Options(receive_buffers=0, partition=(("l0",), ("l1",)), placement=((("d0",),), (("d1",),)))
    bound = bound_of(replace(problem, options=placed))
    assert (bound.kind, bound.value_ns) == ("schedule", 70)
    assert check_certificate(replace(problem, options=placed), bound.certificate) == 70
    with pytest.raises(ValueError, match="partition and placement"):
        check_certificate(problem, bound.certificate)


def some_certificates() -> list[tuple[Problem, dict[str, object]]]:
    """A problem and a certificate of every kind."""
    single = Options(receive_buffers=0, max_replicas=1, max_stages_per_device=1)
    placed = Options(receive_buffers=0, partition=(("l0",), ("l1",)), placement=((("d0",),), (("d1",),)))
    even = make_chain([(10, 10, 10)] * 8, num_devices=2, num_microbatches=4)
    heavy = make_chain([(10, 10, 10), (100, 100, 100)], num_devices=2, num_microbatches=4, gradient=500)
    piped = make_chain([(10, 10, 10)] * 8, num_devices=4, num_microbatches=8, options=single)
    fixed = make_chain([(10, 10, 10)] * 2, num_devices=2, num_microbatches=2, options=placed)
    return [
        *((problem, bound_of(problem).certificate) for problem in (even, piped, fixed)),
        (heavy, {"kind": "layer", "layer": "l1", "value_ns": 1105}),
        (piped, {"kind": "path", "value_ns": 300}),
    ]


def test_certificates_survive_json():
    """Tests that a certificate of every kind proves its value again after a trip through JSON."""
    found = some_certificates()
    assert {certificate["kind"] for _, certificate in found} == {"work", "pipeline", "schedule", "layer", "path"}
    for problem, certificate in found:
        plain = json.loads(json.dumps(certificate))
        assert plain == certificate
        assert check_certificate(problem, plain) == certificate["value_ns"]


def test_no_floats_in_certificates():
    """Tests that certificates hold integers, names and nothing else."""

    def leaves(value: object) -> Iterator[object]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        if inner is None:
            yield value
        else:
            for item in inner:
                yield from leaves(item)

    for _, certificate in some_certificates():
        assert all(type(leaf) in (int, str) for leaf in leaves(certificate))


@pytest.mark.parametrize("change", [1, 10**6, 10**30])
def test_larger_values_are_rejected(change):
    """Tests that no certificate proves more than it did."""
    for problem, certificate in some_certificates():
        with pytest.raises(ValueError, match="certificate: "):
            check_certificate(problem, {**certificate, "value_ns": certificate["value_ns"] + change})


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"kind": "work"},
        {"kind": "work", "value_ns": True, "weights": {"gpu": 1}},
        {"kind": "work", "value_ns": 1.0, "weights": {"gpu": 1}},
        {"kind": "work", "value_ns": 1, "weights": {}},
        {"kind": "work", "value_ns": 1, "weights": {"gpu": -1}},
        {"kind": "work", "value_ns": 1, "weights": {"gpu": 0}},
        {"kind": "work", "value_ns": 1, "weights": {"gpu": 0.5}},
        {"kind": "work", "value_ns": 1, "weights": {"tpu": 1}},
        {"kind": "layer", "value_ns": 1, "layer": "l9"},
        {"kind": "layer", "value_ns": 1},
        {"kind": "oracle", "value_ns": 1},
        {"kind": ["work"], "value_ns": 1},
        {"kind": "pipeline", "value_ns": 1},
        {"kind": "pipeline", "value_ns": 0, "price": {"weights": {"gpu": 1}, "memory": 0, "shift": 0}},
        {"kind": "pipeline", "value_ns": 99999, "price": {"weights": {"gpu": 1}, "memory": 0, "shift": 0}},
        {"kind": "pipeline", "value_ns": 99999, "price": {"weights": {"gpu": 1}, "memory": 10**30, "shift": 0}},
        {"kind": "pipeline", "value_ns": 99999, "price": {"weights": {"gpu": 1}, "memory": 0, "shift": -1}},
        {"kind": "pipeline", "value_ns": 99999, "price": {"weights": {"gpu": "1"}, "memory": 0, "shift": 0}},
        {"kind": "pipeline", "value_ns": 99999, "price": {"weights": {}, "memory": 0, "shift": 0}},
        {"kind": "pipeline", "value_ns": 10**25, "price": {"weights": {"gpu": 1}, "memory": 0, "shift": 0}},
    ],
)
def test_broken_certificates_are_rejected(broken):
    """Tests that what is no certificate, or proves nothing of the sort, ends in one clear message."""
    problem = make_chain([(10, 10, 10)] * 4, num_devices=2, num_microbatches=4)
    with pytest.raises(ValueError, match="certificate: "):
        check_certificate(problem, broken)


def test_a_certificate_of_another_problem_is_rejected():
    """Tests that a bound does not carry over to a problem with less work."""
    hard = make_chain([(10, 10, 10)] * 4, num_devices=2, num_microbatches=4)
    easy = make_chain([(10, 10, 9)] * 4, num_devices=2, num_microbatches=4)
    with pytest.raises(ValueError, match="proves"):
        check_certificate(easy, bound_of(hard).certificate)


def test_makespan_bounds_do_not_hold_for_the_span():
    """Tests that a head counts for the makespan only."""
    problem = make_chain([(10, 10, 10), (100, 100, 100)], num_devices=2, num_microbatches=4, gradient=500)
    certificate = {"kind": "layer", "layer": "l1", "value_ns": 1105}
    with pytest.raises(ValueError, match="makespan only"):
        check_certificate(replace(problem, options=replace(problem.options, objective="span")), certificate)


@settings(max_examples=examples(40), deadline=None)
@given(rng=st.randoms(use_true_random=False), factor=st.sampled_from([2, 3, 1000, 10**6]))
def test_scaling_times_scales_the_work_bound(rng, factor):
    """Tests that with all times k times as long the work bound is k times as large: nothing is rounded."""
    problem = make_chain(
        [(rng.randint(1, 99), rng.randint(1, 99), rng.randint(1, 99)) for _ in range(rng.randint(2, 12))],
        num_devices=2,
        num_microbatches=2,
    )
    scaled = replace(
        problem, profile=replace(problem.profile, layers=tuple(with_times(x, factor) for x in problem.profile.layers))
    )
    small, large = ({"kind": "work", "weights": {"gpu": 7}} for _ in range(2))
    value = sum(
        sum(x)
        for x in ((c.forward_ns, c.input_grad_ns, c.weight_grad_ns) for y in problem.profile.layers for c in y.costs)
    )
    assert check_certificate(problem, {**small, "value_ns": value}) == value
    assert check_certificate(scaled, {**large, "value_ns": factor * value}) == factor * value


@settings(max_examples=examples(40), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_reach_grows_with_time_and_memory(rng):
    """Tests that what is out of reach stays so in less time, and that more memory puts nothing out of reach."""
    problem = with_memory(restricted_problem(rng), {f"d{i}": rng.randint(1, 200) for i in range(4)})
    roomy = with_memory(problem, {device.name: 2 * device.memory_bytes for device in problem.cluster.devices})
    price = Price(
        weights=dict.fromkeys(Least(problem, CostModel(problem)).types, 1), memory=rng.choice([0, 1]), shift=0
    )
    deadlines = sorted(rng.randint(1, 400) for _ in range(4))
    trunk, larger = (Trunk(Least(p, CostModel(p))) for p in (problem, roomy))
    out = [DivisionProgramme(trunk, deadline, price=price).is_out_of_reach() for deadline in deadlines]
    assert out == sorted(out, reverse=True)
    assert all(
        a or not DivisionProgramme(larger, t, price=price).is_out_of_reach()
        for a, t in zip(out, deadlines, strict=True)
    )


def test_prices_stay_within_64_bits():
    """Tests that a price is never so large that sums wrap around."""
    problem = make_chain(
        [(10**12, 10**12, 10**12)] * 8, num_devices=4, num_microbatches=64, memory=2**49, stash=(2**45, 2**40)
    )
    least = Least(problem, CostModel(problem))
    for weights in ({"gpu": 1 << 20}, None):
        deadline = 10**15
        division = DivisionProgramme(Trunk(least), deadline, price=make_price(least, deadline, weights=weights))
        assert division.is_exact
    assert not DivisionProgramme(Trunk(least), deadline, price=Price(weights={"gpu": 1}, memory=1, shift=0)).is_exact


def test_ranges_of_replicas_cover_every_number_once():
    """Tests that every number of replicas is in exactly one range."""
    for most in (1, 2, 16, 17, 100, 1024):
        numbers = [n for entry in replica_ranges(most) for n in range(entry.least, entry.most + 1)]
        assert numbers == list(range(1, most + 1))


def test_a_layer_that_fits_nowhere():
    """Tests that the message names the layer, what it needs and what there is."""
    problem = make_chain([(1, 1, 1)] * 2, num_devices=2, num_microbatches=1, memory=GIB, state=GIB, stash=(10, 0))
    message = prove_infeasible(problem, CostModel(problem))
    assert message is not None
    assert "layer 'l0' alone needs 1,073,741,829 bytes" in message
    assert "the largest device has 1,073,741,824" in message


def test_state_that_does_not_fit_anywhere_together():
    """Tests that the states of all layers and one microbatch's stash must fit into all devices together."""
    problem = make_chain([(1, 1, 1)] * 5, num_devices=2, num_microbatches=1, memory=100, state=30, stash=(11, 0))
    message = prove_infeasible(problem, CostModel(problem))
    assert message is not None
    assert "150 bytes of state and 55 of stash" in message
    roomy = make_chain([(1, 1, 1)] * 5, num_devices=2, num_microbatches=1, memory=103, state=30, stash=(11, 0))
    assert prove_infeasible(roomy, CostModel(roomy)) is None


def test_more_stages_than_devices():
    """Tests that layers of which no two fit together need a device each, or several stages per device."""
    single = Options(receive_buffers=0, max_replicas=1, max_stages_per_device=1)
    problem = make_chain([(1, 1, 1)] * 3, num_devices=2, num_microbatches=1, memory=100, state=60, options=single)
    message = prove_infeasible(problem, CostModel(problem))
    assert message is not None
    assert "need at least 3 stages" in message
    roomy = with_memory(problem, {"d0": 120})
    assert prove_infeasible(roomy, CostModel(roomy)) is None


def test_equal_layers_leave_devices_idle():
    """Tests that with two equal layers per device none can make up for the late start of another."""
    problem = make_chain(
        [(10, 10, 10)] * 16,
        num_devices=8,
        num_microbatches=24,
        options=Options(receive_buffers=0, max_replicas=1, max_stages_per_device=2),
    )
    # every device runs two layers, and the last one to start has seven stages of at least one layer before it
    assert bound_of(problem).value_ns >= 24 * 2 * 30 + 7 * 10


def test_a_frozen_prefix_holds_no_stash():
    """Tests that layers that wait for no gradient are not counted as stashed when the last layer runs."""
    problem = make_chain([(1, 1, 1)] * 5, num_devices=2, num_microbatches=1, memory=100, state=30, stash=(11, 0))
    edges = tuple(replace(edge, gradient_bytes=0) for edge in problem.profile.edges)
    open_ended = replace(problem, profile=replace(problem.profile, edges=edges))
    assert prove_infeasible(open_ended, CostModel(open_ended)) is None


def test_devices_are_not_packed_where_microbatches_choose():
    """Tests that no devices are packed where stages are placed and each microbatch may recompute, which gained nothing
    in most of a search's time; where whole stages recompute they are.
    """

    def asked(*_: object, **__: object) -> Covering:
        raise AssertionError("asked")

    problem = make_recomputed([[10, 10, 10], [9, 12, 8]], num_microbatches=4, kept=1)
    assert make_bound(problem, CostModel(problem), make_covering=asked).value_ns > 0
    whole = replace(problem, options=replace(problem.options, recompute_microbatches=False))
    with pytest.raises(AssertionError, match="asked"):
        make_bound(whole, CostModel(whole), make_covering=asked)
