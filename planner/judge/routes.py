"""The way of a transfer through the cluster, and how long it takes (section 1, "Cluster").

    device a ---- host ---- switch ---- host ---- device b        latencies add up, the narrowest link sets the pace,
                                                             the largest message overhead is added once
Where links state times by message size, the slowest link of the route at that size sets the pace; these times do not
decide which route is taken.
A direct link is used where there is one; otherwise the path with the least sum of latency + bytes / bandwidth, each in
whole nanoseconds rounded down. Of equal sums the path with fewer links is taken, then the one that Dijkstra's algorithm
finds first when links are looked at in the order of the cluster. Overheads of messages do not decide it.
"""

from collections.abc import Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import NamedTuple

from profiles.cluster import Cluster, Link

SECOND = 1_000_000_000
"""Nanoseconds."""

SIZES = 8
"""Sizes of transfers for which the times of all links are remembered: neighbours send each other a few."""


class Direction(NamedTuple):
    """A link, as used from one end to the other."""

    target: str
    latency_ns: int
    bandwidth_bytes_per_s: int
    resource: int
    """What a transfer occupies; both directions of a link that is not duplex have the same."""
    message_overhead_ns: int
    """What a message costs beyond the link; 0 where it was not measured."""
    corners: tuple[tuple[int, int], ...] = ()
    """Bytes, and nanoseconds beyond the latency, of the sizes whose times the link states, from (0, 0) on."""
    ring_steps: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType({})
    """By collective: bytes and nanoseconds of the steps of a ring whose times the link states, from 0 bytes on."""

    def moving_ns(self, num_bytes: int) -> int:
        """What it takes beyond the latency by the times that it states; 0 if it states none."""
        return self._on_line(self.corners, num_bytes)

    def ring_step_ns(self, num_bytes: int, *, collective: str) -> int:
        """What a step of a ring takes by the times that it states; 0 if it states none."""
        return self._on_line(self.ring_steps.get(collective, ()), num_bytes)

    def _on_line(self, corners: tuple[tuple[int, int], ...], num_bytes: int) -> int:
        if not corners:
            return 0
        smaller = [corner for corner in corners if corner[0] <= num_bytes]
        size, time = smaller[-1]
        if len(smaller) == len(corners):
            return time + -(-(num_bytes - size) * SECOND // self.bandwidth_bytes_per_s)
        next_size, next_time = corners[len(smaller)]
        return time + -(-(num_bytes - size) * (next_time - time) // (next_size - size))


Weighed = tuple[str, int, Direction]
"""A link with the node it leads to, and nanoseconds."""


class Route(NamedTuple):
    """A path from one device to another."""

    links: tuple[int, ...]
    """The resources it occupies, in order."""
    latency_ns: int
    """Sum over its links."""
    bandwidth_bytes_per_s: int
    """Least among its links."""
    message_overhead_ns: int
    """Largest among its links: a message is one, however many links it takes."""
    directions: tuple[Direction, ...] = ()
    """Links of the path, in order, each with its direction."""

    @property
    def delay_ns(self) -> int:
        """Time of an empty message, in ns."""
        return self.latency_ns + self.message_overhead_ns

    def time_ns(self, num_bytes: int) -> int:
        """Time of a transfer, rounded up."""
        return self.delay_ns + max(-(-num_bytes * SECOND // self.bandwidth_bytes_per_s), self.sized_ns(num_bytes))

    def sized_ns(self, num_bytes: int) -> int:
        """What the slowest of the links that state times by size takes beyond its latency; 0 if none does."""
        return max(direction.moving_ns(num_bytes) for direction in self.directions)


class Routes:
    """The routes of one cluster; those already found are remembered."""

    def __init__(self, cluster: Cluster) -> None:
        self.leaving: dict[str, dict[str, Direction]] = {}
        for index, link in enumerate(cluster.links):
            there, back = 2 * index, 2 * index + (1 if link.duplex else 0)
            for source, target, resource in ((link.a, link.b, there), (link.b, link.a, back)):
                beyond = link.message_overhead_ns or 0
                stated = _corners(link), _ring_steps(link)
                direction = Direction(target, link.latency_ns, link.bandwidth_bytes_per_s, resource, beyond, *stated)
                self.leaving.setdefault(source, {})[target] = direction
        only = {node: next(iter(directions)) for node, directions in self.leaving.items() if len(directions) == 1}
        self._beyond = {node: neighbour for node, neighbour in only.items() if neighbour not in only}
        """By dead end its neighbour."""
        self._known: dict[tuple[str, str, int], Route] = {}
        self._weighed: dict[int, dict[str, list[Weighed]]] = {}

    def find(self, source: str, target: str, *, num_bytes: int) -> Route:
        """The route of a transfer between two devices that are connected."""
        direct = self.leaving.get(source, {}).get(target)
        if direct is not None:
            return _make_route([direct])
        key = source, target, num_bytes
        if key not in self._known:
            self._known[key] = _make_route(self._shortest(source, target, num_bytes=num_bytes))
        return self._known[key]

    def _shortest(self, source: str, target: str, *, num_bytes: int) -> list[Direction]:
        """The links of the way; those of dead ends, which have no others, are the first and the last."""
        begin, end = self._beyond.get(source), self._beyond.get(target)
        path = self._search(begin or source, end or target, num_bytes=num_bytes)
        sent = [self.leaving[source][begin]] if begin else []
        return [*sent, *path, *([self.leaving[end][target]] if end else [])]

    def _search(self, source: str, target: str, *, num_bytes: int) -> list[Direction]:
        """Dijkstra's algorithm between nodes that are no dead ends; lengths are nanoseconds and number of links."""
        if num_bytes not in self._weighed and len(self._weighed) == SIZES:
            del self._weighed[next(iter(self._weighed))]
        weighed = self._weighed.setdefault(num_bytes, {})
        best: dict[str, tuple[int, int]] = {source: (0, 0)}
        arrived_by: dict[str, tuple[str, Direction]] = {}
        queue, pushed, settled = [((0, 0), 0, source)], 0, set[str]()
        while target not in settled:
            (length, hops), _, node = heappop(queue)
            if node in settled:
                continue
            settled.add(node)
            if node not in weighed:
                weighed[node] = self._weigh(node, num_bytes)
            for head, time_ns, direction in weighed[node]:
                reached = length + time_ns, hops + 1
                if head not in best or reached < best[head]:
                    best[head], arrived_by[head] = reached, (node, direction)
                    pushed += 1
                    heappush(queue, (reached, pushed, head))
        path, node = list[Direction](), target
        while node != source:
            node, direction = arrived_by[node]
            path.insert(0, direction)
        return path

    def _weigh(self, node: str, num_bytes: int) -> list[Weighed]:
        """The links that lead on from a node, as transfers of so many bytes see them."""
        onward = (each for each in self.leaving[node].values() if each.target not in self._beyond)
        return [
            (each.target, each.latency_ns + num_bytes * SECOND // each.bandwidth_bytes_per_s, each) for each in onward
        ]

    def connected(self) -> dict[str, int]:
        """Every end of a link with the number of the part of the network it belongs to."""
        part: dict[str, int] = {}
        for number, start in enumerate(self.leaving):
            reached = [] if start in part else [start]
            while reached:
                node = reached.pop()
                if node not in part:
                    part[node] = number
                    reached += self.leaving[node]
        return part


def _corners(link: Link) -> tuple[tuple[int, int], ...]:
    stated = [(point.bytes, point.time_ns - link.latency_ns) for point in link.message_times]
    return ((0, 0), *stated) if stated else ()


def _ring_steps(link: Link) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Smaller ones than the smallest that is stated take as long; what is stated of no own ring, as in a reduction."""
    stated = {"reduction": link.reduction_times, "gather": link.gather_times, "scatter": link.scatter_times}
    points = {name: own or link.reduction_times for name, own in stated.items()}
    return {name: ((0, own[0].time_ns), *((p.bytes, p.time_ns) for p in own)) for name, own in points.items() if own}


def _make_route(path: list[Direction]) -> Route:
    return Route(
        links=tuple(direction.resource for direction in path),
        latency_ns=sum(direction.latency_ns for direction in path),
        bandwidth_bytes_per_s=min(direction.bandwidth_bytes_per_s for direction in path),
        message_overhead_ns=max(direction.message_overhead_ns for direction in path),
        directions=tuple(path),
    )
