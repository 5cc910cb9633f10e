"""Subsets of the devices: prices, classes of alike ones, and the bound on money against brute force."""

from dataclasses import replace
from typing import Any

import pytest

from planner.decisions.price.device_kinds import DeviceKinds, micro_per_hour, price_of
from planner.problem import Options, PinnedLayer, Problem
from profiles.cluster import Cluster, Device
from tests.planner.builders import make_layer, make_link, make_problem


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
