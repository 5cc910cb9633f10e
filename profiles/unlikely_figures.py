"""Figures of a cluster that are likelier a mistake of units than a machine: they are said, and never refused."""

from profiles.cluster import Cluster

_RATES, _MEMORY, _LATENCIES = range(10**6, 10**13), range(2**20, 2**42), range(10**9)
"""Bytes per second of a link, bytes that a plan may fill of a device, and nanoseconds before the first byte."""


def unlikely_figures(cluster: Cluster) -> list[str]:
    """A sentence about the first figure of each kind, and how many more are like it."""
    ends = [(f"link {link.a!r} - {link.b!r}", link) for link in cluster.links]
    rates = [(name, link.bandwidth_bytes_per_s) for name, link in ends if link.bandwidth_bytes_per_s not in _RATES]
    latencies = [(name, link.latency_ns) for name, link in ends if link.latency_ns not in _LATENCIES]
    sizes = [(f"device {d.name!r}", d.memory_bytes) for d in cluster.devices if d.usable_bytes not in _MEMORY]
    kinds = (
        (rates, "bandwidth_bytes_per_s", 1e9, "GB/s"),
        (latencies, "latency_ns", 1e9, "s"),
        (sizes, "memory_bytes", 2.0**30, "GiB, reserved memory included"),
    )
    return [
        f"{found[0][0]}: {field} = {found[0][1]:,} is {found[0][1] / unit:.3g} {readable}; is the unit right?"
        + (f" (and {len(found) - 1} more such)" if len(found) > 1 else "")
        for found, field, unit, readable in kinds
        if found
    ]
