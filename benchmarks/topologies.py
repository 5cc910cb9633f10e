"""Ways to connect the devices of a machine: random graphs, two levels, a ring, a hybrid cube mesh."""

from collections.abc import Callable
from itertools import combinations
from random import Random

from profiles.cluster import Cluster, Device, Link

Pairs = dict[tuple[int, int], int]
"""Bandwidth in bytes per second of every direct link, by its two ends in ascending order."""

FAST, MIDDLE, SLOW = 24_000_000_000, 12_000_000_000, 1_500_000_000
"""A doubled link, a single one, and the network between hosts."""


def random_graph(count: int, *, rng: Random) -> Pairs:
    """A random tree and as many further links as there are devices; 0.5 to 16 GB/s, log-uniform."""
    names = list(range(count))
    rng.shuffle(names)
    ends = [(names[number], names[rng.randrange(number)]) for number in range(1, count)]
    spare = list(combinations(range(count), 2))
    ends += rng.sample(spare, min(count, len(spare)))
    return {(min(pair), max(pair)): int(10 ** rng.uniform(8.7, 10.2)) for pair in ends}


def two_level(count: int, *, rng: Random) -> Pairs:
    """Hosts of four with fast links inside, slow ones between any two devices elsewhere; hosts in a random order."""
    places = list(range(count))
    rng.shuffle(places)
    return {(a, b): MIDDLE if places[a] // 4 == places[b] // 4 else SLOW for a, b in combinations(range(count), 2)}


def ring(count: int, *, rng: Random) -> Pairs:
    """A ring in a random order; every fourth link is a slow one."""
    places = list(range(count))
    rng.shuffle(places)
    ends = zip(places, (*places[1:], places[0]), strict=True)
    return {(min(pair), max(pair)): SLOW if number % 4 == 3 else MIDDLE for number, pair in enumerate(ends)}


def hybrid_cube_mesh(count: int, *, rng: Random) -> Pairs:
    """Eights of devices as in a DGX-1: two meshes of four, some links doubled, joined by four; slow links between."""
    del rng
    inside = ((0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2))
    cube = [(a + base, b + base, lanes) for base in (0, 4) for a, b, lanes in inside]
    cube += [(0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1)]
    pairs = {
        (a + base, b + base): FAST if lanes == 2 else MIDDLE
        for base in range(0, count, 8)
        for a, b, lanes in cube
        if b + base < count
    }
    pairs.update({(base - 8, base): SLOW for base in range(8, count, 8)})
    return pairs


TOPOLOGIES: dict[str, Callable[..., Pairs]] = {
    "random graph": random_graph,
    "two-level": two_level,
    "ring": ring,
    "hybrid cube mesh": hybrid_cube_mesh,
}
"""By name; each takes a number of devices and `rng`."""


def connect(devices: tuple[Device, ...], topology: str, *, seed: int = 0, latency_ns: int = 5_000) -> Cluster:
    """The devices joined by one of `TOPOLOGIES`; equal seeds give equal clusters."""
    pairs = TOPOLOGIES[topology](len(devices), rng=Random(f"{topology}-{len(devices)}-{seed}"))
    links = tuple(
        Link(a=devices[a].name, b=devices[b].name, bandwidth_bytes_per_s=bandwidth, latency_ns=latency_ns)
        for (a, b), bandwidth in sorted(pairs.items())
    )
    return Cluster(name=f"{topology}, {len(devices)} devices", devices=devices, links=links)
