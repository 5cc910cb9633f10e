"""Measured links in place of nominal ones: tests of profiles/discovery/measured.py."""

import pytest

from profiles.discovery.hostfile import parse_hostfile
from profiles.discovery.hosts import (
    DeviceDefaults,
    make_cluster,
)
from profiles.discovery.measured import with_measured_links
from profiles.measure.links import LinkTables, PairTable, Place
from tests.profiles.discovery.test_hostfile import GIB


def test_measured_links_take_the_place_of_nominal_ones():
    """Tests that devices stay as discovered, links become those of the benchmark, and an unmeasured device is named."""
    text = "n0 slots=2\nn1 slots=1\n"
    hosts = parse_hostfile(text, sizes=DeviceDefaults(memory_bytes=80 * GIB), kind="gpu").hosts
    cluster = make_cluster("three", hosts)
    table = ((1024, 11_000), (2**20, 1_060_000))
    places = tuple(Place(name=f"rank{n}", host=h, type="cpu", memory_bytes=1) for n, h in enumerate(["n1", "n0", "n0"]))
    pairs = tuple(PairTable(a=a, b=b, one_way=table) for a, b in ((0, 1), (0, 2), (1, 2)))
    tables = LinkTables(places=places, pairs=pairs)
    found = with_measured_links(cluster, tables)
    assert found.devices == cluster.devices
    assert {frozenset((link.a, link.b)) for link in found.links} == {
        frozenset(pair) for pair in (("n1-0", "n0-0"), ("n1-0", "n0-1"), ("n0-0", "n0-1"))
    }
    assert all(link.bandwidth_bytes_per_s == pytest.approx(1e9, rel=0.02) for link in found.links)
    with pytest.raises(ValueError, match="host n0 was measured with 1 places, but has 2 devices"):
        with_measured_links(cluster, LinkTables(places=places[:2], pairs=pairs[:1]))
