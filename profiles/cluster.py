"""What the machine offers: devices, links between them, and the routes that transfers take."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import networkx

from profiles.model_profile import MAX_BYTES, MAX_NANOSECONDS, require_distinct, require_integer, require_name

_STRICT = {"extra": "forbid", "use_attribute_docstrings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator or one CPU worker."""

    __pydantic_config__ = _STRICT

    name: str
    """Unique within the cluster."""
    type: str
    """The device type under which layer costs were measured, e.g. `A100`."""
    memory_bytes: int
    """Memory that a plan may fill on this device."""
    host: str = ""
    """The host it sits in; may be the end of a link. Empty: a host of its own."""
    cores: int = 1
    """CPU cores that belong to the device (matters on CPU hosts only)."""

    def __post_init__(self) -> None:
        owner = f"device {str(self.name)[:80]!r}"
        require_name(f"{owner}: name", self.name)
        require_name(f"{owner}: type", self.type)
        require_integer(f"{owner}: memory_bytes", self.memory_bytes, most=MAX_BYTES)
        require_integer(f"{owner}: cores", self.cores, least=1, most=4096)
        if self.host:
            require_name(f"{owner}: host", self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A physical connection between two devices, hosts or switches."""

    __pydantic_config__ = _STRICT

    a: str
    """One end: the name of a device, a host or a switch."""
    b: str
    """The other end."""
    bandwidth_bytes_per_s: int
    """Bytes per second in each direction (together, if not duplex)."""
    latency_ns: int = 0
    """Time before the first byte arrives."""
    duplex: bool = True
    """Whether the two directions are links of their own; otherwise they take turns."""

    def __post_init__(self) -> None:
        owner = f"link {str(self.a)[:80]!r} - {str(self.b)[:80]!r}"
        require_name(f"{owner}: a", self.a)
        require_name(f"{owner}: b", self.b)
        require_integer(f"{owner}: bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, least=1)
        require_integer(f"{owner}: latency_ns", self.latency_ns, most=MAX_NANOSECONDS)
        if self.a == self.b:
            raise ValueError(f"{owner}: both ends are the same; remove the link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way a transfer takes from one device to another."""

    links: tuple[int, ...]
    """Resources it occupies: `2 * index` for a link used from a to b, `2 * index + 1` for b to a (duplex)."""
    latency_ns: int
    """Sum of the latencies of its links."""
    bandwidth_bytes_per_s: int
    """Least bandwidth among its links."""

    def duration_ns(self, num_bytes: int) -> int:
        """Time of a transfer of `num_bytes`, rounded up to a nanosecond (MODEL.md section 1)."""
        return self.latency_ns - (-num_bytes * 10**9 // self.bandwidth_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices and the graph of links between devices, hosts and switches."""

    __pydantic_config__ = _STRICT

    name: str
    """Shown in tables and pictures."""
    devices: tuple[Device, ...]
    """At least one."""
    links: tuple[Link, ...] = ()
    """Connections; together they must connect all devices."""
    switches: tuple[str, ...] = ()
    """Names of link ends that are neither a device nor a host."""
    overlap: bool = True
    """Whether transfers overlap computation; otherwise a device that sends or receives cannot compute meanwhile."""

    def __post_init__(self) -> None:
        owner = f"cluster {str(self.name)[:80]!r}"
        require_name(f"{owner}: name", self.name)
        if not self.devices:
            raise ValueError(f"{owner}: devices is empty; a cluster needs at least one device")
        require_distinct(f"{owner}: device", (device.name for device in self.devices))
        require_distinct(f"{owner}: switch", self.switches)
        require_distinct(f"{owner}: link", (" - ".join(sorted((repr(link.a), repr(link.b)))) for link in self.links))
        known = {device.name for device in self.devices} | {device.host for device in self.devices} | set(self.switches)
        for position, link in enumerate(self.links):
            for end in (link.a, link.b):
                if end not in known:
                    raise ValueError(
                        f"{owner}: links[{position}] ends at {end!r}, which is no device, host or switch; "
                        "add it to devices or switches, or mend the name"
                    )
        self._require_connected(owner)

    def _require_connected(self, owner: str) -> None:
        reached = networkx.node_connected_component(self._undirected, self.devices[0].name)
        for device in self.devices:
            if device.name not in reached:
                raise ValueError(
                    f"{owner}: no route from device {self.devices[0].name!r} to device {device.name!r}; "
                    "add the missing link, or remove the devices that cannot be reached"
                )

    @cached_property
    def _undirected(self) -> "networkx.Graph[str]":
        graph: networkx.Graph[str] = networkx.Graph()
        graph.add_nodes_from(device.name for device in self.devices)
        graph.add_edges_from((link.a, link.b) for link in self.links)
        return graph

    @cached_property
    def by_name(self) -> dict[str, Device]:
        """The devices by their names."""
        return {device.name: device for device in self.devices}

    @cached_property
    def device_types(self) -> tuple[str, ...]:
        """The types of the devices, each once, in the order of the devices."""
        return tuple(dict.fromkeys(device.type for device in self.devices))

    @cached_property
    def _directed(self) -> dict[tuple[str, str], tuple[int, Link]]:
        """Resource number and link for every direction of every link."""
        ends: dict[tuple[str, str], tuple[int, Link]] = {}
        for index, link in enumerate(self.links):
            ends[link.a, link.b] = (2 * index, link)
            ends[link.b, link.a] = (2 * index + (1 if link.duplex else 0), link)
        return ends

    @cached_property
    def _routes(self) -> dict[tuple[str, str, int], Route]:
        return {}

    def route(self, source: str, target: str, *, num_bytes: int) -> Route:
        """The route for a transfer of `num_bytes` from device `source` to another device `target`.

        A direct link is used where there is one; otherwise the path with the least sum over its links of
        latency + bytes / bandwidth (Dijkstra; equal sums are decided by fewer links, then by the order of the links).
        """
        direct = self._directed.get((source, target))
        key = (source, target, -1 if direct else num_bytes)
        if key not in self._routes:
            hops = [(source, target)] if direct else self._shortest_path(source, target, num_bytes=num_bytes)
            self._routes[key] = self._make_route(hops)
        return self._routes[key]

    def _make_route(self, hops: Iterable[tuple[str, str]]) -> Route:
        used = [self._directed[hop] for hop in hops]
        return Route(
            links=tuple(resource for resource, _ in used),
            latency_ns=sum(link.latency_ns for _, link in used),
            bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s for _, link in used),
        )

    def _shortest_path(self, source: str, target: str, *, num_bytes: int) -> list[tuple[str, str]]:
        scale = 1 << 20  # a tie between paths of equal time goes to the one with fewer links

        def weight(a: str, b: str, _: object) -> int:
            link = self._directed[a, b][1]
            return (link.latency_ns + num_bytes * 10**9 // link.bandwidth_bytes_per_s) * scale + 1

        path = networkx.dijkstra_path(self._undirected, source, target, weight=weight)
        return list(itertools.pairwise(path))
