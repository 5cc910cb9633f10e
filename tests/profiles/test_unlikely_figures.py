"""Units that are likelier mistaken than meant."""

from dataclasses import replace
from typing import Any

import pytest

from profiles.cluster import Cluster, Device, Link
from profiles.load import load_workload
from profiles.unlikely_figures import unlikely_figures, unlikely_parts

DEVICES = tuple(Device(name=name, type="t", memory_bytes=80 * 2**30, host="h") for name in ("a", "b", "c"))
LINKS = tuple(Link(a=end, b="h", bandwidth_bytes_per_s=24 * 10**9, latency_ns=5_000) for end in ("a", "b", "c"))
TIMES = ("forward_ns", "input_grad_ns", "weight_grad_ns")
SIZES = ("parameter_bytes", "state_bytes", "stash_bytes", "weight_stash_bytes")
CLUSTER = Cluster(name="c", devices=DEVICES, links=LINKS)


def test_usual_figures_and_slow_links_are_not_doubted():
    """Tests that neither a fast card nor a link of 10 Mbit per second with half a second of latency is doubted."""
    slow = replace(LINKS[0], bandwidth_bytes_per_s=1_250_000, latency_ns=500_000_000)
    assert unlikely_figures(CLUSTER) == unlikely_figures(replace(CLUSTER, links=(slow, *LINKS[1:]))) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bandwidth_bytes_per_s": 24}, "link 'a' - 'h': bandwidth_bytes_per_s = 24 is 2.4e-08 GB/s"),
        ({"bandwidth_bytes_per_s": 24 * 10**12}, "bandwidth_bytes_per_s = 24,000,000,000,000 is 2.4e+04 GB/s"),
        ({"latency_ns": 5 * 10**9}, "link 'a' - 'h': latency_ns = 5,000,000,000 is 5 s"),
    ],
)
def test_links_in_another_unit_are_said_once(changes: dict[str, int], said: str):
    """Tests that a rate in gigabytes, bits or the like is said with its value in readable units, once for all links."""
    (sentence,) = unlikely_figures(replace(CLUSTER, links=tuple(replace(link, **changes) for link in LINKS)))
    assert said in sentence
    assert sentence.endswith("? (and 2 more such)")


@pytest.mark.parametrize(("memory", "reserved"), [(80, None), (80 * 2**40, None), (2**30, 2**30)])
def test_memory_in_another_unit_is_said(memory: int, reserved: int | None):
    """Tests that memory in gibibytes, too much of it, and less than what is reserved are said."""
    odd = replace(DEVICES[1], memory_bytes=memory, reserved_bytes=reserved)
    (sentence,) = unlikely_figures(replace(CLUSTER, devices=(DEVICES[0], odd, DEVICES[2])))
    assert sentence.startswith(f"device 'b': memory_bytes = {memory:,} is")


def test_an_edge_that_is_missing_is_asked_for():
    """Tests that a chain, and towers that meet, are usual; layers that nothing follows but the loss are named once."""
    profile = load_workload("demo:two-towers-estimate").profile
    assert unlikely_parts(profile, None) == []
    assert unlikely_parts(replace(profile, layers=profile.layers[::-1]), CLUSTER) == []
    (sentence,) = unlikely_parts(replace(profile, edges=()), CLUSTER)
    assert sentence.startswith(f"no edge takes the output of layer {profile.layers[0].name!r}; is one missing? (and ")


@pytest.mark.parametrize(
    ("divisor", "fields", "said"),
    [
        (10**6, TIMES, "no layer takes more than 20 ns, no message less than 10,000 ns; is the unit right?"),
        (1000, TIMES, None),
        (10**6, SIZES, "all layers hold 2,756 bytes together, each device 17,179,869,184 bytes; is the unit right?"),
        (1000, SIZES, None),
    ],
)
def test_a_profile_in_other_units_than_its_cluster_is_said(divisor: int, fields: tuple[str, ...], said: str | None):
    """Tests that milliseconds given as nanoseconds, and megabytes as bytes, are said; small models are not."""

    def divided(part: Any) -> dict[str, int]:
        return {name: -(-getattr(part, name) // divisor) for name in fields if hasattr(part, name)}

    workload = load_workload("demo:gnmt8-four-gpus")
    layers = tuple(
        replace(layer, costs=tuple(replace(cost, **divided(cost)) for cost in layer.costs), **divided(layer))
        for layer in workload.profile.layers
    )
    found = unlikely_parts(replace(workload.profile, layers=layers), workload.cluster)
    assert found == ([said] if said else [])


def test_weights_that_no_memory_is_stated_for_are_said():
    """Tests that a layer whose state is smaller than its weights is named once, and a mark of one byte is not."""
    profile = load_workload("demo:gnmt8-four-gpus").profile
    without = tuple(replace(layer, state_bytes=0) for layer in profile.layers)
    (sentence,) = unlikely_parts(replace(profile, layers=without), None)
    assert sentence.startswith(f"layer {without[0].name!r}: state_bytes = 0 is less than parameter_bytes = ")
    marks = tuple(replace(layer, parameter_bytes=1) for layer in without)
    assert unlikely_parts(replace(profile, layers=marks), None) == []
