"""The loop bound: filling, work in whole layers, and draining where stages stand in a loop (`order = looped`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy

from planner.bounds.counting import best_of, counted_work, holds_all, lost_at_ends, proposals, read_counted
from planner.bounds.minimum_costs import Least

MAX_CELLS = 400_000
"""Ways to put special layers on ranks, times the ranks, over all loops that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopShape:
    """What a plan in a loop has of devices."""

    ranks: int
    """P, each with a stage at least."""
    replicas: int
    """Of the whole pipeline."""


class LoopCounting:
    """What the ranks of a loop hold in whole layers.

    Proof. A plan has P ranks of r devices; stage s is on rank s mod P, and the layers of a chain, numbered from 0, are
    cut into stages in their order, none empty. So layer i is in stage i at the latest, and rank p waits for the F of
    the layers before layer p at least, and after its last B follow theirs, as far as gradients flow; between stages lie
    p transfers, between different devices, of an r-th of some edge's bytes at least, and p of gradients if all edges
    have some. A device of it runs M times its layers, for the r-th part of a microbatch: r T >= those F + those B + r x
    those transfers + M x (their work + r x the overhead of an F and a B), since times on a replica are sums divided by
    r and rounded up. That gives every rank a time per microbatch for whole layers, which are counted as in `counting`,
    except that not all ranks are open to a special layer: layer i < P is in one of the first i + 1 stages, so on rank i
    or before; a layer with k < P behind it is in one of the last k + 1 stages, and as the last one is on rank P - 1, on
    rank P - 1 - k or after. If that is impossible for all P and r there are, no plan ends by T.
    """

    def __init__(self, least: Least, *, unit: int, special: Sequence[int]) -> None:
        self.least, self.unit, self.shapes = least, unit, shapes_of(least)
        work = counted_work(least)
        chosen = set(special)
        self.special = [int(work[number]) for number in special]
        self.units = sum(int(time) // unit for number, time in enumerate(work) if number not in chosen)
        self.work = int(work.sum())
        self.lost = lost_at_ends(least)
        self.overhead = sum(least.overhead)
        self.open = [open_ranks(len(least.layers), special, ranks=shape.ranks) for shape in self.shapes]

    def is_out_of_reach(self, deadline: int) -> bool:
        """Whether no plan ends within `deadline` (without the optimizer)."""
        return deadline < 0 or all(
            self._is_shape_out(shape, ranks, deadline=deadline)
            for shape, ranks in zip(self.shapes, self.open, strict=True)
        )

    def _is_shape_out(self, shape: LoopShape, ranks: Sequence[range], *, deadline: int) -> bool:
        """Whether no plan of this shape does; `ranks`: those that may hold each special layer."""
        count = self.least.problem.num_microbatches
        travel = shape.replicas * _hop_ns(self.least, shape.replicas) * numpy.arange(shape.ranks)
        lost = self.lost[: shape.ranks] + travel
        room = (shape.replicas * deadline - lost) // count - shape.replicas * self.overhead
        if room.min() < 0 or room.sum() < self.work:
            return True
        ways = list(product(*ranks))
        seats = numpy.array(ways, dtype=numpy.int64).reshape(len(ways), len(self.special))
        return not holds_all(room, seats, special=self.special, unit=self.unit, units=self.units)


def applies_to(least: Least) -> bool:
    """Stages stand in a loop, the layers are a chain, and the makespan is minimised."""
    options = least.problem.options
    edges = {(edge.producer, edge.consumer) for edge in least.problem.profile.edges}
    return (
        options.order == "looped"
        and options.objective == "makespan"
        and not options.split_placement
        and least.widths == (1,)
        and all((a.name, b.name) in edges for a, b in pairwise(least.layers))
    )


def shapes_of(least: Least) -> list[LoopShape]:
    """Every loop that the devices, the layers and the samples allow."""
    devices = least.num_devices
    return [
        LoopShape(ranks=ranks, replicas=replicas)
        for replicas in least.problem.allowed_replicas
        for ranks in range(1, min(devices // replicas, len(least.layers)) + 1)
        if least.problem.options.idle_devices or ranks * replicas == devices
    ]


def _hop_ns(least: Least, replicas: int) -> int:
    """What an activation takes to the next stage, and a gradient back if there always is one, at the least."""
    edges = least.problem.profile.edges
    there = min((edge.bytes for edge in edges), default=0)
    back = min((edge.backward_bytes for edge in edges), default=0)
    has_gradients = all(edge.has_gradient for edge in edges)
    returning = least.transfer_ns(back // replicas) if has_gradients else 0
    return least.transfer_ns(there // replicas) + returning


def open_ranks(num_layers: int, special: Sequence[int], *, ranks: int) -> list[range]:
    """Per special layer: the ranks that may hold it."""
    found = []
    for number in special:
        behind = num_layers - 1 - number
        first = ranks - 1 - behind if behind < ranks else 0
        last = number if number < ranks else ranks - 1
        found.append(range(first, last + 1))
    return found


def _cells(least: Least, special: Sequence[int]) -> int:
    """What it takes to look at all ways to put these layers on ranks."""
    size = len(least.layers)
    return sum(
        shape.ranks * int(numpy.prod([len(each) for each in open_ranks(size, special, ranks=shape.ranks)], initial=1.0))
        for shape in shapes_of(least)
    )


def climb(least: Least, start: int, *, reached: int | None = None) -> tuple[int, dict[str, Any]] | None:
    """The largest value found to be no plan's, and what shows it; None if none is above `start`. Optimizer not counted.

    `reached`: what a plan takes.
    """
    if not shapes_of(least):
        return None
    few = (pair for pair in proposals(least) if _cells(least, pair[1]) <= MAX_CELLS)
    made = ((unit, special, LoopCounting(least, unit=unit, special=special)) for unit, special in few)
    return best_of(least, made, start=start, reached=reached)


def read(least: Least, certificate: Mapping[str, Any]) -> LoopCounting:
    """The counting that a certificate names; raises ValueError if it is none."""
    unit, special = read_counted(least, certificate)
    if _cells(least, special) > MAX_CELLS:
        raise ValueError(f"certificate: {len(special)} special layers are too many for the ranks; make the bound again")
    return LoopCounting(least, unit=unit, special=special)
