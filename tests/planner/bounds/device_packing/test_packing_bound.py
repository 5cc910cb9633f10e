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
from planner.bounds.device_packing import packing_effort
from planner.bounds.device_packing.activation_lifetime import MAX_TRIED, ActivationLifetime, StayTimes
from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.device_loads import DeviceLoads
from planner.bounds.device_packing.packing_bound import PRICE, PackingCertificate, Split, applies_to, is_out_of_reach
from planner.bounds.device_packing.price_search import Packed, Refutation, raise_further, raise_packing_bound
from planner.bounds.device_packing.reduced_cost_paths import Priced, share_reduced_cost
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import Bound, check_certificate, make_bound, raise_bound, schedule_bound
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import make_plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from profiles.load import load_workload
from solver_models.covering import Covering
from tests.long_runs import examples, shortened
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import make_chain, plans_of
from tests.planner.plan_in_packing import follow
from tests.strategies import random_chain, random_problem, tiny_problem


def packed(problem: Problem) -> Bound:
    """The best bound, the packing bound included."""
    return make_bound(problem, CostModel(problem), make_covering=Covering)


def timed(problem: Problem) -> Problem:
    """The problem for the makespan, on single devices and with at most two stages on each."""
    most = min(problem.options.max_stages_per_device, 2)
    options = replace(problem.options, objective="makespan", max_width=1, max_stages_per_device=most)
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
    cases = Refutation(boundaries, Covering, most=63, effort=10**9).find(deadline)
    return cases is not None and is_out_of_reach(boundaries, deadline, cases=cases)


@settings(max_examples=examples(100), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_the_best_plan_is_never_ruled_out(rng):
    """Tests that the optimum of tiny problems is not denied, however many cases are told apart."""
    problem = timed(tiny_problem(rng))
    best = brute_force(problem)
    if best is not None:
        assert not is_ruled_out(problem, best)


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


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_plan_is_ruled_out(rng):
    """Tests that no random plan of random problems is denied, even in the least memory that it fits."""
    for tight, _, value in plans_of(rng, timed(random_problem(rng)), tries=2):
        assert not is_ruled_out(tight, value)


@settings(max_examples=examples(80), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_plans_survive_every_rule(rng):
    """Tests that no stage of a random plan and no load of its devices is left out, in the least memory that it fits."""
    problem = timed(rng.choice([random_problem, starved])(rng))
    if not applies_to(Least(problem, CostModel(problem))):
        return
    for tight, plan, value in plans_of(rng, problem, tries=2):
        if fits(tight, plan):
            follow(tight, plan, value=value, depth=4)


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


def test_five_kinds_of_devices_are_four_at_most():
    """Tests that devices of many speeds are taken together by speed, every one in one kind."""
    kinds = Boundaries(Least(unlike(5, 1, 4, 2, 3), CostModel(unlike(5, 1, 4, 2, 3)))).kinds
    assert [[name for name, _ in kind.members] for kind in kinds] == [["slow1", "slow2"], ["slow3", "slow4"], ["slow5"]]
    assert [kind.count for kind in kinds] == [2, 2, 1]


def test_whole_plans_are_left_to_the_schedule_bound():
    """Tests that a case without prices is closed where every plan that is left is late by the schedule bound."""
    boundaries = Boundaries(Least(few_in_flight(), CostModel(few_in_flight())))
    case = PackingCertificate((), None)
    assert is_out_of_reach(boundaries, 249, cases=[case])
    assert not is_out_of_reach(boundaries, 250, cases=[case])


def test_nothing_is_begun_without_time():
    """Tests that the clock ends the search between two rounds, and that what was found until then holds."""
    boundaries = Boundaries(Least(heavy(5, 3), CostModel(heavy(5, 3))))
    asked: list[bool] = []

    def until_the_third() -> bool:
        asked.append(True)
        return len(asked) < 3

    start = 1
    found = raise_packing_bound(boundaries, start, make=Covering, effort=10**8, has_time=until_the_third)
    assert len(asked) < 8
    assert found.value == start or is_out_of_reach(boundaries, found.value - 1, cases=found.cases)


def test_a_case_can_be_left_half_way():
    """Tests that time may be over at any step of a case, which then proves nothing, and that more time proves it."""
    boundaries = Boundaries(Least(heavy(5, 3), CostModel(heavy(5, 3))))
    found = list[bool]()
    for most in range(0, 200, 7):
        asked: list[bool] = []

        def has_time(asked: list[bool] = asked, most: int = most) -> bool:
            asked.append(True)
            return len(asked) <= most

        refutation = Refutation(boundaries, Covering, most=7, effort=10**6, has_time=has_time)
        found.append(refutation.find(200) is not None)
        assert found[-1] or len(asked) <= most + 2
    assert found == sorted(found)
    assert (found[0], found[-1]) == (False, True)


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


def test_too_many_pairs_are_not_begun():
    """Tests that with too little effort nothing is claimed, and with enough the same as ever."""
    boundaries = Boundaries(Least(heavy(), CostModel(heavy())))
    assert raise_packing_bound(boundaries, 200, make=Covering, effort=0) == Packed(200, [], [])
    found = raise_packing_bound(boundaries, 200, make=Covering, effort=10**6)
    assert found.value == 240
    assert is_out_of_reach(boundaries, found.value - 1, cases=found.cases)


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


@given(st.randoms(use_true_random=False))
def test_waste_is_shared_out(rng):
    """Tests that stages are charged no more than the waste of any load, and none less than half of its least."""
    count, num_stages = rng.randint(1, 30), rng.randint(2, 8)
    first = numpy.array([rng.randrange(num_stages - 1) for _ in range(count)])
    second = numpy.array([rng.choice((-1, rng.randint(k + 1, num_stages - 1))) for k in first.tolist()])
    zeros = numpy.zeros(count, numpy.int64)
    loads = DeviceLoads(
        first=first, second=second, first_latest=zeros, second_latest=zeros, follows=zeros > 0, kind=zeros, room=zeros
    )
    waste = numpy.array([rng.randint(0, 100) for _ in range(count)])
    least, (of_first, of_second) = share_reduced_cost(
        Priced(loads=loads, reduced_cost=waste, slack=0), num_stages=num_stages
    )
    pairs = second >= 0
    assert (of_first + of_second == waste).all()
    assert (least[first] <= of_first).all()
    assert (least[second[pairs]] <= of_second[pairs]).all()
    assert (least[first[~pairs]] <= waste[~pairs]).all()
    for stage in set(first.tolist()) | set(second[pairs].tolist()):
        own = [w // 2 if j >= 0 else w for k, j, w in zip(first, second, waste, strict=True) if stage in (k, j)]
        assert least[stage] >= min(own) >= 0


def test_two_stages_that_share_one_friend():
    """Tests that of two stages which only go well with the same third one, either causes waste."""
    first, second = numpy.array([0, 0, 1, 0, 1, 2]), numpy.array([2, 1, 2, -1, -1, -1])
    zeros = numpy.zeros(6, numpy.int64)
    loads = DeviceLoads(
        first=first, second=second, first_latest=zeros, second_latest=zeros, follows=zeros > 0, kind=zeros, room=zeros
    )
    waste = numpy.array([0, 80, 20, 90, 90, 90])
    least, _ = share_reduced_cost(Priced(loads=loads, reduced_cost=waste, slack=100), num_stages=3)
    assert least.tolist() == [0, 19, 0]


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


def test_shares_of_a_microbatch():
    """Tests that three replicas that feed two give the middle one's samples to both, and the others' to one."""
    received, given = Boundaries(Least(heavy(4, 3), CostModel(heavy(4, 3)))).shares
    assert (received[3][2], given[3][2]) == (2, 1)
    assert (received[1][3], given[1][3]) == (1, 1)
    assert (received[2][2], given[2][2]) == (2, 2)


def test_heads_do_not_fall():
    """Tests that narrowing down only raises heads and closes stages."""
    least = Least(heavy(5, 3), CostModel(heavy(5, 3)))
    boundaries = Boundaries(least)
    refutation = Refutation(boundaries, Covering, most=7, effort=10**6)
    reach = [refutation.find(deadline) is not None for deadline in range(150, 300, 10)]
    assert reach == sorted(reach, reverse=True)
    assert numpy.array(reach).any()


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
    for packed_now in found:
        assert not packed_now.cases or is_out_of_reach(boundaries, packed_now.value - 1, cases=packed_now.cases)


def test_a_deadline_that_plans_pass_for_is_given_up():
    """Tests that climbing on ends by itself, next to the least deadline that the schedule bound lets plans pass for."""
    problem = heavy(5, 3)
    boundaries = Boundaries(Least(problem, CostModel(problem)))
    found = climbed(problem, reached=1000, most=10**4)
    assert len(found) < 10**4
    assert any(packed_now.timely for packed_now in found)
    refutation = Refutation(boundaries, Covering, most=255, effort=10**9)
    assert refutation.find(found[-1].value - 1) is not None
    assert refutation.find(found[-1].value + 2) is None


@pytest.mark.parametrize("wanted", [1, 2, 4])
def test_as_many_plans_pass_as_are_wanted(wanted):
    """Tests that the search for cases goes on until so many whole plans pass, all of them different."""
    boundaries = Boundaries(Least(heavy(5, 3), CostModel(heavy(5, 3))))
    refutation = Refutation(boundaries, Covering, most=255, effort=10**9, wanted=wanted)
    assert refutation.find(300) is None
    assert len(set(refutation.timely)) == len(refutation.timely) == refutation.num_passed == wanted


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


def cut_in_two() -> tuple[Problem, dict[str, Any]]:
    """A problem whose bound takes several cases, and their certificate."""
    problem = heavy(7, 3)
    return problem, dict(packed(problem).certificate)


def test_no_more_is_made_than_is_checked(monkeypatch):
    """Tests that whatever may be looked at, what is made is checked with that, and what takes more is refused."""
    problem, whole = cut_in_two()
    values = []
    for most in (100, 1_000, 10_000):
        monkeypatch.setattr(packing_effort, "MAX_EFFORT", most)
        bound = packed(problem)
        values.append(bound.value_ns)
        assert check_certificate(problem, bound.certificate) == bound.value_ns
        if bound.kind != "packing":
            with pytest.raises(ValueError, match=f"^certificate: cases .* more than {4 * most:,} steps; .* again"):
                check_certificate(problem, whole)
    assert values == sorted(values)
    assert values[0] < values[-1] == whole["value_ns"]


def stays(rng: Random, size: int) -> StayTimes:
    """Stages with random times and bytes."""

    def numbers(most: int) -> Any:
        return numpy.array([rng.randint(0, most) for _ in range(size)])

    return StayTimes(
        stay=numbers(99), forward=numbers(99), rest=numbers(99), tail=numbers(9), held=numbers(9), stash=numbers(9),
        kept=numbers(9), rounded=numbers(0),
    )  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_fillings_are_never_underrated(rng):
    """Tests that what fits of two stages is what trying all says, or, where very many fit, somewhat more."""
    count, size = rng.choice([4, 40]), 12
    free = numpy.array([rng.randint(0, 200) for _ in range(size)])
    is_nested = numpy.array([rng.random() < 0.5 for _ in range(size)])
    first, second = stays(rng, size), stays(rng, size)
    residence = ActivationLifetime(
        count=count, deadline=999, nested=is_nested, free=free, between=free, first=first, second=second
    )
    for found, sizes, worth, nested, inside in (
        (residence.filled(), (first.held, second.held), (first.held, second.held), is_nested, 0),
        (residence.begun(), (first.held, second.held), (first.forward, second.forward), is_nested, is_nested),
        (residence.pending(), (first.kept, second.kept), (first.rest, second.rest), 0 * is_nested, 0),
    ):
        least = numpy.broadcast_to(inside, free.shape)
        for place, most in enumerate(found.tolist()):
            fitting = [
                (a * worth[0][place] + b * worth[1][place], a)
                for a in range(count + 1)
                for b in range(int(least[place]), (a if nested[place] else count) + 1)
                if a * sizes[0][place] + b * sizes[1][place] <= free[place]
            ]
            best, _ = max(fitting, default=(0, 0))
            assert best <= most <= best + worth[0][place] + 2 * worth[1][place]
            assert most == best or max(a for _, a in fitting) > MAX_TRIED
