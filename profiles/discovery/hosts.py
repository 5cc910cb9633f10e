"""From what is known about hosts to a cluster: devices by host and number, links at nominal speeds until measured."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from profiles.cluster import Cluster, Device, Link, assumed_reserve_bytes
from profiles.discovery.switch_tree import SwitchTree, make_switch_tree

NVLINK_LANE_BYTES_PER_S = 25_000_000_000
"""One lane of NVLink, each direction (third and fourth generation)."""
NVLINK_LATENCY_NS, HOST_LATENCY_NS, NETWORK_LATENCY_NS, SWITCH_LATENCY_NS = 2_000, 5_000, 10_000, 1_000
"""What is assumed until links are measured; the last between two switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDevice:
    """One device of a host."""

    type: str
    """What its layers' costs are filed under."""
    memory_bytes: int
    """Memory of the device."""
    cores: int = 1
    """Cores that belong to it."""
    reserved_bytes: int = 0
    """What of its memory a plan may not fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One host as its scheduler, or itself, describes it."""

    name: str
    """As the launcher calls it."""
    devices: tuple[HostDevice, ...]
    """In the order of their numbers."""
    nvlink_lanes: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Lanes between two devices (lower number first) that NVLink joins."""
    switches: tuple[str, ...] = ()
    """The switches above it, the outermost first; empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NominalSpeeds:
    """Speeds that stand until the link benchmark fills in measured ones."""

    host_bytes_per_s: int = 24_000_000_000
    """Between a device and the rest of its host."""
    network_bytes_per_s: int = 12_500_000_000
    """Between a host and the network."""
    oversubscription: float = 1.0
    """How many times the links of the hosts below a switch exceed its link upwards."""

    def __post_init__(self) -> None:
        if not self.oversubscription > 0:
            raise ValueError(f"oversubscription = {self.oversubscription} is not above 0; 1 is none")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDefaults:
    """What a scheduler does not know about devices; None: not given."""

    memory_bytes: int | None = None
    """Memory of one accelerator."""
    workers_per_host: int = 1
    """How many devices a host without accelerators counts as."""


def make_cluster(name: str, hosts: Sequence[HostFacts], *, speeds: NominalSpeeds | None = None) -> Cluster:
    """Devices are called HOST-NUMBER, hosts hang on their switches; raises ValueError if no host has any device."""
    speeds = speeds or NominalSpeeds()
    hosts = [host for host in hosts if host.devices]
    taken = (f"{host.name}-{number}" for host in hosts for number in range(len(host.devices)))
    tree = make_switch_tree({host.name: host.switches for host in hosts}, taken=taken)
    links = [link for host in hosts for link in _links_of(host, speeds)]
    return Cluster(
        name=name,
        devices=tuple(
            Device(
                name=f"{host.name}-{number}",
                type=device.type,
                memory_bytes=device.memory_bytes,
                host=host.name,
                cores=device.cores,
                reserved_bytes=device.reserved_bytes,
            )
            for host in hosts
            for number, device in enumerate(host.devices)
        ),
        links=(*links, *_network_links(tree, speeds)),
        switches=tree.names,
    )


def _network_links(tree: SwitchTree, speeds: NominalSpeeds) -> list[Link]:
    """Every host to its switch, and every switch to the one above it, as fast as the hosts below share it."""
    num_hosts = tree.num_hosts
    links = [
        Link(a=host, b=switch, bandwidth_bytes_per_s=speeds.network_bytes_per_s, latency_ns=NETWORK_LATENCY_NS)
        for host, switch in tree.hosts.items()
    ]
    for lower, upper in tree.switches.items():
        together = speeds.network_bytes_per_s * num_hosts[lower] / speeds.oversubscription
        links.append(
            Link(a=lower, b=upper, bandwidth_bytes_per_s=max(1, round(together)), latency_ns=SWITCH_LATENCY_NS)
        )
    return links


def _links_of(host: HostFacts, speeds: NominalSpeeds) -> list[Link]:
    """Every device to its host, and NVLink between those that have it."""
    links = [
        Link(
            a=f"{host.name}-{number}",
            b=host.name,
            bandwidth_bytes_per_s=speeds.host_bytes_per_s,
            latency_ns=HOST_LATENCY_NS,
        )
        for number in range(len(host.devices))
    ]
    for pair in itertools.combinations(range(len(host.devices)), 2):
        if lanes := host.nvlink_lanes.get(pair, 0):
            links.append(
                Link(
                    a=f"{host.name}-{pair[0]}",
                    b=f"{host.name}-{pair[1]}",
                    bandwidth_bytes_per_s=lanes * NVLINK_LANE_BYTES_PER_S,
                    latency_ns=NVLINK_LATENCY_NS,
                )
            )
    return links


def workers(*, cores: int, memory_bytes: int, sizes: DeviceDefaults) -> tuple[HostDevice, ...]:
    """The devices of a host without accelerators: so many equal parts of it."""
    share = HostDevice(
        type="cpu",
        memory_bytes=memory_bytes // sizes.workers_per_host,
        cores=max(1, cores // sizes.workers_per_host),
    )
    return (share,) * sizes.workers_per_host


def accelerators(kind: str, *, count: int, memory_bytes: int | None, sizes: DeviceDefaults) -> tuple[HostDevice, ...]:
    """So many accelerators; raises ValueError if nobody says how much memory they have."""
    size = memory_bytes or sizes.memory_bytes
    if size is None:
        raise ValueError(f"the memory of {kind} is not told; add --accelerator-gib N")
    return (accelerator(kind, memory_bytes=size),) * count


def accelerator(kind: str, *, memory_bytes: int) -> HostDevice:
    """One that keeps as much for itself as is assumed of all."""
    return HostDevice(type=kind, memory_bytes=memory_bytes, reserved_bytes=assumed_reserve_bytes(memory_bytes))
