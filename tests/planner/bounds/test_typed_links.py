"""What links can do, at most, by hand."""

from dataclasses import replace

from planner.bounds.typed_links import least_latencies, message_rates, ring_bandwidths
from profiles.cluster import Cluster, Device, Link

CLUSTER = Cluster(
    name="two hosts",
    devices=tuple(
        Device(name=name, type=device_type, memory_bytes=1)
        for name, device_type in {"a": "quick", "b": "quick", "c": "slow", "d": "slow"}.items()
    ),
    links=(
        Link(a="a", b="b", bandwidth_bytes_per_s=9),
        Link(a="b", b="switch", bandwidth_bytes_per_s=5),
        Link(a="c", b="switch", bandwidth_bytes_per_s=4),
        Link(a="d", b="switch", bandwidth_bytes_per_s=2),
    ),
    switches=("switch",),
)


def test_a_ring_is_as_quick_as_the_links_that_join_its_devices():
    """Tests that the pair a, b has its own link, that c joins it at 4, and d at 2.

    a =9= b -5- switch -4- c
                   |
                   2
                   d
    """
    found = ring_bandwidths(CLUSTER, ["quick", "slow"])
    assert found.tolist() == [[9, 4, 2], [9, 4, 2], [9, 4, 2]]


def test_messages_are_as_quick_as_links_of_both_ends():
    """Tests that b reaches quick devices with 9 + 5, slow ones with 4 + 4, and c no device with more than 4."""
    found = message_rates(CLUSTER)
    assert found == {
        ("quick", "quick"): 14,
        ("quick", "slow"): 8,
        ("slow", "quick"): 4,
        ("slow", "slow"): 4,
    }


def test_a_message_waits_on_a_link_of_the_device():
    """Tests that the least of all links of a type's devices counts, and that no link has no latency."""
    links = tuple(replace(link, latency_ns=10 + number) for number, link in enumerate(CLUSTER.links))
    assert least_latencies(replace(CLUSTER, links=links)) == {"quick": 10, "slow": 12}
    assert least_latencies(replace(CLUSTER, links=(), devices=CLUSTER.devices[:1], switches=())) == {"quick": 0}
