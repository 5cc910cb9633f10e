"""The trunk: a heaviest path through the graph, whose layers every plan visits in the same order."""

from dataclasses import dataclass
from functools import cached_property

import numpy

from planner.bounds.minimum_costs import SECOND, Integers, Least, prefix_sums
from profiles.model_profile import Edge

NEVER = 1 << 60
"""After every time that matters."""

_EXACT_REPLICAS = 16
"""Up to this many, every number of replicas is distinguished; above, ranges of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """A range of numbers of replicas: takes the devices and the synchronisation of the least, the speed of the most."""

    least: int
    """Devices that it takes, at least."""
    most: int
    """What divides its work, at most."""


def replica_ranges(most: int) -> list[Replicas]:
    """Every number up to 16, then ranges that grow by a third."""
    ranges, least = [], 1
    while least <= most:
        last = least if least <= _EXACT_REPLICAS else min(most, least * 4 // 3)
        ranges.append(Replicas(least=least, most=last))
        least = last + 1
    return ranges


class Trunk:
    """Prefix sums over a heaviest path: index j counts the layers before boundary j.

    The stages of a plan meet the layers of a path in order, since stage numbers never fall along an edge: each holds an
    interval of it, or nothing. The layers beside the path only add work and bytes.
    """

    def __init__(self, least: Least) -> None:
        self.least = least
        self.path, edges = _heaviest_path(least)
        self.num_layers = len(self.path)
        self.is_everything = self.num_layers == len(least.layers)
        self.forward = self._sums(least.time.forward)
        self.returning = self._sums(least.time.returning)
        self.backward = self._sums(least.time.backward)
        self.rest = self._sums(least.time.rest)
        self.held = self._sums(least.held_bytes)
        self.stash = self._sums(least.stash_bytes)
        self.kept = self._sums(least.least_bytes("weight_stash_bytes"))
        self.state = self._sums(least.state_bytes)
        self.state_beside = sum(least.state_bytes) - int(self.state[-1])
        self.gradient = self._sums(least.gradient_bytes)
        self.forward_bytes = [0, *(edge.bytes for edge in edges), 0]
        self.backward_bytes = [0, *(edge.backward_bytes for edge in edges), 0]
        self.returns = [True, *(edge.has_gradient for edge in edges), True]

    def _sums(self, values: list[int] | Integers) -> Integers:
        return prefix_sums([int(values[layer]) for layer in self.path])

    @cached_property
    def gradient_start(self) -> list[int]:
        """Per boundary: the last one up to it that no gradient crosses; the layers in between wait for it to return."""
        starts: list[int] = []
        for boundary, returns in enumerate(self.returns):
            starts.append(starts[-1] if returns and starts else boundary)
        return starts

    @cached_property
    def gradient_end(self) -> list[int]:
        """Per boundary: the first one after it that no gradient crosses."""
        ends = [self.num_layers] * (self.num_layers + 1)
        for boundary in range(self.num_layers - 1, -1, -1):
            ends[boundary] = ends[boundary + 1] if self.returns[boundary + 1] else boundary + 1
        return ends

    def synchronisation(self, replicas: Replicas) -> Integers:
        """Prefix sums of the least time to synchronise, rounded down; differences may be 1 too large."""
        count = replicas.least
        if count == 1:
            return numpy.zeros(self.num_layers + 1, dtype=numpy.int64)
        bandwidth = self.least.rings[0][count]
        hops = self.least.ring_rounds * (count - 1)
        times = [hops * size * SECOND // (count * bandwidth) for size in self.gradient.tolist()]
        return numpy.array(times, dtype=numpy.int64)

    def synchronisation_latency(self, replicas: Replicas) -> int:
        """What a ring of the least number of replicas waits for latencies."""
        return self.least.ring_rounds * (replicas.least - 1) * self.least.rings[1][replicas.least]


def _heaviest_path(least: Least) -> tuple[list[int], list[Edge]]:
    """Layers of a path with the most work, in order, and the edges between them."""
    work = least.time.total.tolist()
    inputs: list[list[Edge]] = [[] for _ in work]
    for edge in least.problem.profile.edges:
        inputs[least.index[edge.consumer]].append(edge)
    total: list[int] = []
    via: list[Edge | None] = []
    for number, edges in enumerate(inputs):
        best = max(edges, key=lambda edge: total[least.index[edge.producer]], default=None)
        via.append(best)
        total.append(work[number] + (0 if best is None else total[least.index[best.producer]]))
    path, used = [max(range(len(total)), key=total.__getitem__)], list[Edge]()
    while (last := via[path[-1]]) is not None:
        used.append(last)
        path.append(least.index[last.producer])
    return path[::-1], used[::-1]
