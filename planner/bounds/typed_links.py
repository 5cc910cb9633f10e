"""What links can do for devices of given types, at most."""

from collections import Counter

import numpy

from planner.bounds.minimum_costs import Integers, joined_parts
from profiles.cluster import Cluster


def ring_bandwidths(cluster: Cluster, types: list[str]) -> Integers:
    """[devices of the first type, of the second, ...] bytes per second of the slowest link of a ring, at most.

    The widest links that connect so many of each type decide: every ring lies within one part that they connect.
    """
    counts = Counter(device.type for device in cluster.devices)
    found = numpy.zeros([counts[name] + 1 for name in types], dtype=numpy.int64)
    widest_first = sorted(cluster.links, key=lambda link: -link.bandwidth_bytes_per_s)
    for link, members in joined_parts(cluster, widest_first):
        within = found[tuple(slice(members[name] + 1) for name in types)]
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
