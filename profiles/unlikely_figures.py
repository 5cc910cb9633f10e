"""What is likelier a mistake in a document than a machine or a model: it is said, and never refused."""

from collections.abc import Sequence

from profiles.cluster import Cluster
from profiles.model_profile import ModelProfile

_RATES, _MEMORY, _LATENCIES = range(10**6, 10**13), range(2**20, 2**42), range(10**9)
"""Bytes per second of a link, bytes that a plan may fill of a device, and nanoseconds before the first byte."""


def unlikely_parts(profile: ModelProfile, cluster: Cluster | None) -> list[str]:
    """A sentence about the first part of each kind that is odd, and how many more are like it."""
    used = {edge.producer for edge in profile.edges}
    *unused, _ = [layer.name for layer in profile.layers if layer.name not in used]  # that of the loss is one
    told = f"no edge takes the output of layer {unused[0]!r}; is one missing?" + _more(unused) if unused else ""
    return [*([told] if told else []), *([] if cluster is None else unlikely_figures(cluster))]


def _more(found: Sequence[object]) -> str:
    return f" (and {len(found) - 1} more such)" if len(found) > 1 else ""


def unlikely_figures(cluster: Cluster) -> list[str]:
    """The same of a cluster alone: likelier a mistake of units."""
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
        + _more(found)
        for found, field, unit, readable in kinds
        if found
    ]
