"""Figures of a cluster that are likelier a mistake of units than a machine: they are said, and never refused."""

from collections.abc import Iterator

from profiles.cluster import Cluster

_RATES = range(10**6, 10**13)
"""Bytes per second of a link, from a slow wide-area network to beyond what any card has."""
_MEMORY = range(2**20, 2**42)
"""Bytes that a plan may fill of a device."""
_LONGEST_NS = 10**9
"""A second before the first byte arrives."""


def unlikely_figures(cluster: Cluster) -> list[str]:
    """A sentence about the first figure of each kind, and how many more are like it."""
    kinds: dict[str, list[str]] = {}
    for kind, sentence in _doubts(cluster):
        kinds.setdefault(kind, []).append(sentence)
    return [said[0] + (f" (and {len(said) - 1} more such)" if len(said) > 1 else "") for said in kinds.values()]


def _doubts(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Each figure that is out of the usual, by the unit that may be mistaken."""
    for link in cluster.links:
        rate, name = link.bandwidth_bytes_per_s, f"link {link.a!r} - {link.b!r}"
        if rate not in _RATES:
            yield (
                "B/s",
                f"{name}: bandwidth_bytes_per_s = {rate:,} is {rate / 1e9:.2g} GB/s; are these bytes per second?",
            )
        if link.latency_ns >= _LONGEST_NS:
            yield (
                "ns",
                f"{name}: latency_ns = {link.latency_ns:,} is {link.latency_ns / 1e9:.3g} s; are these nanoseconds?",
            )
    for device in cluster.devices:
        usable = device.memory_bytes - (device.reserved_bytes or 0)
        if usable not in _MEMORY:
            told = f"device {device.name!r}: memory_bytes = {device.memory_bytes:,} leaves {usable / 2**30:.4g} GiB"
            yield "bytes", f"{told} to plans; are these bytes?"
