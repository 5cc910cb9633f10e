"""Shortest paths between the devices of a cluster: one at a time with heaps, or very many at once with arrays."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

Integers = NDArray[numpy.int64]

_UNREACHED = 2**62
"""Longer than any path."""

_ENTRIES_AT_ONCE = 1_000_000
"""Table entries (searches x link directions) that are held in memory at a time."""


class DirectedLink(NamedTuple):
    """One direction of a link: the nodes it leads from and to, what it costs, and its resource."""

    tail: int
    head: int
    latency_ns: int
    bandwidth_bytes_per_s: int
    resource: int
    message_overhead_ns: int = 0

    def weight(self, num_bytes: int) -> int:
        """Nanoseconds x 2**20, plus one per link: of paths of equal time the one with fewer links is shorter."""
        return ((self.latency_ns + num_bytes * 10**9 // self.bandwidth_bytes_per_s) << 20) + 1


class Trees(NamedTuple):
    """The shortest paths from some nodes to all that are no leaves."""

    arc: Integers
    """[nodes, searches] index of the last way of the path to each node; -1 at the source and where none leads."""
    is_tied: NDArray[numpy.bool_]
    """[nodes, searches] whether another way is as short."""


class Network:
    """Nodes 0 .. N - 1 and the ways between them, in the order in which a search looks at them.

    A node with one neighbour, as most devices have, is a leaf: its paths are those of its neighbour, and searches are
    spared it.
    """

    def __init__(self, num_nodes: int, arcs: Sequence[DirectedLink]) -> None:
        self.num_nodes, self.arcs = num_nodes, arcs
        self._last: tuple[int, list[int]] | None = None
        columns = numpy.array(arcs, dtype=object).reshape(len(arcs), 6)  # weights may have more than 64 bits
        self._columns: Any = DirectedLink(*columns.T)
        leaving: list[list[int]] = [[] for _ in range(num_nodes)]
        arriving: list[list[int]] = [[] for _ in range(num_nodes)]
        for number, arc in enumerate(arcs):
            leaving[arc.tail].append(number)
            arriving[arc.head].append(number)
        ends = zip(range(num_nodes), leaving, arriving, strict=True)
        single = {node: (out[0], into[0]) for node, out, into in ends if len(out) == len(into) == 1}
        self.leaves = {
            node: (out, into)
            for node, (out, into) in single.items()
            if arcs[out].head == arcs[into].tail and arcs[out].head not in single
        }
        """By leaf the way that leaves it and the way that arrives."""
        self.leaving = [[number for number in some if arcs[number].head not in self.leaves] for some in leaving]
        inner = [number for number, arc in enumerate(arcs) if self.leaves.keys().isdisjoint((arc.tail, arc.head))]
        self.order = numpy.array(sorted(inner, key=lambda number: arcs[number].head), dtype=numpy.int64)
        self.tails, heads = columns[self.order, :2].astype(numpy.int64).T
        self.reached, self.starts = numpy.unique(heads, return_index=True)

    def _without_leaves(self, source: int, target: int) -> tuple[list[int], list[int], tuple[int, int]]:
        """Ways from a source that is a leaf, and to a target that is one, and the two ends that are left."""
        out, into = self.leaves.get(source), self.leaves.get(target)
        first, last = [] if out is None else [out[0]], [] if into is None else [into[1]]
        return first, last, (self.arcs[out[0]].head if out else source, self.arcs[into[1]].tail if into else target)

    def shortest_path(self, source: int, target: int, *, num_bytes: int) -> list[int]:
        """Indices of the ways from `source` to `target` by Dijkstra's algorithm; of equal paths the first one found.

        Raises KeyError if there is no path.
        """
        if source == target:
            return []
        first, final, (source, target) = self._without_leaves(source, target)
        weights = self._weights_of(num_bytes)
        known: dict[int, int] = {source: 0}
        last: dict[int, int] = {}
        done: set[int] = set()
        queue, count = [(0, 0, source)], 0
        while queue:
            length, _, node = heappop(queue)
            if node in done:
                continue
            done.add(node)
            if node == target:
                break
            for number in self.leaving[node]:
                head = self.arcs[number].head
                reached = length + weights[number]
                if head not in done and (head not in known or reached < known[head]):
                    known[head], last[head] = reached, number
                    count += 1
                    heappush(queue, (reached, count, head))
        path = []
        while target != source:
            path.append(last[target])
            target = self.arcs[last[target]].tail
        return [*first, *path[::-1], *final]

    def _weights_of(self, num_bytes: int) -> list[int]:
        """Weights of all ways; those of the last size are remembered."""
        if self._last is None or self._last[0] != num_bytes:
            self._last = num_bytes, self._columns.weight(num_bytes).tolist()
        return self._last[1]

    def weights(self, num_bytes: int) -> Integers | None:
        """[ways by head] their weights, or None if a path could leave 64 bits."""
        every = self._weights_of(num_bytes)
        if max(every, default=0) * self.num_nodes >= _UNREACHED:
            return None
        return numpy.array(every, dtype=numpy.int64)[self.order]

    def trees(self, sources: Integers, weights: Integers) -> Trees:
        """Shortest paths from every source under its own weights [ways, searches], by relaxing all ways at once."""
        length = numpy.full((self.num_nodes, len(sources)), _UNREACHED, dtype=numpy.int64)
        length[sources, numpy.arange(len(sources))] = 0
        best = length[self.reached]
        while len(self.order):
            through = length[self.tails] + weights
            nearer = numpy.minimum(best, numpy.minimum.reduceat(through, self.starts, axis=0))
            if numpy.array_equal(nearer, best):
                break
            length[self.reached] = best = nearer
        arc = numpy.full(length.shape, -1, dtype=numpy.int64)
        is_tied = numpy.zeros(length.shape, dtype=numpy.bool_)
        if len(self.order):
            spread = numpy.diff(numpy.append(self.starts, len(self.order)))
            is_best = through == numpy.repeat(best, spread, axis=0)
            places = numpy.where(is_best, numpy.arange(len(self.order))[:, None], len(self.order))
            arc[self.reached] = numpy.append(self.order, -1)[numpy.minimum.reduceat(places, self.starts, axis=0)]
            arc[sources, numpy.arange(len(sources))] = -1
            is_tied[self.reached] = numpy.add.reduceat(is_best, self.starts, axis=0, dtype=numpy.int64) > 1
        return Trees(arc=arc, is_tied=is_tied)

    def paths(self, wanted: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int, int], list[int]]:
        """`shortest_path` for every (source, target, number of bytes), where that path is the only shortest one."""
        targets: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source, target, num_bytes in wanted:
            *_, (begin, _) = self._without_leaves(source, target)
            targets.setdefault((begin, num_bytes), []).append((source, target))
        weights = {size: self.weights(size) for size in dict.fromkeys(size for _, size in targets)}
        keys = [key for key in targets if weights[key[1]] is not None]
        found: dict[tuple[int, int, int], list[int]] = {}
        step = max(1, _ENTRIES_AT_ONCE // max(len(self.order), 1))
        for at in range(0, len(keys), step):
            some = keys[at : at + step]
            table = numpy.stack([w for _, size in some if (w := weights[size]) is not None], axis=1)
            trees = self.trees(numpy.array([source for source, _ in some], dtype=numpy.int64), table)
            for number, key in enumerate(some):
                for source, target in targets[key]:
                    path = self._read(trees, number, source=source, target=target)
                    if path is not None:
                        found[source, target, key[1]] = path
        return found

    def _read(self, trees: Trees, search: int, *, source: int, target: int) -> list[int] | None:
        path: list[int] = []
        first, final, (source, target) = self._without_leaves(source, target)
        while target != source:
            number = int(trees.arc[target, search])
            if number < 0 or trees.is_tied[target, search]:
                return None
            path.append(number)
            target = self.arcs[number].tail
        return [*first, *path[::-1], *final]

    def tables(self, num_ends: int, *, num_bytes: int, direct: dict[tuple[int, int], int]) -> "RouteTables | None":
        """The paths between all pairs of the first `num_ends` nodes; `direct`: ways that are taken at any length.

        Of equally short paths the one whose last ways come first is taken. None if a path could leave 64 bits.
        """
        weights = self.weights(num_bytes)
        if weights is None:
            return None
        step = max(1, _ENTRIES_AT_ONCE // max(len(self.order), num_ends, 1))
        hops: list[_Hop] = []
        for begin in range(0, num_ends, step):
            sources = range(begin, min(begin + step, num_ends))
            shortcuts = [(a - begin, b, arc) for (a, b), arc in direct.items() if a in sources]
            arc = self._last_arcs(sources, weights)
            hops += _walk(self.arcs, arc, shortcuts=shortcuts, pairs=(begin * num_ends, num_ends))
        return _collect(self.arcs, hops, num_ends=num_ends)

    def _last_arcs(self, sources: Sequence[int], weights: Integers) -> Integers:
        """[sources, nodes] index of the last way of the path from each source to each node; -1 where there is none."""
        ends = [self.arcs[self.leaves[each][0]].head if each in self.leaves else each for each in sources]
        begins, search = numpy.unique(ends, return_inverse=True)
        arc = self.trees(begins, numpy.broadcast_to(weights[:, None], (len(weights), len(begins)))).arc.T[search]
        for leaf, (_, into) in self.leaves.items():
            arc[:, leaf] = into
        for row, source in enumerate(sources):
            if source in self.leaves:
                arc[row, ends[row]], arc[row, source] = self.leaves[source][0], -1
        return arc


class RouteTables(NamedTuple):
    """The paths between all pairs of nodes 0 .. D - 1."""

    latency: Integers
    """[D, D] nanoseconds of a path, the largest message overhead of its ways included."""
    bandwidth: Integers
    """[D, D] bytes per second of its narrowest way; 1 from a node to itself."""
    start: Integers
    """[D * D + 1] where the resources of the path from a to b begin in `resources`, at index a * D + b."""
    resources: Integers
    """Resources of all paths."""


class _Hop(NamedTuple):
    """The way of some paths that is so many ways before their last one."""

    distance: int
    pairs: Integers
    """Indices a * D + b of the paths."""
    arcs: Integers
    """Number of the directed link by which each path ends."""


def _walk(
    arcs: Sequence[DirectedLink], arc: Integers, *, shortcuts: list[tuple[int, int, int]], pairs: tuple[int, int]
) -> Iterator[_Hop]:
    """All paths of some sources back from their targets; `pairs`: index of the first pair, and number of ends."""
    tails = numpy.array([each.tail for each in arcs], dtype=numpy.int64)
    last = arc[:, : pairs[1]].copy()
    is_direct = numpy.zeros(last.shape, dtype=numpy.bool_)
    for row, end, number in shortcuts:
        last[row, end], is_direct[row, end] = number, True
    rows = numpy.repeat(numpy.arange(len(arc)), pairs[1])
    index = pairs[0] + numpy.arange(last.size)
    flat, is_last = last.ravel(), is_direct.ravel()
    distance = 0
    while len(going := numpy.flatnonzero(flat >= 0)):
        flat, is_last, rows, index = flat[going], is_last[going], rows[going], index[going]
        yield _Hop(distance, index, flat)
        flat = numpy.where(is_last, -1, arc[rows, tails[flat]])
        distance += 1


def _collect(arcs: Sequence[DirectedLink], hops: list[_Hop], *, num_ends: int) -> RouteTables:
    """The tables of paths that are given hop by hop."""
    latencies, bandwidths, resources, overheads = (
        numpy.array([arc[column] for arc in arcs], dtype=numpy.int64) for column in (2, 3, 4, 5)
    )
    latency, bandwidth = numpy.zeros(num_ends**2, numpy.int64), numpy.full(num_ends**2, _UNREACHED)
    overhead = numpy.zeros(num_ends**2, numpy.int64)
    count = numpy.zeros(num_ends**2 + 1, numpy.int64)
    for hop in hops:
        latency[hop.pairs] += latencies[hop.arcs]
        overhead[hop.pairs] = numpy.maximum(overhead[hop.pairs], overheads[hop.arcs])
        bandwidth[hop.pairs] = numpy.minimum(bandwidth[hop.pairs], bandwidths[hop.arcs])
        count[hop.pairs + 1] += 1
    bandwidth[bandwidth == _UNREACHED] = 1
    start = numpy.cumsum(count)
    found = numpy.zeros(int(start[-1]), numpy.int64)
    for hop in hops:
        found[start[hop.pairs + 1] - 1 - hop.distance] = resources[hop.arcs]
    shape = num_ends, num_ends
    return RouteTables((latency + overhead).reshape(shape), bandwidth.reshape(shape), start, found)
