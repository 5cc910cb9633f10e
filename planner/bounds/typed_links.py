"""What links can do for devices of given types, at most."""

from collections import Counter

import numpy

from planner.bounds.minimum_costs import Integers
from profiles.cluster import Cluster


def ring_bandwidths(cluster: Cluster, types: list[str]) -> Integers:
    """[devices of the first type, of the second, ...] bytes per second of the slowest link of a ring, at most.

    The widest links that connect so many of each type decide: every ring lies within one part that they connect.
    """
    ends = {device.name: device.name for device in cluster.devices}
    members = {device.name: tuple(int(device.type == name) for name in types) for device in cluster.devices}
    nothing = (0,) * len(types)
    found = numpy.zeros([sum(column) + 1 for column in zip(*members.values(), strict=True)], dtype=numpy.int64)

    def part_of(end: str) -> str:
        ends.setdefault(end, end)
        while ends[end] != end:
            ends[end] = end = ends[ends[end]]
        return end

    for link in sorted(cluster.links, key=lambda link: -link.bandwidth_bytes_per_s):
        a, b = part_of(link.a), part_of(link.b)
        if a != b:
            ends[a] = b
            members[b] = tuple(map(sum, zip(members.get(a, nothing), members.get(b, nothing), strict=True)))
            within = found[tuple(slice(count + 1) for count in members[b])]
            within[within == 0] = link.bandwidth_bytes_per_s
    return found


def port_bandwidths(cluster: Cluster) -> dict[str, int]:
    """Per type: bytes per second that enter a device over all its links, or leave it, at most."""
    total = Counter[str]()
    for link in cluster.links:
        total[link.a] += link.bandwidth_bytes_per_s
        total[link.b] += link.bandwidth_bytes_per_s
    most = dict[str, int]()
    for device in cluster.devices:
        most[device.type] = max(most.get(device.type, 0), total[device.name])
    return most
