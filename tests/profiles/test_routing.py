"""Shortest paths, one at a time and very many at once: tests of profiles/routing.py."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.routing import DirectedLink, Network

NODES = 5


def link(tail: int, head: int, *, latency: int = 0, bandwidth: int = 10**9) -> DirectedLink:
    """A way whose resource does not matter here."""
    return DirectedLink(tail, head, latency, bandwidth, 0)


def test_bytes_and_latency_decide():
    """Tests that small messages go by the quick way, large ones by the wide way, and ties over fewer links."""
    network = Network(
        3, [link(0, 2, latency=10), link(0, 1, latency=20, bandwidth=10**10), link(1, 2, bandwidth=10**10)]
    )
    assert network.shortest_path(0, 2, num_bytes=1) == [0]
    assert network.shortest_path(0, 2, num_bytes=1000) == [1, 2]
    even = Network(3, [link(0, 1, latency=5), link(1, 2, latency=5), link(0, 2, latency=10)])
    assert even.shortest_path(0, 2, num_bytes=0) == [2]
    assert even.shortest_path(1, 1, num_bytes=0) == []
    with pytest.raises(KeyError):
        even.shortest_path(2, 0, num_bytes=0)


@given(
    st.lists(
        st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.integers(0, 4), st.integers(1, 3)),
        min_size=1,
        max_size=14,
    ),
    st.sampled_from([0, 1, 7]),
)
def test_many_at_once_are_those_of_one_at_a_time(ways: list[tuple[int, int, int, int]], num_bytes: int):
    """Tests that paths found at once are the heaps' paths, wherever one path is the only shortest one."""
    network = Network(
        NODES, [link(a, b, latency=n, bandwidth=w * 10**9) for a, b, n, w in ways if a != b] or [link(0, 1)]
    )
    wanted = [(a, b, num_bytes) for a in range(NODES) for b in range(NODES) if a != b]
    for (a, b, _), path in network.paths(wanted).items():
        assert network.shortest_path(a, b, num_bytes=num_bytes) == path


def test_leaves_have_the_paths_of_their_neighbour():
    """Tests that sparing searches nodes with one neighbour changes no path: hosts on two spines, devices on hosts.

    Ways that nobody takes give every node of the second network several neighbours, so that it has no leaves.
    """
    rng = Random(1)
    pairs = [(device, 9 + device // 3) for device in range(9)] + [(9 + n, 12 + n % 2) for n in range(3)]
    pairs += [(9 + n, 13 - n % 2) for n in range(3)] + [(12, 13), (0, 5)]
    ways = [link(*ends, latency=rng.randint(0, 2)) for a, b in pairs for ends in ((a, b), (b, a))]
    slow = [link(a, b, latency=10**10, bandwidth=1) for a in range(14) for b in range(14) if a != b]
    network, full = Network(14, ways), Network(14, [*ways, *slow])
    assert len(network.leaves) == 7
    assert not full.leaves
    wanted = [(a, b, size) for a in range(14) for b in range(14) if a != b for size in (0, 10**6, 2**40)]
    found = network.paths(wanted)
    for a, b, size in wanted:
        path = network.shortest_path(a, b, num_bytes=size)
        assert path == full.shortest_path(a, b, num_bytes=size) == found.get((a, b, size), path)
    tables, same = (each.tables(9, num_bytes=7, direct={(0, 5): ways.index(ways[-2])}) for each in (network, full))
    assert all((one == other).all() for one, other in zip(tables, same, strict=True))
