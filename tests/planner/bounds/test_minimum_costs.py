"""Tests of planner/bounds/minimum_costs.py."""

from planner.bounds.minimum_costs import best_bandwidths, best_latencies
from profiles.cluster import Cluster, Device, Link


def test_rings_across_hosts_use_the_slow_link():
    """Tests that a ring of more devices than a host holds is no faster than the link between hosts."""
    names = [f"d{i}" for i in range(4)]
    links = [Link(a=a, b=b, bandwidth_bytes_per_s=12, latency_ns=1) for a, b in (("d0", "d1"), ("d2", "d3"))]
    links.append(Link(a="d1", b="d2", bandwidth_bytes_per_s=1, latency_ns=50))
    devices = tuple(Device(name=name, type="gpu", memory_bytes=1) for name in names)
    cluster = Cluster(name="hosts", devices=devices, links=tuple(links))
    assert best_bandwidths(cluster) == [0, 0, 12, 1, 1]
    assert best_latencies(cluster) == [0, 0, 1, 50, 50]
