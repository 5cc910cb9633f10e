"""The loop bound: filling, whole layers in time and memory, and draining where stages stand in a loop."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice, pairwise, product
from typing import Any

import numpy

from planner.bounds.counting import best_of, holds_all, lost_at_ends, proposals, read_counted
from planner.bounds.loop.loop_layers import SHARES, LoopKind, LoopLayers, UnitsHeld
from planner.bounds.loop.loop_shapes import MAX_RANKS, LoopShape, hops_ns, num_ranks, open_kinds, shapes_of
from planner.bounds.minimum_costs import Integers, Least
from planner.errors import refused_certificate

MAX_CELLS = 400_000
"""Ways to put special layers on ranks, times the ranks, over all loops that there are."""

MANY_KINDS, MANY_RANKS = 8, 5_000
"""Of more kinds, and of more ranks of all loops, so many times fewer ways to count are tried for each kind."""

_FIELDS = {"width", "replicas", "unit", "special"}
"""Of a way to count."""

MOST_NS = 1 << 53
"""No plan takes as long; a bound that reaches it says that none fits into memory."""


class _LoopCounting:
    """What the ranks of a loop hold in whole layers, of one width and number of replicas.

    Proof. A plan has P ranks of r groups of w devices; stage s is on rank s mod P, and the layers of a chain, numbered
    from 0, are cut into stages in their order, none empty. So layer i is in stage i at the latest, and rank p waits for
    the F of the layers before layer p at least, and after its last B follow theirs, as far as gradients flow; between
    stages lie p transfers, between different devices, of an r-th of some edge's bytes at least, and p of gradients if
    all edges have some. A device of it runs M times its layers, for the r-th part of a microbatch: r T >= those F +
    those B + r x those transfers + M x (their work, with what recomputation adds + r x the overhead of an F and a B),
    since times on a replica are sums divided by r and rounded up. That gives every rank a time per microbatch.

    By 1F1B rank p runs n forwards at least of each of its stages before its first backward: with one stage n = P - p,
    or all M if these are fewer; with v more than one, where M is a multiple of P, P of each of the first v - 1, and the
    next 2 (P - p) - 1 are of the last one, up to P of them. So an r-th of their stashes, or of what recomputation
    leaves, is there at once, beside the state.

    With one stage per rank, the first backward of rank p begins after the F of all layers and the B of those behind its
    own, f + b, and after its last one follow the B of those before. Besides n forwards it runs everything in between:
    r T >= all F + all B - b + M (f + b) - n f. With f <= q (f + b) for all layers, (M - 1 - (n - 1) q)(f + b) <= r T -
    all F - all B, also where these are the least over types: then f + b are no less than what is taken off. What
    recomputation adds, and overheads of actions, come on the left, transfers on the right. Where some edge has no
    gradient this is left out.

    Whole layers are counted as in `counting`, by what a rank holds in that time and memory (`UnitsHeld`), except that
    not all ranks are open to a special layer: layer i < P is in one of the first i + 1 stages, so on rank i or before;
    a layer with k < P behind it is in one of the last k + 1 stages, and as the last one is on rank P - 1, on rank P - 1
    - k or after. If that is impossible for all P, no plan of this width with so many replicas ends by T.
    """

    def __init__(self, layers: LoopLayers, *, unit: int, special: Sequence[int]) -> None:
        self.layers, self.least, self.special = layers, layers.least, list(special)
        work = layers.time.total
        self.counted = [number for number in range(len(work)) if number not in set(special)]
        self.unit, self.work, self.most = unit, int(work.sum()), layers.longest_ns
        edges = self.least.problem.profile.edges
        self.all_return = all(edge.has_gradient for edge in edges)
        self.lost = lost_at_ends(self.least, layers.time)
        self.overhead = sum(self.least.overhead)
        self.shapes, self._looked_at = shapes_of(self.least, layers.kind), cache(self._look_at)

    def _look_at(self, shape: LoopShape) -> tuple[UnitsHeld, Integers, Integers]:
        """What a rank holds; what special layers take of time and memory on every rank; the ways to put them there."""
        layers, count = self.layers, self.least.problem.num_microbatches
        flying = shape.flying(count)
        held = UnitsHeld(layers, unit=self.unit, counted=self.counted, flying=flying)
        state, stash = shape.kind.replicas * layers.state[self.special], layers.held[self.special]
        memory = (state[:, None] + stash[:, None] * flying) * layers.counts_memory
        time = layers.time.total[self.special][:, None] + numpy.zeros_like(flying)
        counts = list(product(*open_ranks(len(self.least.layers), self.special, ranks=shape.ranks)))
        assignments = numpy.array(counts, dtype=numpy.int64).reshape(len(counts), len(self.special))
        return held, numpy.stack([time, memory], axis=1), assignments

    def is_out_of_reach(self, deadline: int) -> bool:
        """Whether no plan of the kind ends within `deadline` (without the optimizer)."""
        return deadline < 0 or all(self._is_shape_out(shape, deadline) for shape in self.shapes)

    def _is_shape_out(self, shape: LoopShape, deadline: int) -> bool:
        count, replicas = self.least.problem.num_microbatches, shape.kind.replicas
        travel = replicas * sum(hops_ns(self.least, replicas)) * numpy.arange(shape.ranks)
        lost = self.lost[: shape.ranks] + travel
        time = (replicas * deadline - lost) // count - replicas * self.overhead
        if not shape.is_interleaved and self.all_return:
            time = numpy.minimum(time, self._time_between(shape, deadline))
        if time.min() < 0 or time.sum() < self.work:
            return True
        held, special, assignments = self._looked_at(shape)
        time = numpy.minimum(time, self.most)
        room = numpy.stack([time, numpy.full_like(time, replicas * self.layers.usable)])
        return not holds_all(room, assignments, special=special, units=held.units, count=held.count)

    def _time_between(self, shape: LoopShape, deadline: int) -> Integers:
        """Per rank, with one stage on each: time per microbatch for its layers, by what lies around its backwards."""
        count, replicas = self.least.problem.num_microbatches, shape.kind.replicas
        path = self.work + replicas * (shape.ranks - 1) * sum(hops_ns(self.least, replicas))
        left = replicas * deadline - path
        room = list[int]()
        for ahead in shape.flying(count).tolist():
            rest = left - replicas * (count - ahead) * sum(self.least.overhead)
            parts = SHARES * (count - 1) - (ahead - 1) * self.layers.forward_share
            room.append(-1 if rest < 0 else min(SHARES * rest // parts, MOST_NS) if parts > 0 else MOST_NS)
        return numpy.array(room, dtype=numpy.int64)


class _AllKinds:
    """Of every width and number of replicas a way to count."""

    def __init__(self, counts: Sequence[_LoopCounting]) -> None:
        self.counts = counts

    def is_out_of_reach(self, deadline: int) -> bool:
        """Whether no plan at all ends within `deadline` (without the optimizer)."""
        return all(count.is_out_of_reach(deadline) for count in self.counts)


def applies_to(least: Least) -> bool:
    """Stages stand in a loop, the layers are a chain, and the makespan is minimised."""
    options = least.problem.options
    edges = {(edge.producer, edge.consumer) for edge in least.problem.profile.edges}
    return (
        options.order == "looped"
        and options.objective == "makespan"
        and all((a.name, b.name) in edges for a, b in pairwise(least.layers))
    )


def open_ranks(num_layers: int, special: Sequence[int], *, ranks: int) -> list[range]:
    """Per special layer: the ranks that may hold it."""
    found = []
    for number in special:
        behind = num_layers - 1 - number
        first = ranks - 1 - behind if behind < ranks else 0
        last = number if number < ranks else ranks - 1
        found.append(range(first, last + 1))
    return found


def _cells(least: Least, kind: LoopKind, *, special: Sequence[int]) -> int:
    """What it takes to look at all ways to put these layers on ranks."""
    size = len(least.layers)
    return sum(
        shape.ranks * int(numpy.prod([len(each) for each in open_ranks(size, special, ranks=shape.ranks)], initial=1.0))
        for shape in shapes_of(least, kind)
    )


def raise_bound(least: Least, start: int, *, reached: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """The largest value found to be no plan's, and what shows it; None if none is above `start`. Optimizer not counted.

    `reached`: what a plan takes. It is the least over the kinds, so of each only what is below that is looked at.
    """
    value, kinds, counts = reached, open_kinds(least), dict[LoopKind, dict[str, Any]]()
    if num_ranks(least, kinds) > MAX_RANKS:
        return None
    stride = -(-len(kinds) // MANY_KINDS) * -(-num_ranks(least, kinds) // MANY_RANKS)
    for layers in sorted(kinds, key=lambda each: each.kind.width * int(each.time.total.sum())):
        found = _raise_kind(layers, start, reached=value, most_cells=MAX_CELLS // len(kinds), stride=stride)
        if found is None:
            return None
        value, counts[layers.kind] = found
    rows = [{**asdict(layers.kind), **counts[layers.kind]} for layers in kinds]
    return None if value is None or not rows else (value, {"ways": rows})


def _few_proposals(layers: LoopLayers, *, most_cells: int, stride: int = 1) -> list[tuple[int, tuple[int, ...]]]:
    """Units and special layers to count by; of so many evenly chosen ones that do not take too many cells."""
    chosen = islice(proposals(layers.time.total), 0, None, stride)
    return [pair for pair in chosen if _cells(layers.least, layers.kind, special=pair[1]) <= most_cells]


def _raise_kind(
    layers: LoopLayers, start: int, *, reached: int | None, most_cells: int, stride: int
) -> tuple[int, dict[str, Any]] | None:
    """The same for one kind, at most `reached`, or what is beyond any time if memory rules every plan out.

    `stride`: of so many ways to count, evenly chosen, one is tried.
    """
    least, reached = layers.least, min(MOST_NS, reached or MOST_NS)
    few = _few_proposals(layers, most_cells=most_cells, stride=stride)
    for unit, special in few:
        if _LoopCounting(layers, unit=unit, special=special).is_out_of_reach(reached - 1):
            return reached, {"unit": unit, "special": [least.layers[number].name for number in special]}
    made = ((unit, special, _LoopCounting(layers, unit=unit, special=special)) for unit, special in few)
    return best_of(least, made, start=start, reached=reached)


def read(least: Least, certificate: Mapping[str, Any]) -> _AllKinds:
    """The ways to count that a certificate names, one of every kind; raises ValueError if it does not."""
    kinds, rows = open_kinds(least), certificate["ways"]
    is_table = isinstance(rows, list) and all(isinstance(row, Mapping) and set(row) == _FIELDS for row in rows)
    wanted = [(layers.kind.width, layers.kind.replicas) for layers in kinds]
    if not is_table or not wanted or [(row["width"], row["replicas"]) for row in rows] != wanted:
        raise refused_certificate(
            f"ways = {str(rows)[:60]!r} is not a list of a way for every width and number of replicas"
        )
    most = MAX_CELLS // len(kinds)
    return _AllKinds([_read_count(layers, row, most_cells=most) for layers, row in zip(kinds, rows, strict=True)])


def _read_count(layers: LoopLayers, row: Mapping[str, Any], *, most_cells: int) -> _LoopCounting:
    unit, special = read_counted(layers.least, row)
    if _cells(layers.least, layers.kind, special=special) > most_cells:
        raise refused_certificate(f"{len(special)} special layers are too many for the ranks")
    return _LoopCounting(layers, unit=unit, special=special)
