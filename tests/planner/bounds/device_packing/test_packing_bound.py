"""The packing bound: against brute force and plans, on problems with known optima, and against made-up certificates."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.bound_params import BoundParams
from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.packed_forms import MAX_LEVELS
from planner.bounds.device_packing.packing_bound import PRICE, PackingCertificate, Split, applies_to, is_out_of_reach
from planner.bounds.device_packing.price_search import Packed, Refutation, raise_further
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import Bound, check_certificate, make_bound, raise_bound, schedule_bound
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from profiles.load import load_workload
from solver_models.covering import Covering
from tests.long_runs import examples, shortened
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import make_chain, obeys, objective_of, plans_of, with_memory
from tests.planner.hasty import make_plan
from tests.planner.layer_kinds import random_mapped_plan, with_kinds
from tests.planner.plan_in_packing import follow
from tests.strategies import random_chain, random_problem, tiny_problem


def packed(problem: Problem) -> Bound:
    """The best bound, the packing bound included."""
    return make_bound(problem, CostModel(problem), make_covering=Covering)


def timed(problem: Problem, *, width: int = 1) -> Problem:
    """The problem for the makespan, on devices or groups of this width, with at most two stages on each device."""
    most = min(problem.options.max_stages_per_device, 2)
    options = replace(problem.options, objective="makespan", max_width=width, max_stages_per_device=most)
    return replace(problem, options=options)


def starved(rng: Random) -> Problem:
    """A chain in little memory, with replicas, chunks and receive buffers."""
    problem = random_chain(rng, sizes=(6, 4, 6), tight=True)
    options = replace(problem.options, max_replicas=rng.choice([1, 2, None]), max_stages_per_device=2)
    profile = replace(problem.profile, microbatch_size=rng.choice([1, 4, 8]))
    return replace(problem, options=options, profile=profile)


def is_ruled_out(problem: Problem, value: int) -> bool:
    """Whether prices and cases are found that deny that some plan has the given makespan."""
    least = Least(problem, CostModel(problem))
    if not applies_to(least):
        return False
    boundaries, deadline = Boundaries(least), value - problem.profile.optimizer_ns
    refutation = Refutation(boundaries, Covering, most=63, effort=10**9, wanted=100, with_trees=True)
    cases = refutation.find(deadline)
    return cases is not None and is_out_of_reach(boundaries, deadline, cases=cases, trees=refutation.trees)


def fits(problem: Problem, plan: Plan) -> bool:
    """Whether every device has what the plan holds at most."""
    peaks = simulate(problem, plan).peak_bytes
    return all(problem.cluster.by_name[device].usable_bytes >= peak for device, peak in peaks.items())


def priced_at_random(rng: Random, boundaries: Boundaries) -> list[PackingCertificate]:
    """One case without a split whose rounds of prices ask for memory most of all."""
    works = numpy.diff(boundaries.forward + boundaries.backward).tolist()
    most = PRICE // max(*works, 1)
    rounds = tuple(
        [rng.randint(most // 2, most) * work for work in works] + [rng.choice([0, PRICE // 4]), rng.randint(0, PRICE)]
        for _ in range(3)
    )
    return [PackingCertificate(rounds, None)]


@settings(max_examples=examples(200), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_price_of_memory_rules_out_a_plan(rng):
    """Tests that whatever memory x time costs, no random plan of starved problems is denied."""
    for tight, plan, value in plans_of(rng, timed(rng.choice([random_problem, starved])(rng)), tries=3):
        least = Least(tight, CostModel(tight))
        if applies_to(least) and fits(tight, plan):
            boundaries = Boundaries(least)
            cases = priced_at_random(rng, boundaries)
            assert not is_out_of_reach(boundaries, value - least.optimizer_ns, cases=cases)


@settings(max_examples=examples(80), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_plans_survive_every_rule(rng):
    """Tests that no stage of a random plan and no load of its devices is left out, in the least memory that it fits."""
    problem = timed(rng.choice([random_problem, starved])(rng), width=2)
    if not applies_to(Least(problem, CostModel(problem))):
        return
    for tight, plan, value in plans_of(rng, problem, tries=2):
        if fits(tight, plan):
            follow(tight, plan, value=value, depth=4)


@settings(max_examples=examples(80), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_plans_survive_where_stages_have_forms(rng):
    """Tests that no stage of a random plan is left out where stages have widths, and layers or microbatches decide what
    recomputes.
    """
    problem = with_kinds(rng, rng.choice([random_problem, starved])(rng))
    most, by_microbatch = min(problem.options.max_stages_per_device, 2), rng.random() < 0.5
    options = replace(
        problem.options, objective="makespan", max_stages_per_device=most, recompute_microbatches=by_microbatch
    )
    problem, count = replace(problem, options=options), problem.num_microbatches
    if not applies_to(Least(problem, CostModel(problem))):
        return
    for _ in range(2):
        plan = random_mapped_plan(rng, problem)
        chosen = tuple(sorted(rng.sample(range(count), rng.randint(1, count))))
        if by_microbatch and len(chosen) < count:
            stages = (replace(s, recompute_microbatches=chosen if s.recompute else ()) for s in plan.stages)
            plan = replace(plan, stages=tuple(stages))
        if obeys(problem, plan):
            value, peak = objective_of(problem, plan)
            tight = with_memory(problem, peak)
            follow(tight, plan, value=value, depth=4, levels=rng.randint(2, MAX_LEVELS))


@pytest.mark.parametrize("seed", range(5))
def test_good_plans_are_not_ruled_out(seed):
    """Tests that plans found by search for up to six layers on up to four devices are not denied."""
    rng = Random(seed)
    times = [(rng.randint(1, 20), rng.randint(0, 20), rng.randint(0, 20)) for _ in range(rng.randint(3, 6))]
    problem = make_chain(
        times,
        num_devices=rng.randint(2, 4),
        num_microbatches=rng.randint(1, 4),
        gradient=rng.choice([1, 40, 400]),
        edge_bytes=rng.choice([0, 3, 20]),
        options=Options(receive_buffers=0, max_stages_per_device=rng.randint(1, 2)),
    )
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.evidence is not None
    assert plan.evidence.lower_bound_ns <= plan.evidence.makespan_ns
    assert not is_ruled_out(problem, plan.evidence.makespan_ns)


def heavy(count: int = 3, devices: int = 2, factor: int = 1) -> Problem:
    """Equal layers that are too expensive to replicate."""
    times = [(10 * factor, 10 * factor, 10 * factor)] * count
    return make_chain(times, num_devices=devices, num_microbatches=4, gradient=10**4 * factor)


def test_three_layers_on_two_devices():
    """Tests that layers which cannot be shared fill devices as a whole: two of three lie on one device."""
    bound = packed(heavy())
    assert (bound.kind, bound.value_ns) == ("packing", 240)
    plan = make_plan(heavy(), limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns == 240
    assert plan.evidence.bound_kind == "packing"


def few_in_flight(*, memory: int = 20) -> Problem:
    """Two layers of which a device in so little memory holds one, with one microbatch at a time."""
    problem = make_chain([(10, 10, 10)] * 2, num_devices=2, num_microbatches=6, gradient=10**5)
    layers = tuple(replace(layer, state_bytes=10, stash_bytes=10) for layer in problem.profile.layers)
    machines = tuple(replace(device, memory_bytes=memory) for device in problem.cluster.devices)
    options = replace(problem.options, receive_buffers=0, recompute=False)
    return replace(
        problem,
        profile=replace(problem.profile, layers=layers),
        cluster=replace(problem.cluster, devices=machines),
        options=options,
    )


def test_one_microbatch_at_a_time():
    """Tests that where a layer fits on a device with one microbatch only, the next F waits for a round trip."""
    ample, scarce = packed(few_in_flight(memory=10**6)), packed(few_in_flight())
    assert scarce.kind == "packing"
    assert scarce.value_ns > 1.2 * ample.value_ns
    plan = make_plan(few_in_flight(), limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns == scarce.value_ns == 250
    assert check_certificate(few_in_flight(), json.loads(json.dumps(scarce.certificate))) == scarce.value_ns


def folded(*, memory: int) -> Problem:
    """Three layers, the first and the last on one device: each leaves 10 bytes of every microbatch."""
    problem = make_chain([(10, 10, 0)] * 3, num_devices=2, num_microbatches=6, gradient=10**5)
    layers = tuple(replace(layer, state_bytes=0, stash_bytes=10) for layer in problem.profile.layers)
    machines = tuple(
        replace(device, memory_bytes=size)
        for device, size in zip(problem.cluster.devices, (memory, 10**6), strict=True)
    )
    options = replace(
        problem.options,
        receive_buffers=0,
        max_stages_per_device=2,
        partition=tuple((layer.name,) for layer in layers),
        placement=tuple(((machines[number].name,),) for number in (0, 1, 0)),
    )
    profile, cluster = replace(problem.profile, layers=layers), replace(problem.cluster, devices=machines)
    return replace(problem, profile=profile, cluster=cluster, options=options)


def test_room_beside_one_microbatch():
    """Tests that where one microbatch of the first stage fits beside one of the second, few are begun ahead of it."""
    values = []
    for memory in (29, 30, 10**6):
        problem = folded(memory=memory)
        plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=2))
        assert plan.evidence is not None
        values.append(schedule_bound(problem, plan.stages, costs=CostModel(problem)))
        assert values[-1] == plan.evidence.makespan_ns
    assert values == [260, 240, 240]


def unlike(*speeds: int) -> Problem:
    """Four layers too expensive to replicate, on devices that take so many times as long."""
    problem = heavy(4, len(speeds))
    (cost, *_), types = problem.profile.layers[0].costs, [f"slow{speed}" for speed in speeds]
    costs = tuple(
        replace(cost, device_type=name, forward_ns=10 * speed, input_grad_ns=10 * speed, weight_grad_ns=10 * speed)
        for name, speed in dict(zip(types, speeds, strict=True)).items()
    )
    layers = tuple(replace(layer, costs=costs) for layer in problem.profile.layers)
    machines = tuple(replace(device, type=name) for device, name in zip(problem.cluster.devices, types, strict=True))
    profile, cluster = replace(problem.profile, layers=layers), replace(problem.cluster, devices=machines)
    return replace(problem, profile=profile, cluster=cluster)


def test_slow_devices_hold_less():
    """Tests that what a slow device holds takes its own time: they do not fill it like a fast one."""
    bound = packed(unlike(1, 3))
    assert (bound.kind, bound.value_ns) == ("packing", 370)
    assert packed(unlike(1, 1)).value_ns < 300
    plan = make_plan(unlike(1, 3), limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns == bound.value_ns
    assert check_certificate(unlike(1, 3), json.loads(json.dumps(bound.certificate))) == bound.value_ns


def test_whole_plans_are_left_to_the_schedule_bound():
    """Tests that a case without prices is closed where every plan that is left is late by the schedule bound."""
    boundaries = Boundaries(Least(few_in_flight(), CostModel(few_in_flight())))
    case = PackingCertificate((), None)
    assert is_out_of_reach(boundaries, 249, cases=[case])
    assert not is_out_of_reach(boundaries, 250, cases=[case])


def test_memory_times_time_has_a_price():
    """Tests that certificates price what waits in memory, and that those without that price, as they were, are read."""
    problem = timed(starved(Random(109)))
    bound = packed(problem)
    cases = bound.certificate["cases"]
    assert any(prices[-1] > 0 for rounds, _ in cases for prices in rounds)
    assert check_certificate(problem, json.loads(json.dumps(bound.certificate))) == bound.value_ns
    without = packed(heavy(5, 3)).certificate
    earlier = [[[prices[:-1] for prices in rounds], split] for rounds, split in without["cases"]]
    assert check_certificate(heavy(5, 3), {**without, "cases": earlier}) == without["value_ns"]


@pytest.mark.parametrize("factor", [2, 7, 1000])
def test_scaled_times_scale_the_bound(factor):
    """Tests that with all times and bytes a factor larger the bound is about as much larger."""
    assert packed(heavy(5, 3, factor)).value_ns == pytest.approx(factor * packed(heavy(5, 3)).value_ns, rel=0.01)


@pytest.mark.parametrize(
    ("name", "least"),
    [("gnmt8-four-gpus", 183_000_000), *shortened([], whole=[("bert24-six-accelerators", 448_000_000)])],
)
def test_samples_with_few_heavy_layers(name, least):
    """Tests that on samples whose layers are few and heavy the packing bound is well above the work bound."""
    workload = load_workload(f"demo:{name}")
    problem = Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=workload.num_microbatches)
    bound = packed(problem)
    assert bound.kind == "packing"
    assert bound.value_ns >= least
    assert check_certificate(problem, json.loads(json.dumps(bound.certificate))) == bound.value_ns


def test_a_value_above_is_refused():
    """Tests that cases prove no more than they state, and nothing with one left out or one too many."""
    problem = heavy(5, 3)
    certificate = packed(problem).certificate
    cases = certificate["cases"]
    for change in (
        {"value_ns": 10**6},
        {"cases": cases[:-1]},
        {"cases": [*cases, cases[-1]]},
        {"cases": [[[], [1, 0]]]},
    ):
        with pytest.raises(ValueError, match="certificate: "):
            check_certificate(problem, {**certificate, **change})


def test_parts_of_a_case_that_is_closed_are_no_harm():
    """Tests that cases hold which were split when rules were weaker: what is closed by prices needs no parts."""
    problem = heavy(5, 3)
    certificate = packed(problem).certificate
    place = next(n for n, (prices, split) in enumerate(certificate["cases"]) if prices and not split)
    cases = copy.deepcopy(certificate["cases"])
    closed = cases[place]
    cases[place] = [closed[0], [1, 0]]
    for inner in ([], [1, 0]):
        parts = [[[], inner], *[[[], []] for _ in inner], [[], []]]
        changed = [*cases[: place + 1], *parts, *cases[place + 1 :]]
        assert check_certificate(problem, {**certificate, "cases": changed}) == certificate["value_ns"]
        with pytest.raises(ValueError, match="certificate: "):
            check_certificate(problem, {**certificate, "cases": [*changed, [[], []]]})
    with pytest.raises(ValueError, match="certificate: "):
        check_certificate(problem, {**certificate, "cases": cases})


def numbers(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The paths of all numbers and lists in nested lists."""
    if path:
        yield path
    if isinstance(value, list):
        for place, inner in enumerate(value):
            yield from numbers(inner, (*path, place))


def test_broken_cases_are_refused():
    """Tests that no number and no list of the cases can be replaced by what is none."""
    problem = heavy(5, 3)
    certificate = packed(problem).certificate
    for path in numbers(certificate["cases"]):
        for bad in (-1, PRICE + 1, 10**30, 0.5, float("nan"), True, None, "1", {}, [[]]):
            cases = copy.deepcopy(certificate["cases"])
            inner = cases
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = bad
            with pytest.raises(ValueError, match="certificate: "):
                check_certificate(problem, {**certificate, "cases": cases})


@pytest.mark.parametrize(("number", "best"), [(0, 240), (1, 250)])
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_made_up_prices_prove_no_more_than_is_true(number, best, data):
    """Tests that whatever prices and splits are made up, a makespan that a plan has is not ruled out."""
    problem = (heavy(), few_in_flight())[number]
    boundaries = Boundaries(Least(problem, CostModel(problem)))
    prices = st.lists(st.integers(0, PRICE), min_size=boundaries.size + 1, max_size=boundaries.size + 2)
    split = st.one_of(st.none(), st.builds(Split, st.integers(0, boundaries.size - 1), st.integers(0, 2)))
    case = st.builds(PackingCertificate, st.lists(prices, max_size=3).map(tuple), split)
    cases = data.draw(st.lists(case, min_size=1, max_size=7))
    assert not is_out_of_reach(boundaries, data.draw(st.integers(best, 400)), cases=cases)


def test_it_is_left_out_where_it_does_not_hold():
    """Tests that spans, three stages per device and frozen layers have no packing bound."""
    problem = heavy()
    certificate = packed(problem).certificate
    without_gradients = tuple(replace(edge, gradient_bytes=0) for edge in problem.profile.edges)
    for other in (
        replace(problem, options=replace(problem.options, objective="span")),
        replace(problem, options=replace(problem.options, max_stages_per_device=3)),
        replace(problem, profile=replace(problem.profile, edges=without_gradients)),
    ):
        assert packed(other).kind != "packing"
        with pytest.raises(ValueError, match="certificate: "):
            check_certificate(other, certificate)


def climbed(problem: Problem, *, reached: int | None, most: int) -> list[Packed]:
    """What climbing on from 1 finds in so many steps at most, with little effort at first."""
    least = Least(problem, CostModel(problem))
    if not applies_to(least):
        return []
    limit, params = None if reached is None else reached - least.optimizer_ns, BoundParams(max_s=0.01)
    return list(islice(raise_further(Boundaries(least), 1, make=Covering, reached=lambda: limit, params=params), most))


@settings(max_examples=shortened(60, whole=1000), deadline=None)
@given(rng=st.randoms(use_true_random=False), is_known=st.booleans())
def test_climbing_on_stays_below_the_best_plan(rng, is_known):
    """Tests that bounds that go on rise up to the optimum of tiny problems at most, each with cases that show it."""
    problem = timed(tiny_problem(rng))
    best = brute_force(problem)
    if best is None:
        return
    found = climbed(problem, reached=best if is_known else None, most=60)
    values = [packed.value for packed in found]
    assert values == sorted(values)
    assert not values or values[-1] + problem.profile.optimizer_ns <= best
    boundaries = Boundaries(Least(problem, CostModel(problem)))
    for each in found:
        deadline = each.value - 1
        assert not each.cases or is_out_of_reach(boundaries, deadline, cases=each.cases, trees=each.trees)


def test_a_bound_that_goes_on_has_a_certificate():
    """Tests that every step states the best bound so far, and that the last one is derived again."""
    problem = timed(starved(Random(109)))
    costs = CostModel(problem)
    first = make_bound(problem, costs)
    params = BoundParams(max_s=0.01)
    steps = raise_bound(costs, first, make_covering=Covering, reached=lambda: None, params=params)
    bounds = list(islice(steps, 200))
    values = [bound.value_ns for bound in bounds]
    assert values == sorted(values)
    assert values[-1] > first.value_ns
    assert check_certificate(problem, json.loads(json.dumps(bounds[-1].certificate))) == values[-1]


def test_what_make_bound_would_pack_may_be_packed_later():
    """Tests that the first step with as much effort as `make_bound` has gives its bound, and a certificate of it."""
    problem = timed(starved(Random(109)))
    costs, params = CostModel(problem), BoundParams(max_s=0.01, packing_per_s=20_000)
    whole = make_bound(problem, costs, time_limit_s=1.0, make_covering=Covering, params=params)
    quick = make_bound(problem, costs, time_limit_s=1.0, params=params)
    steps = raise_bound(costs, quick, make_covering=Covering, reached=lambda: None, first_effort=20_000, params=params)
    later = next(steps)
    assert quick.value_ns < whole.value_ns == later.value_ns
    assert check_certificate(problem, json.loads(json.dumps(later.certificate))) == later.value_ns
