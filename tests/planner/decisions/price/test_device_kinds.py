"""Subsets of the devices: prices, classes of alike ones, and the bound on money against brute force."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from planner.batch_problem import BatchProblem, batch_problem_of
from planner.decisions.price.bound import check_subsets, write_boxes
from planner.decisions.price.device_kinds import DeviceKinds, micro_per_hour, price_of
from planner.decisions.price.subsets import Subsets
from planner.device_subsets import problem_on, question_on
from planner.evidence.certificate import make_bound
from planner.layout.costs import CostModel
from planner.planning import SearchParams
from planner.planning.planning_params import SubsetsParams
from planner.problem import Options, PinnedLayer, Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from tests.long_runs import shortened
from tests.planner.brute_force import LIMIT, every_mapping, explore, make_tables
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.test_batch_problem import make_batch, random_batch
from tests.planner.test_batch_problem import make_layer as batch_layer
from tests.strategies import random_chain, random_plan, random_problem

SPEED = 10**9


def priced(problem: Problem, prices: dict[str, float], **options: Any) -> Problem:
    """The question of the least cost, with a price per device."""
    devices = tuple(replace(device, price_per_hour=prices[device.name]) for device in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices)
    return replace(problem, cluster=cluster, options=replace(problem.options, objective="cost", **options))


def star(names: str, **fields: Any) -> Problem:
    """Two layers, and devices around a switch."""
    links = [make_link(f"s {name}") for name in names.split()]
    return make_problem([make_layer("x"), make_layer("y")], links, switches=("s",), **fields)


def test_prices_are_whole_millionths():
    """Tests that a price is added up exactly, however it is written."""
    device = Device(name="a", type="gpu", memory_bytes=1, price_per_hour=2.123456)
    assert micro_per_hour(device) == 2_123_456
    assert micro_per_hour(replace(device, price_per_hour=None)) == 0
    assert replace(device, price_per_hour=2) == replace(device, price_per_hour=2.0)
    assert price_of(Cluster(name="c", devices=(device,)), ["a"]) == 2_123_456


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf"), 2e6, 0.1234567, "1", True])
def test_no_price(price: Any):
    """Tests that what is no price is refused with the device, the value and the remedy."""
    with pytest.raises(ValueError, match=r"device 'a': price_per_hour = .* is not a price; give a number"):
        Device(name="a", type="gpu", memory_bytes=1, price_per_hour=price)


def test_question_needs_prices():
    """Tests that money is minimised only where every device has a price, and that only then there is a deadline."""
    problem = star("a b")
    with pytest.raises(ValueError, match=r"device 'a' has no price_per_hour; state it"):
        replace(problem, options=Options(objective="cost"))
    with pytest.raises(ValueError, match=r"deadline_ns = 5 with objective = makespan; set objective to cost"):
        Options(deadline_ns=5)


def test_alike_devices_are_one_class():
    """Tests that leaves of a switch are alike; another price, link or a pinned layer makes a class of its own."""
    problem = star("a b c d")
    assert DeviceKinds(problem=problem).members == (("a", "b", "c", "d"),)
    dear = priced(problem, {"a": 1, "b": 2, "c": 1, "d": 2})
    assert DeviceKinds(problem=dear).members == (("a", "c"), ("b", "d"))
    slow = replace(problem.cluster, links=(replace(problem.cluster.links[0], latency_ns=9), *problem.cluster.links[1:]))
    assert DeviceKinds(problem=replace(problem, cluster=slow)).members == (("a",), ("b", "c", "d"))
    pinned = replace(problem, options=Options(pinned=(PinnedLayer(layer="x", device="b"),)))
    kinds = DeviceKinds(problem=pinned)
    assert (kinds.members, kinds.fewest) == ((("a", "c", "d"), ("b",)), (0, 1))


def test_devices_on_the_way_of_others_are_alone():
    """Tests that in a ring, where devices pass traffic on, each is a class of its own; in a mesh all are one."""
    layers = [make_layer("x"), make_layer("y")]
    ring = [make_link(ends) for ends in ("a b", "b c", "c d", "d a")]
    assert len(DeviceKinds(problem=make_problem(layers, ring)).members) == 4
    mesh = [*ring, make_link("a c"), make_link("b d")]
    assert DeviceKinds(problem=make_problem(layers, mesh)).members == (("a", "b", "c", "d"),)


def test_idle_devices_pass_traffic_on():
    """Tests that a plan takes as long on its own devices alone as among all of them."""
    rng, count = Random(7), 0
    while count < 25:
        problem = random_problem(rng)
        if problem.options.pinned or not problem.options.idle_devices:
            continue
        plan = random_plan(rng, problem)
        alone = problem_on(replace(problem, options=replace(problem.options, objective="makespan")), plan.devices)
        assert simulate(alone, plan).makespan_ns == simulate(problem, plan).makespan_ns
        count += 1


def small_problem(rng: Random) -> Problem:
    """A chain on up to three devices with prices, some of them alike, on random links or around a switch."""
    problem = random_chain(rng, sizes=(3, 3, 2), tight=rng.random() < 0.5)
    types = {name: rng.choice([0, 0.5, 1, 1, 2, 3.25]) for name in problem.cluster.device_types}
    memory = max(device.memory_bytes for device in problem.cluster.devices)
    devices = tuple(
        replace(
            device,
            memory_bytes=memory if rng.random() < 0.7 else device.memory_bytes,
            price_per_hour=types[device.type],
        )
        for device in problem.cluster.devices
    )
    cluster = replace(problem.cluster, devices=devices)
    if rng.random() < 0.6:
        link = Link(a="s", b="s0", bandwidth_bytes_per_s=rng.choice([SPEED, 4 * SPEED]), latency_ns=rng.randint(0, 3))
        links = tuple(replace(link, b=device.name) for device in devices)
        cluster = replace(cluster, links=links, switches=("s",))
    return replace(problem, cluster=cluster, options=replace(problem.options, objective="cost"))


def every_cost(problem: Problem) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Of every partition and mapping: a bound on its makespan, the price of its devices, and what `explore` needs."""
    times = replace(problem, options=replace(problem.options, objective="makespan", deadline_ns=None))
    for stages in every_mapping(replace(times, cluster=unlike(times.cluster))):
        tables = make_tables(times, stages)
        if tables is not None:
            used = {name for stage in stages for group in stage.replicas for name in group}
            yield int(explore(*tables, LIMIT, True)[0]), price_of(problem.cluster, used), tables


def unlike(cluster: Cluster) -> Cluster:
    """The same devices with memories that all differ, above what anything needs, so that no mapping is left out."""
    devices = tuple(replace(device, memory_bytes=10**9 + number) for number, device in enumerate(cluster.devices))
    return replace(cluster, devices=devices)


def least_cost(problem: Problem) -> int | None:
    """The least cost over all subsets, partitions, mappings and orders by the deadline; None if no plan fits."""
    latest = LIMIT if problem.options.deadline_ns is None else problem.options.deadline_ns + 1
    best: int | None = None
    for bound, price, tables in sorted(every_cost(problem), key=lambda each: each[0] * each[1]):
        limit = latest if best is None or not price else min(latest, -(-best // price))
        if bound < limit and (best is None or price * bound < best):
            found = int(explore(*tables, limit, False)[0])
            if found < limit:
                best = price * found
    return best


def test_bound_on_money_against_brute_force():
    """Tests that no plan on any subset of a random problem is below the bound, which its certificate proves anew."""
    rng, num_tight = Random(5), 0
    for _ in range(shortened(40, whole=1000)):
        problem = small_problem(rng)
        if rng.random() < 0.4:
            problem = replace(problem, options=replace(problem.options, deadline_ns=rng.randint(5, 120)))
        least = least_cost(problem)
        subsets = Subsets(problem, SearchParams(subsets=SubsetsParams(max_boxes=rng.randint(1, 9))))
        subsets.branch_evenly(has_time=lambda: True)
        if subsets.lower_bound is None:
            assert least is None
            continue
        certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=problem.options.deadline_ns)
        assert check_subsets(problem, certificate) == certificate["value"]
        assert least is None or certificate["value"] <= least
        num_tight += certificate["value"] == least
    assert num_tight > shortened(5, whole=100)


def priced_batch(rng: Random) -> BatchProblem:
    """A chain on two devices with prices, at two sizes of microbatches."""
    batch = random_batch(rng)
    prices = {device.name: rng.choice([0, 1, 2, 3.25]) for device in batch.cluster.devices}
    devices = tuple(replace(device, price_per_hour=prices[device.name]) for device in batch.cluster.devices)
    options = replace(batch.options, objective="cost", deadline_ns=rng.choice([None, rng.randint(20, 200)]))
    return replace(batch, cluster=replace(batch.cluster, devices=devices), options=options)


def test_bound_on_money_over_sizes_against_brute_force():
    """Tests that no plan of any size on any subset is below the bound of a global batch, which is proved anew."""
    rng, num_tight = Random(8), 0
    for _ in range(shortened(12, whole=1000)):
        question = priced_batch(rng)
        costs = [least_cost(problem.at_its_size()) for problem in question.candidates]
        least = min((cost for cost in costs if cost is not None), default=None)
        subsets = Subsets(question, SearchParams(subsets=SubsetsParams(max_boxes=rng.randint(1, 5))))
        subsets.branch_evenly(has_time=lambda: True)
        if subsets.lower_bound is None:
            assert least is None
            continue
        certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=question.options.deadline_ns)
        for problem in question.candidates:
            assert check_subsets(problem, certificate) == certificate["value"]
        assert least is None or certificate["value"] <= least
        num_tight += certificate["value"] == least
    assert num_tight > shortened(2, whole=100)


def test_sizes_are_those_of_all_devices():
    """Tests that a size that only some devices were measured at is none, whatever devices are left."""
    times = {1: 10, 2: 14, 4: 24}
    question = make_batch([batch_layer(name, times) for name in "xy"], memory_bytes=1000)
    slow = [
        replace(layer, costs=(*layer.costs, *(replace(cost, device_type="old") for cost in layer.costs[:2])))
        for layer in question.profile.layers
    ]
    first, second = question.cluster.devices
    mixed = replace(
        question,
        profile=replace(question.profile, layers=tuple(slow)),
        cluster=replace(question.cluster, devices=(first, replace(second, type="old"))),
    )
    assert mixed.sizes == (1, 2)
    assert question_on(mixed, ["a"]).sizes == (1, 2)
    assert batch_problem_of(problem_on(mixed.at(2), ["a"])) == question_on(mixed, ["a"])


def test_alike_subsets_have_one_bound():
    """Tests that the bound on the makespan does not depend on which devices of a class are taken."""
    rng, count = Random(11), 0
    while count < 25:
        problem = small_problem(rng)
        kinds = DeviceKinds(problem=problem)
        names = max(kinds.members, key=len)
        if len(names) < 2:
            continue
        values = []
        for kept in names[:2]:
            others = [name for name in problem.cluster.by_name if name not in names]
            alone = problem_on(problem, [kept, *others])
            values.append(make_bound(alone, CostModel(alone), time_limit_s=0.0).value_ns)
        assert values[0] == values[1]
        count += 1


def spoil_cover(certificate: dict[str, Any]) -> None:
    del certificate["boxes"][0]


def spoil_twice(certificate: dict[str, Any]) -> None:
    certificate["boxes"].append(certificate["boxes"][0])


def spoil_value(certificate: dict[str, Any]) -> None:
    certificate["value"] += 1


def spoil_proof(certificate: dict[str, Any]) -> None:
    box = certificate["boxes"][-1]
    box.pop("certificate", None)
    box["infeasible"] = "it does not fit"


def spoil_classes(certificate: dict[str, Any]) -> None:
    certificate["classes"] = [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_cover, "leave subsets out"),
        (spoil_twice, "two boxes hold"),
        (spoil_value, "but proves"),
        (spoil_proof, "nothing proves that no plan fits"),
        (spoil_classes, "are not those of the cluster"),
    ],
)
def test_spoilt_certificates(spoil: Any, words: str):
    """Tests that a certificate that leaves subsets out, or states more than it proves, is refused."""
    problem = priced(star("a b c"), dict.fromkeys("abc", 2.0))
    subsets = Subsets(problem, SearchParams())
    subsets.branch_evenly(has_time=lambda: True)
    certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=None)
    assert check_subsets(problem, certificate) == certificate["value"]
    spoil(certificate)
    with pytest.raises(ValueError, match=words):
        check_subsets(problem, certificate)


def test_a_box_without_a_size_is_refused():
    """Tests that with a global batch every box needs an entry of every size."""
    question = priced_batch(Random(2))
    subsets = Subsets(question, SearchParams())
    certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=None)
    del certificate["boxes"][0]["certificate"]["sizes"][0]
    with pytest.raises(ValueError, match=r"it has entries for \[.*\], not for"):
        check_subsets(question.candidates[0], certificate)
