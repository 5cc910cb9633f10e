"""What links can do for devices of given types, at most."""

from collections import Counter
from itertools import product

import numpy

from planner.bounds.minimum_costs import Integers, joined_parts
from profiles.cluster import Cluster, Link


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


def message_rates(cluster: Cluster) -> dict[tuple[str, str], int]:
    """[type, that of partners] bytes per second that enter a device over all its links, or leave it, at most.

    No message is faster than a link of its partner.
    """
    widths = {
        name: [link.bandwidth_bytes_per_s for link in links] for name, links in _links_of_devices(cluster).items()
    }
    widest = Counter[str]()
    for device in cluster.devices:
        widest[device.type] = max(widest[device.type], *widths[device.name], 0)
    found = dict.fromkeys(product(widest, widest), 0)
    for device, partner in product(cluster.devices, widest):
        total = sum(min(width, widest[partner]) for width in widths[device.name])
        found[device.type, partner] = max(found[device.type, partner], total)
    return found


def least_latencies(cluster: Cluster) -> dict[str, int]:
    """Per type: nanoseconds that a message from or to a device waits on its own link, at least."""
    links, found = _links_of_devices(cluster), dict[str, int]()
    for device in cluster.devices:
        least = min((link.latency_ns for link in links[device.name]), default=0)
        found[device.type] = min(found.get(device.type, least), least)
    return found


def _links_of_devices(cluster: Cluster) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {device.name: [] for device in cluster.devices}
    for link in cluster.links:
        for end in {link.a, link.b} & found.keys():
            found[end].append(link)
    return found
