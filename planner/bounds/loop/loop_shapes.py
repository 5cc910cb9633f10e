"""Which loops there are: on how many ranks, with how many stages on each, of what width and how often replicated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from planner.bounds.loop.loop_layers import LoopKind, LoopLayers, layers_of_kinds, num_groups
from planner.bounds.minimum_costs import Integers, Least

MAX_RANKS = 10_000
"""Ranks of all loops that there are; with more the bounds are left out, which would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopShape:
    """What a plan in a loop has of devices."""

    kind: LoopKind
    """Width and replicas."""
    ranks: int
    """P, each with a stage at least."""
    is_interleaved: bool
    """Whether a rank has more stages than one."""

    def flying(self, count: int) -> Integers:
        """Per rank: microbatches of each of its stages that it has run forwards of when its first backward begins."""
        after = self.ranks - numpy.arange(self.ranks)
        return numpy.minimum(2 * after - 1, self.ranks) if self.is_interleaved else numpy.minimum(after, count)

    def numbers_of_chunks(self, least: Least) -> range:
        """How many stages its ranks may have."""
        most = min(least.problem.options.max_stages_per_device, len(least.layers) // self.ranks)
        return range(2, most + 1) if self.is_interleaved else range(1, 2)


def shapes_of(least: Least, kind: LoopKind) -> list[LoopShape]:
    """Every loop of a kind that the devices and the layers allow, those on most devices first."""
    problem = least.problem
    most = min(num_groups(least, kind.width) // kind.replicas, len(least.layers))
    return [
        LoopShape(kind=kind, ranks=ranks, is_interleaved=is_interleaved)
        for ranks in range(most, 0, -1)
        for is_interleaved in (False, True)
        if (problem.options.idle_devices or ranks * kind.replicas * kind.width == least.num_devices)
        and not (is_interleaved and (problem.num_microbatches % ranks or 2 * ranks > len(least.layers)))
        and not (is_interleaved and problem.options.max_stages_per_device == 1)
    ]


def hops_ns(least: Least, replicas: int) -> tuple[int, int]:
    """What an activation takes to the next stage, and a gradient back if there always is one, at the least."""
    edges = least.problem.profile.edges
    there = min((edge.bytes for edge in edges), default=0)
    back = min((edge.backward_bytes for edge in edges), default=0)
    has_gradients = all(edge.has_gradient for edge in edges)
    returning = least.transfer_ns(back // replicas) if has_gradients else 0
    return least.transfer_ns(there // replicas), returning


def num_ranks(least: Least, kinds: Sequence[LoopLayers]) -> int:
    """How large the loops are together, which is what bounds take time by."""
    return sum(shape.ranks for layers in kinds for shape in shapes_of(least, layers.kind))


def open_kinds(least: Least) -> list[LoopLayers]:
    """Widths and replicas without a loop are left out: too few devices, or none has all layers."""
    return [layers for layers in layers_of_kinds(least) if shapes_of(least, layers.kind)]
