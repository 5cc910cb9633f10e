"""What links can do, at most, by hand."""

from planner.bounds.typed_links import port_bandwidths, ring_bandwidths
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


def test_a_port_is_all_links_of_a_device():
    """Tests that the best connected device of a type counts: b with 9 + 5."""
    assert port_bandwidths(CLUSTER) == {"quick": 14, "slow": 4}
