"""One line about a discovery: what was told, what was left out, and what is assumed."""

from collections import Counter

from profiles.discovery.hosts import FoundHosts, HostFacts, NominalSpeeds, describe_left_out


def describe(found: FoundHosts, *, speeds: NominalSpeeds, is_measured: bool = False) -> str:
    """`2 nodes x 8 3090; assumed: 24 GiB each, 12.5 GB/s between hosts`; `is_measured`: links are."""
    parts = [_count(found)]
    if found.left_out:
        parts.append(f"left out: {describe_left_out(found.left_out)}")
    parts += found.notes
    assumed = [*_memory(found), *found.assumed, *(() if is_measured else _speeds(found, speeds))]
    if assumed:
        parts.append(f"assumed: {', '.join(assumed)}")
    return "; ".join(parts)


def _count(found: FoundHosts) -> str:
    alike = Counter(_devices(host) for host in found.hosts)
    return ", ".join(f"{count} node{'s' * (count > 1)} x {what}" for what, count in alike.items())


def _devices(host: HostFacts) -> str:
    return " + ".join(f"{n} {kind}" for kind, n in Counter(device.type for device in host.devices).items())


def _memory(found: FoundHosts) -> list[str]:
    """Memory that no source told, and what is reserved where nobody measured it."""
    devices = [device for host in found.hosts for device in host.devices]
    assumed = Counter(device.memory_bytes for device in devices if device.is_memory_assumed)
    each = " each" if len(devices) > 1 else ""
    sizes = [f"{size / 2**30:.4g} GiB{each}" for size in assumed]
    return [*sizes, *(["1 GiB + 6 % of it reserved"] if any(device.reserved_bytes for device in devices) else ())]


def _speeds(found: FoundHosts, speeds: NominalSpeeds) -> list[str]:
    told = [f"{speeds.network_bytes_per_s / 1e9:.4g} GB/s between hosts"] if len(found.hosts) > 1 else []
    told.append(f"{speeds.host_bytes_per_s / 1e9:.4g} GB/s from a device to its host")
    if any(host.nvlink_domains or host.nvlink_bytes_per_s for host in found.hosts):
        told.append("NVLink at its nominal speed")
    return told
