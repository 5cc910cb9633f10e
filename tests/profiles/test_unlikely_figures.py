"""Units that are likelier mistaken than meant."""

from dataclasses import replace

import pytest

from profiles.cluster import Cluster, Device, Link
from profiles.load import load_workload
from profiles.unlikely_figures import unlikely_figures, unlikely_parts

DEVICES = tuple(Device(name=name, type="t", memory_bytes=80 * 2**30, host="h") for name in ("a", "b", "c"))
LINKS = tuple(Link(a=end, b="h", bandwidth_bytes_per_s=24 * 10**9, latency_ns=5_000) for end in ("a", "b", "c"))
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
