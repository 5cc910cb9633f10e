"""What the machine offers: devices, links between them, and the routes that transfers take."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import (
    MAX_WIDTH,
    Bytes,
    Name,
    NameOrEmpty,
    Nanoseconds,
    NotEmpty,
    Price,
    Whole,
    require_distinct,
    require_fields,
)
from profiles.routing import DirectedLink, Network, RouteTables

Collective = Literal["reduction", "gather", "scatter"]
"""An all-reduce, an all-gather, or the reduce-scatter of a fully sharded stage."""

_STEP_TIMES: dict[Collective, str] = {
    "reduction": "reduction_times",
    "gather": "gather_times",
    "scatter": "scatter_times",
}
"""The fields of a link that state what steps of their rings take."""

_FEW_SEARCHES = 8
"""So many searches for routes are not worth doing at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(StrictRecord):
    """One accelerator or one CPU worker."""

    name: Name
    """Unique within the cluster."""
    type: Name
    """The device type under which layer costs were measured, e.g. `A100`."""
    memory_bytes: Bytes
    """Memory of this device; a plan may fill what is not reserved."""
    host: NameOrEmpty = ""
    """The host it sits in; may be the end of a link. Empty: a host of its own."""
    cores: Annotated[int, Whole("cores", least=1, most=MAX_WIDTH)] = 1
    """CPU cores that belong to the device (matters on CPU hosts only)."""
    reserved_bytes: Bytes | None = None
    """Memory that runtime, collectives and allocator keep for themselves; None: not stated, 0."""
    price_per_hour: Price | None = None
    """What an hour of it costs, in any currency that is the same for all devices; None: not stated."""
    host_link: NameOrEmpty = ""
    """The link to the memory of its host: a name of `host_links`; or that of its host, for the link between both that
    messages take as well. Empty: none."""

    def __post_init__(self) -> None:
        owner = f"device {str(self.name)[:80]!r}"
        require_fields(owner, self)
        if self.price_per_hour is not None:  # 2 and 2.0 are one price, and have one hash
            object.__setattr__(self, "price_per_hour", float(self.price_per_hour) + 0.0)
        if self.reserved_bytes is not None and self.reserved_bytes > self.memory_bytes:
            raise ValueError(
                f"{owner}: reserved_bytes = {self.reserved_bytes} exceeds memory_bytes = {self.memory_bytes}; "
                "state the device's whole memory, or reserve less"
            )

    @property
    def usable_bytes(self) -> int:
        """What a plan may fill: memory without the reserve."""
        return self.memory_bytes - (self.reserved_bytes or 0)


def assumed_reserve_bytes(memory_bytes: int) -> int:
    """What an accelerator is taken to keep for itself where nobody has measured it: 1 GiB and 6 % of its memory."""
    return min(memory_bytes, 2**30 + memory_bytes * 6 // 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTime(StrictRecord):
    """What a message of some size takes on a link."""

    bytes: Annotated[int, Whole("bytes", least=1)]
    """Size of the message."""
    time_ns: Nanoseconds
    """From when both ends are ready until it has arrived, the link's latency included."""

    def __post_init__(self) -> None:
        require_fields("message time", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(StrictRecord):
    """A physical connection between two devices, hosts or switches."""

    a: Name
    """One end: the name of a device, a host or a switch."""
    b: Name
    """The other end."""
    bandwidth_bytes_per_s: Annotated[int, Whole("bytes per second", least=1)]
    """Bytes per second in each direction (together, if not duplex)."""
    latency_ns: Nanoseconds = 0
    """Time before the first byte arrives."""
    duplex: bool = True
    """Whether the two directions are links of their own; otherwise they take turns."""
    message_overhead_ns: Nanoseconds | None = None
    """What a message costs the executor beyond the link itself, once per message; None: not measured, 0."""
    message_times: tuple[MessageTime, ...] = ()
    """What messages of some sizes take, in rising order of bytes; others lie on straight lines between them, smaller
    ones towards the latency, larger ones grow by the bandwidth. None may be faster than latency and bandwidth say."""
    reduction_times: tuple[MessageTime, ...] = ()
    """What a step of a ring takes in which each replica sends so many bytes, takes in as many and adds them up, in
    rising order of bytes; others lie on straight lines between them, smaller ones take as long as the smallest, larger
    ones grow by the bandwidth. No synchronisation takes less than all its steps."""
    gather_times: tuple[MessageTime, ...] = ()
    """The same of an all-gather, which adds nothing up; none: `reduction_times` hold."""
    scatter_times: tuple[MessageTime, ...] = ()
    """The same of the reduce-scatter of a fully sharded stage; none: `reduction_times` hold."""

    def __post_init__(self) -> None:
        owner = f"link {str(self.a)[:80]!r} - {str(self.b)[:80]!r}"
        require_fields(owner, self)
        if self.a == self.b:
            raise ValueError(f"{owner}: both ends are the same; remove the link")
        _require_rising(f"{owner}: message_times", self.message_times)
        for name in _STEP_TIMES.values():
            _require_rising(f"{owner}: {name}", getattr(self, name))
        self._require_no_faster(owner)

    def _require_no_faster(self, owner: str) -> None:
        for point in self.message_times:
            if point.time_ns < (least := self.latency_ns + self._at_bandwidth_ns(point.bytes)):
                raise ValueError(
                    f"{owner}: message_times: {point.bytes} bytes in {point.time_ns} ns are faster than latency and "
                    f"bandwidth, {least} ns; give the bandwidth of the fastest size"
                )

    def _at_bandwidth_ns(self, num_bytes: int) -> int:
        return -(-num_bytes * 10**9 // self.bandwidth_bytes_per_s)

    def moving_ns(self, num_bytes: int) -> int:
        """What a message of so many bytes takes beyond the latency, rounded up."""
        size, time = 0, 0
        for point in self.message_times:
            later = point.time_ns - self.latency_ns
            if num_bytes <= point.bytes:
                return time - (-(num_bytes - size) * (later - time) // (point.bytes - size))
            size, time = point.bytes, later
        return time + self._at_bandwidth_ns(num_bytes - size)

    def least_moving_ns(self, num_bytes: int) -> int:
        """The same, rounded down where the bandwidth alone says it."""
        return self.moving_ns(num_bytes) if self.message_times else num_bytes * 10**9 // self.bandwidth_bytes_per_s

    def step_ns(self, num_bytes: int, *, collective: Collective = "reduction") -> int:
        """What a step of a ring takes by the times that are stated for it, rounded up; 0 if none are."""
        points: tuple[MessageTime, ...] = getattr(self, _STEP_TIMES[collective]) or self.reduction_times
        if not points or num_bytes <= points[0].bytes:
            return points[0].time_ns if points else 0
        for before, point in pairwise(points):
            if num_bytes <= point.bytes:
                rise, run = point.time_ns - before.time_ns, point.bytes - before.bytes
                return before.time_ns - (-(num_bytes - before.bytes) * rise // run)
        return points[-1].time_ns + self._at_bandwidth_ns(num_bytes - points[-1].bytes)

    @property
    def has_step_times(self) -> bool:
        """Whether it states what a step of any ring takes."""
        return any(self.step_times.values())

    @property
    def step_times(self) -> dict[Collective, tuple[MessageTime, ...]]:
        """What it states of the steps of rings."""
        return {name: getattr(self, field) for name, field in _STEP_TIMES.items()}

    def with_step_times(self, times: Mapping[Collective, tuple[MessageTime, ...]]) -> "Link":
        """The link that states these, and of the other collectives what it did."""
        fields: dict[str, Any] = {_STEP_TIMES[name]: points for name, points in times.items()}
        return replace(self, **fields)

    def with_slower_steps(self, factor: Fraction) -> "Link":
        """The link whose steps of rings take so many times as long, rounded up."""

        def slower(point: MessageTime) -> MessageTime:
            return replace(point, time_ns=math.ceil(point.time_ns * factor))

        return self.with_step_times({name: tuple(map(slower, points)) for name, points in self.step_times.items()})

    def later_by(self, time_ns: int) -> "Link":
        """The link with so much more latency, which may be negative, but not less than none."""
        more = max(-self.latency_ns, time_ns)
        points = tuple(replace(point, time_ns=point.time_ns + more) for point in self.message_times)
        return replace(self, latency_ns=self.latency_ns + more, message_times=points)

    def at_speed(self, factor: float, *, latency: float = 1.0) -> "Link":
        """The link with so many times the bandwidth, and the latency; what it states by size keeps the same shape."""
        latency_ns = round(self.latency_ns * latency)
        scaled = replace(
            self,
            latency_ns=latency_ns,
            bandwidth_bytes_per_s=max(1, round(self.bandwidth_bytes_per_s * factor)),
            message_times=(),
        ).with_slower_steps(1 / Fraction(factor))
        points = []
        for point in self.message_times:
            moving = max(math.ceil((point.time_ns - self.latency_ns) / factor), scaled._at_bandwidth_ns(point.bytes))
            points.append(replace(point, time_ns=latency_ns + moving))
        return replace(scaled, message_times=tuple(points))


def _require_rising(owner: str, points: tuple[MessageTime, ...]) -> None:
    for before, point in pairwise(points):
        if point.bytes <= before.bytes or point.time_ns < before.time_ns:
            raise ValueError(
                f"{owner}: {point.bytes} bytes in {point.time_ns} ns follow {before.bytes} bytes in "
                f"{before.time_ns} ns; give them in rising order, no larger message in less time"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink(StrictRecord):
    """A connection of one or several devices to the memory of their hosts, which no message takes."""

    name: Name
    """Unique among the host links, and no host's name."""
    bandwidth_bytes_per_s: Annotated[int, Whole("bytes per second", least=1)]
    """Bytes per second in each direction (together, if not duplex)."""
    latency_ns: Nanoseconds = 0
    """Time before the first byte arrives."""
    duplex: bool = True
    """Whether the two directions are links of their own; otherwise they take turns."""

    def __post_init__(self) -> None:
        require_fields(f"host link {str(self.name)[:80]!r}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(StrictRecord):
    """A host whose memory takes stashes of its devices."""

    name: Name
    """The `host` of its devices."""
    memory_bytes: Bytes
    """What its devices together may keep there."""

    def __post_init__(self) -> None:
        require_fields(f"host {str(self.name)[:80]!r}", self)


class HostRoutes(NamedTuple):
    """The ways between a device and the memory of its host."""

    out: "Route"
    back: "Route"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way a transfer takes from one device to another."""

    links: tuple[int, ...]
    """Resources it occupies: `2 * index` for a link used from a to b, `2 * index + 1` for b to a (duplex)."""
    latency_ns: int
    """Sum of the latencies of its links, and the largest of their message overheads, once."""
    bandwidth_bytes_per_s: int
    """Least bandwidth among its links."""
    sized: tuple[Link, ...] = ()
    """Those of its links that state times by message size."""
    reducing: tuple[Link, ...] = ()
    """Those of its links that state what a step of a ring takes."""

    def duration_ns(self, num_bytes: int) -> int:
        """Time of a transfer of `num_bytes`, rounded up to a nanosecond (contract, "The question")."""
        time = -(-num_bytes * 10**9 // self.bandwidth_bytes_per_s)
        return self.latency_ns + max(time, *(link.moving_ns(num_bytes) for link in self.sized), 0)


@dataclass(frozen=True, kw_only=True)
class Cluster(StrictRecord):
    """Devices and the graph of links between devices, hosts and switches."""

    name: Name
    """Shown in tables and pictures."""
    devices: Annotated[tuple[Device, ...], NotEmpty("a cluster needs at least one device")]
    """At least one; names are unique."""
    links: tuple[Link, ...] = ()
    """Connections; together they must connect all devices."""
    switches: tuple[str, ...] = ()
    """Names of link ends that are neither a device nor a host."""
    overlap: bool = True
    """Whether transfers overlap computation; otherwise a device that sends or receives cannot compute meanwhile."""
    collective_occupancy: Annotated[int, Whole("thousandths", most=1000)] = 0
    """Thousandths of a device that a gather or a reduction takes from what it computes beside it."""
    sharding_occupancy: Annotated[int, Whole("thousandths", most=1000)] = 0
    """The same of a fully sharded stage's messages, where that is more; 1000: it waits for each."""
    host_links: tuple[HostLink, ...] = ()
    """Connections to the memory of hosts, which devices name in `host_link`."""
    hosts: tuple[Host, ...] = ()
    """The memory of hosts that devices with a `host_link` are in."""

    def __post_init__(self) -> None:
        owner = f"cluster {str(self.name)[:80]!r}"
        require_fields(owner, self)
        require_distinct(f"{owner}: device", (device.name for device in self.devices))
        require_distinct(f"{owner}: switch", self.switches)
        require_distinct(f"{owner}: link", (" - ".join(sorted((repr(link.a), repr(link.b)))) for link in self.links))
        known = {device.name for device in self.devices} | {device.host for device in self.devices} | set(self.switches)
        for position, link in enumerate(self.links):
            for end in (link.a, link.b):
                if end not in known:
                    raise ValueError(
                        f"{owner}: links[{position}] ends at {end!r}, which is not a device, host or switch; add it to "
                        "devices or switches, or correct the name"
                    )
        self._require_connected(owner)
        self._require_host_links(owner)

    def _require_host_links(self, owner: str) -> None:
        require_distinct(f"{owner}: host link", (link.name for link in self.host_links))
        require_distinct(f"{owner}: host", (host.name for host in self.hosts))
        known, hosts = {link.name for link in self.host_links}, {device.host for device in self.devices}
        if both := known & hosts:
            raise ValueError(f"{owner}: {min(both)!r} is a host and a host link; give the host link another name")
        for device in (each for each in self.devices if each.host_link):
            where = f"{owner}: device {device.name!r}: host_link = {device.host_link!r}"
            if device.host_link not in known and (device.host_link, device.name) not in self._directed:
                raise ValueError(
                    f"{where} is none of host_links, and links has none from the device to a host of that name; add "
                    "it to host_links, or correct the name"
                )
            if device.host_link in hosts and device.host_link != device.host:
                raise ValueError(f"{where} is another host than {device.host!r}; name its own, or one of host_links")
            if device.host not in {host.name for host in self.hosts}:
                raise ValueError(
                    f"{where}, but hosts does not state the memory_bytes of host {device.host!r}; add it to hosts, or "
                    "leave host_link out"
                )

    @cached_property
    def host_routes(self) -> dict[str, HostRoutes]:
        """The ways to host memory and back of every device that has a `host_link`, by its name."""
        own: dict[str, HostRoutes] = {}
        for number, link in enumerate(self.host_links, start=len(self.links)):
            out, back = (
                Route(
                    links=(2 * number + place,),
                    latency_ns=link.latency_ns,
                    bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                )
                for place in (0, 1 if link.duplex else 0)
            )
            own[link.name] = HostRoutes(out, back)
        found = {}
        for device in (each for each in self.devices if each.host_link and each.host_link not in own):
            ends = (device.name, device.host), (device.host, device.name)
            found[device.name] = HostRoutes(*(self._make_route([self._directed[pair]]) for pair in ends))
        return found | {each.name: own[each.host_link] for each in self.devices if each.host_link in own}

    def _require_connected(self, owner: str) -> None:
        reached = self._reached
        for device in self.devices:
            if device.name not in reached:
                raise ValueError(
                    f"{owner}: no route from device {self.devices[0].name!r} to device {device.name!r}; "
                    "add the missing link, or remove the devices that cannot be reached"
                )

    @cached_property
    def _neighbours(self) -> dict[str, set[str]]:
        """What is joined by a link with every device and every other end of a link, in that order."""
        found: dict[str, set[str]] = {device.name: set() for device in self.devices}
        for link in self.links:
            found.setdefault(link.a, set()).add(link.b)
            found.setdefault(link.b, set()).add(link.a)
        return found

    @cached_property
    def is_tree(self) -> bool:
        """Whether one path alone leads from any device to any other, so that every transfer takes it."""
        reached = self._reached
        return sum(len(self._neighbours[name]) for name in reached) == 2 * (len(reached) - 1)

    @cached_property
    def _reached(self) -> set[str]:
        """Everything that some path joins with the first device, and that device."""
        reached, reachable = {self.devices[0].name}, [self.devices[0].name]
        while reachable:
            new = self._neighbours[reachable.pop()] - reached
            reached |= new
            reachable += new
        return reached

    @cached_property
    def by_name(self) -> dict[str, Device]:
        """Each device under its name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def device_types(self) -> tuple[str, ...]:
        """The types of the devices, each once, in the order of the devices."""
        return tuple(dict.fromkeys(device.type for device in self.devices))

    @cached_property
    def domains(self) -> dict[str, str]:
        """By device: the switch that joins it to devices of other hosts by a link of its own, the widest if several.

        NVLink joins a rack of hosts so; devices without one are left out.
        """
        ends = [(*pair, link) for link in self.links for pair in ((link.a, link.b), (link.b, link.a))]
        own = [(self.by_name[a], b, link) for a, b, link in ends if a in self.by_name and b in self.switches]
        hosts: dict[str, set[str]] = {}
        for device, switch, _ in own:
            hosts.setdefault(switch, set()).add(device.host or device.name)
        widest = sorted(own, key=lambda each: each[2].bandwidth_bytes_per_s)
        return {device.name: switch for device, switch, _ in widest if len(hosts[switch]) > 1}

    @cached_property
    def _directed(self) -> dict[tuple[str, str], int]:
        """Index among the ways of the network for every direction of every link."""
        return {(self._nodes[arc.tail], self._nodes[arc.head]): number for number, arc in enumerate(self._network.arcs)}

    @cached_property
    def _nodes(self) -> list[str]:
        """Devices first, then the other ends of links."""
        return list(self._neighbours)

    @cached_property
    def _node_of(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._nodes)}

    @cached_property
    def _network(self) -> Network:
        """Both directions of every link, in the order in which the ends first appear."""
        ends: dict[tuple[str, str], tuple[int, Link]] = {}
        for index, link in enumerate(self.links):
            ends[link.a, link.b] = (2 * index, link)
            ends[link.b, link.a] = (2 * index + (1 if link.duplex else 0), link)
        arcs = [
            DirectedLink(
                self._node_of[a],
                self._node_of[b],
                link.latency_ns,
                link.bandwidth_bytes_per_s,
                resource,
                link.message_overhead_ns or 0,
            )
            for (a, b), (resource, link) in ends.items()
        ]
        return Network(len(self._nodes), arcs)

    @cached_property
    def _routes(self) -> dict[tuple[str, str, int], Route]:
        return {}

    def route(self, source: str, target: str, *, num_bytes: int) -> Route:
        """The route for a transfer of `num_bytes` from device `source` to another device `target`.

        A direct link is used where there is one; otherwise the path with the least sum over its links of
        latency + bytes / bandwidth (Dijkstra; equal sums are decided by fewer links, then by the order of the links).
        """
        direct = self._directed.get((source, target))
        key = (source, target, num_bytes if direct is None else -1)
        found = self._routes.get(key)
        if found is None:
            ends = self._node_of[source], self._node_of[target]
            path = self._network.shortest_path(*ends, num_bytes=num_bytes) if direct is None else [direct]
            found = self._routes[key] = self._make_route(path)
        return found

    def find_routes(self, wanted: Iterable[tuple[str, str, int]]) -> None:
        """Look for the routes of many transfers (source, target, bytes) at once, so that `route` knows them already."""
        node_of = self._node_of
        unknown = {
            (node_of[source], node_of[target], size): (source, target, size)
            for source, target, size in wanted
            if (source, target) not in self._directed and (source, target, size) not in self._routes
        }
        if len({(source, size) for source, _, size in unknown}) > _FEW_SEARCHES:
            for key, path in self._network.paths(unknown).items():
                self._routes[unknown[key]] = self._make_route(path)

    def _make_route(self, path: Iterable[int]) -> Route:
        used = [self._network.arcs[number] for number in path]
        return Route(
            links=tuple(arc.resource for arc in used),
            latency_ns=sum(arc.latency_ns for arc in used) + max(arc.message_overhead_ns for arc in used),
            bandwidth_bytes_per_s=min(arc.bandwidth_bytes_per_s for arc in used),
            sized=tuple(link for arc in used if (link := self.links[arc.resource // 2]).message_times),
            reducing=tuple(link for arc in used if (link := self.links[arc.resource // 2]).has_step_times),
        )

    def route_tables(self, *, num_bytes: int) -> RouteTables | None:
        """The routes between all pairs of devices for transfers of one size; None if they could leave 64 bits.

        Where several paths are equally short, another one may be chosen than `route` takes.
        """
        node_of = self._node_of
        direct = {
            (node_of[a], node_of[b]): number
            for (a, b), number in self._directed.items()
            if a in self.by_name and b in self.by_name
        }
        return self._network.tables(len(self.devices), num_bytes=num_bytes, direct=direct)
