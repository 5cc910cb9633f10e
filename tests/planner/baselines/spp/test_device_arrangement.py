"""The order in which SPP lines up the devices: tests of planner/baselines/spp/device_arrangement.py."""

from itertools import combinations, pairwise, permutations
from random import Random

import networkx

from benchmarks.topologies import connect
from planner.baselines.spp.device_arrangement import minimum_cut, order_devices
from profiles.cluster import Cluster, Device, Link


def test_minimum_cut_is_global():
    """Tests that the recursive order's cut is no heavier than any other, on random graphs of six devices."""
    rng = Random(7)
    for _ in range(60):
        graph = networkx.gnp_random_graph(6, 0.6, seed=rng.randrange(10**6))
        graph = networkx.relabel_nodes(graph, str)
        names = sorted(graph)
        for a, b in graph.edges:
            graph[a][b]["weight"] = rng.randint(1, 9)
        near, far = minimum_cut(graph, names)
        assert sorted(near + far) == names
        assert near
        assert far
        weights = [
            networkx.cut_size(graph, side, weight="weight")
            for size in range(1, 6)
            for side in combinations(names, size)
        ]
        assert networkx.cut_size(graph, near, weight="weight") == min(weights)


def test_device_order_keeps_hosts_together():
    """Tests that on two levels no host is split, however its devices are listed."""
    devices = tuple(Device(name=f"d{number}", type="x", memory_bytes=1) for number in range(12))
    cluster = connect(devices, "two-level", seed=3)
    order = order_devices(cluster, num_bytes=10**6)
    fast = {frozenset((link.a, link.b)) for link in cluster.links if link.bandwidth_bytes_per_s > 10**10}
    assert sorted(order) == sorted(device.name for device in devices)
    inside = [frozenset(pair) in fast for pair in pairwise(order)]
    assert [number for number, near in enumerate(inside) if not near] == [3, 7]


def test_device_order_follows_a_chain():
    """Tests that devices linked in a row, listed in any order, come out in that row."""
    for listed in permutations("abcd"):
        devices = tuple(Device(name=name, type="x", memory_bytes=1) for name in listed)
        links = tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**9, latency_ns=1000) for a, b in pairwise("abcd"))
        order = order_devices(Cluster(name="row", devices=devices, links=links), num_bytes=1000)
        assert "".join(order) in ("abcd", "dcba")
