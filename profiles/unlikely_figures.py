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
    found = [f"no edge takes the output of layer {unused[0]!r}; is one missing?" + _more(unused)] if unused else []
    if light := [layer for layer in profile.layers if layer.parameter_bytes - layer.state_bytes > _MEMORY.start]:
        told = f"state_bytes = {light[0].state_bytes:,} is less than parameter_bytes = {light[0].parameter_bytes:,}"
        found.append(f"layer {light[0].name!r}: {told}; are the weights not in it?{_more(light)}")
    return found if cluster is None else [*found, *unlikely_figures(cluster), *_beside(profile, cluster)]


def _beside(profile: ModelProfile, cluster: Cluster) -> list[str]:
    """Times and sizes of a whole profile that are next to nothing for the cluster's links and devices."""
    costs = [cost for layer in profile.layers for cost in layer.costs]
    longest = max(cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns for cost in costs)
    latency = min((link.latency_ns for link in cluster.links), default=0)
    held = sum(layer.state_bytes + layer.stash_bytes for layer in profile.layers)
    memory = min(device.usable_bytes for device in cluster.devices)
    kinds = (
        (longest, 100, latency, f"no layer takes more than {longest:,} ns, no message less than {latency:,} ns"),
        (held or memory, 10**6, memory, f"all layers hold {held:,} bytes together, each device {memory:,} bytes"),
    )
    return [f"{said}; is the unit right?" for small, factor, large, said in kinds if small * factor < large]


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
