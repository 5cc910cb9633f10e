"""Fully sharded data parallelism (contract, "Fully sharded"; torch's `fully_shard`, FSDP2), layer by layer.

    ring       | g1 | g2 | g3 |                g: weights gathered, at the earliest when the layer before begins
    F               | F1 | F2 | F3 |
    ring       | g2 | g1 | s3 | s2 | s1 |      s: gradients added up and scattered, once the layer has ended
    B          | B3 | B2 | B1 |                the last layer's weights are there from its F

Weights and gradients take one ring, in the order in which they are asked for. All have left it when B ends. A layer
beside them has the rest of its device, where they occupy a part of it.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from planner.errors import PlanError
from planner.plan import Plan


class Resident(NamedTuple):
    """Bytes of a layer that stay on every device of a group; of `shardable` replicas that shard have a part each."""

    state: int
    shardable: int

    def shared(self, sharers: int) -> int:
        """What each of so many replicas that shard holds at the least: their parts rounded down."""
        return self.state - self.shardable + self.shardable // sharers


class LayerPass(NamedTuple):
    """Nanoseconds of one layer in one F or B, for a replica's share of a microbatch."""

    work: int
    gather: int
    """Its weights, to every replica; 0 if they are there."""
    scatter: int
    """Its gradients, added up, to the replica that has the part; 0 in F."""


def pass_ns(layers: Iterable[LayerPass], *, occupancy: int = 0) -> int:
    """What an F or a B takes, its layers in the order in which they run.

    `occupancy`: thousandths of a device that a message takes while it is on its way.
    """
    ring = began = ended = unsent = work = 0
    for layer in (*layers, LayerPass(0, 0, 0)):
        gathered = 0
        if layer.gather:
            gathered = ring = max(ring, began) + layer.gather
        ended = began + beside_ns(work, ring - began, occupancy=occupancy)  # all that it runs beside has been asked for
        if unsent:
            ring = max(ring, ended) + unsent
        began, work, unsent = max(ended, gathered), layer.work, layer.scatter
    return max(ended, ring)


def beside_ns(work: int, messages: int, *, occupancy: int) -> int:
    """What work takes that begins when messages of so many nanoseconds are yet to come, rounded up once."""
    lost = -(-max(0, messages) * occupancy // 1000)
    return work + (min(lost, -(-work * occupancy // (1000 - occupancy))) if occupancy < 1000 else lost * (work > 0))


def most_whole(weights: Sequence[int], gradients: Sequence[int]) -> int:
    """Bytes of layers that a replica has whole: two neighbours' weights, and a gradient that is sent beside another."""
    pairs = [a + b for a, b in pairwise(weights)]
    return max(pairs, default=sum(weights)) + 2 * max(gradients)


def require_in_step(plan: Plan) -> None:
    """PlanError if a fully sharded stage is not alone, or its devices do not run F0 B0 F1 B1 ... alike."""
    for stage in (each for each in plan.stages if each.is_fully_sharded):
        is_narrow = all(len(group) == 1 for group in stage.replicas) and not (stage.is_split or stage.samples)
        if len(plan.stages) > 1 or not is_narrow or plan.dealing:
            raise PlanError("a fully sharded stage is the only one of its plan, on single devices with equal shares")
        first, *others = (plan.schedule.get(group[0], ()) for group in stage.replicas)
        is_whole = len(first) % 2 == 0 and all(
            a.kind == "F" != b.kind and a.microbatch == b.microbatch
            for a, b in zip(first[::2], first[1::2], strict=True)
        )
        if any(other != first for other in others) or not is_whole:
            raise PlanError("devices of a fully sharded stage run F0 B0 F1 B1 ..., all in one order")
