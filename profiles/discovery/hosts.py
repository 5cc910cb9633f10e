"""From what is known about hosts to a cluster: devices by host and number, links at nominal speeds until measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from profiles.cluster import Cluster, Device, Link, assumed_reserve_bytes
from profiles.discovery.gres import MOST
from profiles.discovery.switch_tree import SwitchTree, make_switch_tree

NVLINK_LATENCY_NS, HOST_LATENCY_NS, NETWORK_LATENCY_NS, SWITCH_LATENCY_NS = 2_000, 5_000, 10_000, 1_000
"""What is assumed until links are measured; the last between two switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDevice:
    """Type and memory of an accelerator, or of a worker on processors."""

    type: str
    """What its layers' costs are filed under."""
    memory_bytes: int
    """Bytes of its own memory, before any reserve."""
    cores: int = 1
    """Processor cores of the host that serve this device."""
    reserved_bytes: int = 0
    """What of its memory a plan may not fill."""
    is_memory_assumed: bool = False
    """Whether the source does not tell its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkDomain:
    """Devices that an NVSwitch joins: each has the bandwidth of its own lanes once, whomever it sends to."""

    name: str
    """The same for all hosts that it joins."""
    bytes_per_s: Mapping[int, int]
    """By number of the device, each direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One host as its scheduler, or itself, describes it."""

    name: str
    """As the launcher calls it."""
    devices: tuple[HostDevice, ...] = ()
    """In the order of their numbers."""
    cores: int | None = None
    """Processor cores of the host; None: not told."""
    memory_bytes: int | None = None
    """Bytes; None: the source states none."""
    nvlink_bytes_per_s: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Bandwidth, each direction, between two devices (lower number first) that NVLink joins without a switch."""
    nvlink_domains: tuple[NvlinkDomain, ...] = ()
    """NVSwitches that join its devices."""
    switches: tuple[str, ...] = ()
    """The switches above it, the outermost first; empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that is told, and is no part of the cluster."""

    what: str
    why: str
    """In a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHosts:
    """Hosts to plan for, hosts left out, and what was assumed."""

    hosts: tuple[HostFacts, ...]
    """Those that can be planned for; without devices until `with_processors`."""
    left_out: tuple[LeftOut, ...] = ()
    """Hosts that cannot, with the reason."""
    notes: tuple[str, ...] = ()
    """What a reader has to know about the hosts."""
    assumed: tuple[str, ...] = ()
    """What the source does not tell, beyond memory and speeds of links."""


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
            raise ValueError(f"oversubscription = {self.oversubscription} is not above 0; give 1 for none, or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDefaults:
    """What a scheduler does not know about devices; None: not given."""

    memory_bytes: int | None = None
    """Memory of one accelerator."""
    workers_per_host: int | None = None
    """How many devices a host without accelerators counts as; None: it is left out."""


def with_processors(found: FoundHosts, sizes: DeviceDefaults) -> FoundHosts:
    """Hosts without accelerators, cut into equal devices or left out.

    Raises ValueError where nothing remains, and for a host whose cores or memory are not told.
    """
    bare = tuple(host for host in found.hosts if not host.devices)
    if sizes.workers_per_host is not None:
        hosts = (
            host if host.devices else replace(host, devices=_workers(host, sizes.workers_per_host))
            for host in found.hosts
        )
        found = replace(found, hosts=tuple(hosts))
    elif bare:
        found = replace(
            found,
            hosts=tuple(host for host in found.hosts if host.devices),
            left_out=(*found.left_out, *(LeftOut(what=host.name, why="no accelerators") for host in bare)),
        )
    if not found.hosts:
        told = "; ".join((describe_left_out(found.left_out), *found.notes))
        remedy = "; --cpus counts processors as devices" if bare else ""
        raise ValueError(f"no accelerator to plan for: {told}{remedy}")
    return found


def describe_left_out(left_out: Sequence[LeftOut]) -> str:
    """What was left out, by cause: `n1, n2 (DOWN), 7 others (no accelerators)`."""
    by_cause: dict[str, list[str]] = {}
    for one in left_out:
        by_cause.setdefault(one.why, []).append(one.what)
    return ", ".join(f"{some_of(names)} ({why})" for why, names in by_cause.items())


def notes_about(said: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What is said of hosts, each sentence once, behind the names of its hosts."""
    return tuple(f"{some_of(names)} {sentence}" for sentence, names in said.items())


def some_of(names: Sequence[str]) -> str:
    """The first four of many names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def make_cluster(name: str, hosts: Sequence[HostFacts], *, speeds: NominalSpeeds | None = None) -> Cluster:
    """Devices are called HOST-NUMBER, hosts hang on their switches; raises ValueError if no host has any device."""
    speeds = speeds or NominalSpeeds()
    hosts = [host for host in hosts if host.devices]
    taken = (f"{host.name}-{number}" for host in hosts for number in range(len(host.devices)))
    tree = make_switch_tree({host.name: host.switches for host in hosts}, taken=taken)
    links = [link for host in hosts for link in _links_of(host, speeds)]
    domains = {name: ports for name, ports in _nvlink_ports(hosts).items() if len(ports) > 1}
    ports = [
        Link(a=device, b=domain, bandwidth_bytes_per_s=rate, latency_ns=NVLINK_LATENCY_NS // 2)
        for domain, rates in domains.items()
        for device, rate in rates.items()
    ]
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
        links=(*links, *ports, *_network_links(tree, speeds)),
        switches=(*tree.names, *domains),
    )


def _nvlink_ports(hosts: Sequence[HostFacts]) -> dict[str, dict[str, int]]:
    """The bandwidth of every device that an NVSwitch joins, by the name of the switch."""
    ports: dict[str, dict[str, int]] = {}
    for host in hosts:
        for domain in host.nvlink_domains:
            devices = {f"{host.name}-{number}": rate for number, rate in domain.bytes_per_s.items()}
            ports.setdefault(domain.name, {}).update(devices)
    return ports


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


def _links_of(host: HostFacts, speeds: NominalSpeeds) -> Iterator[Link]:
    """Every device to its host, and NVLink between those that have it."""
    for number in range(len(host.devices)):
        yield Link(
            a=f"{host.name}-{number}",
            b=host.name,
            bandwidth_bytes_per_s=speeds.host_bytes_per_s,
            latency_ns=HOST_LATENCY_NS,
        )
    for (first, second), rate in sorted(host.nvlink_bytes_per_s.items()):
        yield Link(
            a=f"{host.name}-{first}",
            b=f"{host.name}-{second}",
            bandwidth_bytes_per_s=rate,
            latency_ns=NVLINK_LATENCY_NS,
        )


def _workers(host: HostFacts, count: int) -> tuple[HostDevice, ...]:
    """The devices of a host without accelerators: so many equal parts of it."""
    if host.cores is None or not host.memory_bytes:
        raise ValueError(f"node {host.name}: its cores or its memory are not stated; leave it out, or drop --cpus")
    share = HostDevice(type="cpu", memory_bytes=host.memory_bytes // count, cores=max(1, host.cores // count))
    return (share,) * count


def accelerators(kind: str, *, count: int, memory_bytes: int | None, sizes: DeviceDefaults) -> tuple[HostDevice, ...]:
    """So many accelerators; raises ValueError if nobody says how much memory they have, and for more than are built."""
    if count > MOST:
        raise ValueError(
            f"{count:,} of {kind} on one host are more than the {MOST} that hosts have; correct the number"
        )
    size = memory_bytes or sizes.memory_bytes
    if size is None:
        raise ValueError(f"the memory of {kind} is not stated; add --accelerator-gib N")
    return (replace(accelerator(kind, memory_bytes=size), is_memory_assumed=not memory_bytes),) * count


def accelerator(kind: str, *, memory_bytes: int) -> HostDevice:
    """One that keeps as much for itself as is assumed of all."""
    return HostDevice(type=kind, memory_bytes=memory_bytes, reserved_bytes=assumed_reserve_bytes(memory_bytes))
