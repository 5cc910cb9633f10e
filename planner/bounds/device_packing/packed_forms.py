"""The forms that stages have for the packing bound: on how many devices a replica is, and how much it recomputes.

A stage recomputes or not where that is decided as a whole. Where each layer decides, or each microbatch, a form is a
*level*: of L equal ranges of the bytes that F may leave, the one in which they are, on average over the microbatches.
Proof. At any price of bytes, what a microbatch recomputes and the price of what it leaves add up to the least choices
of all layers. So does the average of all microbatches, which leaves no more than the upper end of its range.
"""

from collections.abc import Callable, Container, Sequence
from itertools import product

import numpy

from planner.bounds.heaviest_path import NEVER
from planner.bounds.minimum_costs import Integers, Least, LeastWork, prefix_sums, recomputes_by_stage
from planner.bounds.stage_forms import form_times, held_at, layer_choices

LEVELS, MAX_LEVELS = 4, 8
"""Ranges of the bytes that stages leave where layers or microbatches decide; and so many in a certificate, at most."""


class PackedForms:
    """[form, boundary]: prefix sums over keys, each at the least that it costs in a stage of this form."""

    def __init__(self, least: Least, layers: Sequence[int], *, levels: int) -> None:
        """`layers`: the numbers of the keys' layers."""
        kinds = (False, True) if recomputes_by_stage(least.problem.options) else (None,)
        self.least, self.layers, self.num_levels = least, layers, levels
        shapes = list(product(least.widths, kinds, range(levels)))
        self.kinds = [(width, kind) for width, kind, _ in shapes]
        self.width, self.level = (numpy.array([shape[part] for shape in shapes]) for part in (0, 2))
        self.recomputes = numpy.array([bool(kind) for _, kind in self.kinds])
        self.choices = {width: layer_choices(least, layers, width=width) for width in least.widths if levels > 1}
        self.held = self._table(lambda layer, width, kind: held_at(least, layer, width=width, recomputes=kind))
        """Bytes that F leaves on a device."""
        self.state = self._table(lambda layer, width, _: least.states(layer).get(width, 0))
        """Resident bytes on a device."""
        self.lacking = self._table(lambda layer, width, _: width not in least.layer_widths[layer])
        """Layers that no stage of the form can hold."""

    def _table(self, figure: Callable[[int, int, bool | None], int]) -> Integers:
        return numpy.array(
            [prefix_sums([figure(layer, width, kind) for layer in self.layers]) for width, kind in self.kinds]
        )

    def times(self, types: Container[str] = ()) -> LeastWork:
        """Nanoseconds of all replicas, on devices of these types, or on any."""
        found = [
            form_times(self.least, self.layers, width=width, recomputes=kind, types=types) for width, kind in self.kinds
        ]
        return LeastWork(
            forward=numpy.array([each.forward for each in found]),
            returning=numpy.array([each.returning for each in found]),
            backward=numpy.array([each.backward for each in found]),
            rest=numpy.array([each.rest for each in found]),
        )

    def on_all_devices(self, table: Integers) -> Integers:
        """Prefix sums of what every key takes on all devices of a replica together, in the form where that is least."""
        own = numpy.where(numpy.diff(self.lacking) > 0, NEVER, numpy.diff(table) * self.width[:, None])
        return prefix_sums(own.min(axis=0))

    def leave(self, start: Integers, end: Integers, *, form: Integers) -> tuple[Integers, Integers, Integers]:
        """Of stages: the bytes that F leaves on a device, at least and at most, and what they recompute for that."""
        least, most, again = (numpy.zeros_like(start) for _ in range(3))
        for width, choices in self.choices.items():
            own = self.width[form] == width
            first, last, level = start[own], end[own], self.level[form[own]]
            whole, is_last = choices.stash[last] - choices.stash[first], level + 1 == self.num_levels
            room = -(-whole * (level + 1) // self.num_levels)
            least[own], most[own] = whole * level // self.num_levels, numpy.where(is_last, NEVER, room)
            again[own] = numpy.where(is_last, 0, choices.on_average(first, last, room=room))
        return least, most, again


def useful_levels(least: Least) -> int:
    """How many ranges of the bytes that stages leave are useful: 1 where neither layers nor microbatches decide."""
    options = least.problem.options
    decide = options.recompute and not recomputes_by_stage(options)
    return LEVELS if decide and not options.offload else 1
