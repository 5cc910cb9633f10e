"""What the stages of a loop have to hold: a question for every way to put special layers into stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy

from planner.bounds.loop.loop_cases import LoopFilling
from planner.bounds.loop.loop_layers import LoopLayers, UnitsHeld
from planner.bounds.loop.loop_order import order_of
from planner.bounds.minimum_costs import Integers

_MOST_PLACEMENTS = 64
"""Ways to put special layers into stages, of one number of ranks and chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRooms:
    """Time and memory left on each rank."""

    room: Integers
    """[resources, ranks] time per microbatch and bytes."""
    special: Integers
    """[special layers, resources, ranks] what each of them takes of that."""
    held: UnitsHeld
    """Units that a rank holds in what is left."""

    def beside(self, ranks: Sequence[int]) -> Integers:
        """[ranks] units beside special layers, each on the rank that is listed for it; less than 0 without room."""
        left = self.room.copy()
        for number, rank in enumerate(ranks):
            left[:, rank] -= self.special[number, :, rank]
        found: Integers = numpy.where((left >= 0).all(axis=0), self.held.count(numpy.maximum(left, 0)[None])[0], -1)
        return found


class StageFillings:
    """The questions of one way to count: layers of so many units, and special ones.

    Proof. A layer with u units takes u x the least F, and the least backward pass, of any layer's u-th part. Special
    layers, and those without units, stand where the order of the chain lets them: layer i is in one of the first i + 1
    stages, and with k layers behind it in one of the last k + 1; no stage is empty, so between two stages with special
    layers there are no more stages than layers in between. A stage without a special layer, in which no layer without
    units can be, has the units of one layer at least. Stages behind that of a special layer hold at most the units
    behind it, and those before it at most the units before. What else stages hold beside units is left out, but for the
    first and the last layer, whose stages are known.
    """

    def __init__(self, layers: LoopLayers, *, unit: int, special: Sequence[int]) -> None:
        self.layers, self.special = layers, sorted(special)
        self.order = [list(special).index(number) for number in self.special]
        """Which of the special layers, as they were listed, each of them is."""
        self.sizes = layers.time.total // unit
        self.sizes[self.special] = 0

    @cached_property
    def unit(self) -> Integers:
        """[2] the least F and backward pass of a unit."""
        chosen, time = self.sizes > 0, self.layers.time
        return numpy.array([(each[chosen] // self.sizes[chosen]).min() for each in (time.forward, time.backward)])

    def questions(
        self, *, ranks: int, chunks: int, rooms: RankRooms, hops: tuple[int, int]
    ) -> list[LoopFilling] | None:
        """Of so many stages one for every way to place the special layers; None where these are too many."""
        stages, count = ranks * chunks, self.layers.least.problem.num_microbatches
        placements = self._placements(stages)
        if placements is None or not self.sizes.any():
            return None
        return [
            LoopFilling(
                order=order_of(ranks=ranks, chunks=chunks, count=count),
                base=self._base(placement, stages=stages),
                unit=self.unit,
                lower=self._lower(placement, stages=stages),
                upper=self._upper(placement, stages=stages),
                rooms=rooms.beside([placement[self.order.index(k)] % ranks for k in range(len(placement))]),
                units=int(self.sizes.sum()),
                hops=hops,
            )
            for placement in placements
        ]

    def _placements(self, stages: int) -> list[tuple[int, ...]] | None:
        """The stages of the special layers, in the order of the chain; None where there are too many ways."""
        found, before, last = list[tuple[int, ...]]([()]), -1, stages - 1
        for layer in self.special:
            least = last - (len(self.sizes) - 1 - layer)
            found = [
                (*chosen, stage)
                for chosen in found
                for former in chosen[-1:] or (-1,)
                for stage in range(max(0, former, least), min(last, former + layer - before) + 1)
            ]
            if len(found) > _MOST_PLACEMENTS:
                return None
            before = layer
        return found

    def _base(self, placement: Sequence[int], *, stages: int) -> Integers:
        """[2, stages] what is known of a stage beside its units."""
        time, replicas = self.layers.time, self.layers.kind.replicas
        found = replicas * numpy.array(self.layers.least.overhead)[:, None] + numpy.zeros(stages, dtype=numpy.int64)
        ends = [(number, stage) for number, stage in ((0, 0), (-1, stages - 1)) if self._is_light(number)]
        for layer, stage in (*zip(self.special, placement, strict=True), *ends):
            found[:, stage] += time.forward[layer], time.backward[layer]
        return found

    def _is_light(self, number: int) -> bool:
        """Whether a layer has no units and is none of the special ones."""
        return not self.sizes[number] and number % len(self.sizes) not in self.special

    def _lower(self, placement: Sequence[int], *, stages: int) -> Integers:
        """[stages] units that a stage has at least."""
        size, last = len(self.sizes), stages - 1
        found = numpy.full(stages, self.sizes[self.sizes > 0].min(), dtype=numpy.int64)
        found[list(placement)] = 0
        for number in filter(self._is_light, range(size)):
            found[max(0, last - (size - 1 - number)) : number + 1] = 0
        return found

    def _upper(self, placement: Sequence[int], *, stages: int) -> Integers:
        """[stages] units that a stage has at most."""
        found = numpy.full(stages, self.sizes.sum(), dtype=numpy.int64)
        for layer, stage in zip(self.special, placement, strict=True):
            found[:stage] = numpy.minimum(found[:stage], self.sizes[:layer].sum())
            found[stage + 1 :] = numpy.minimum(found[stage + 1 :], self.sizes[layer:].sum())
        return found
