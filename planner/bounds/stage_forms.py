"""The forms a stage may have, which differ in its width and in what recomputes, and what each costs at least.

Where each microbatch may recompute, a form has a range of how many do, from a to b of M. Proof. The stage recomputes
a of them at least. In flight are at most b that leave little and what then fits of the others; and M - b keep all, of
which only so many fit as without recomputation.

Where each layer may, a form has a range of how many microbatches fit at once, from a to b. Proof. One leaves at most
the a-th part of the room. At any price of bytes, what the layers recompute and the price of what is left add up to the
least choices of all layers. So they recompute at least these less the price of the room's a-th part. And what does not
fit is left less by so many layers, each of which takes the shortest recomputation at least.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy

from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Integers, Least, LeastWork, prefix_sums, recomputes_by_stage
from planner.bounds.recompute_bound import recomputations
from planner.layout.costs import LayerWork, checkpoint_bytes

_RANGES, _PRICES = 8, 3
"""Ranges of the number of microbatches that recompute; and prices of bytes, at most."""
_UNIT_BITS, _MOST_BITS = 20, 58
"""Bits of the parts of a nanosecond that prices are in, and of what they amount to, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedBytes:
    """A price of bytes at which layers recompute, or keep what they have."""

    price: int
    """Of a byte that F of a microbatch leaves, in `unit`ths of a nanosecond."""
    unit: int
    least: Integers
    """Prefix sums of what each layer's best choice takes beyond F and backward, and of its bytes at that price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoices:
    """Layers that recompute or not, as each likes."""

    stash: Integers
    """Prefix sums of the bytes of layers that do not."""
    quickest: int
    """The shortest recomputation of a layer."""
    most: int
    """The bytes that a layer leaves less by one, at most."""
    priced: tuple[PricedBytes, ...]

    @property
    def longest(self) -> int:
        """Nanoseconds of what is recomputed of a microbatch in the whole trunk, at most."""
        counted = (int(self.stash[-1]) // self.most + 1) * self.quickest
        return max([counted, *(int(each.least[-1]) // each.unit for each in self.priced)])

    def beyond(self, start: int, ends: slice, *, room: Integers) -> Integers:
        """What they recompute of a microbatch where F may leave so many bytes, in nanoseconds of all replicas."""
        number = -((self.stash[start] - self.stash[ends] + room) // self.most)
        found: Integers = numpy.maximum(
            numpy.maximum(number, 0) * self.quickest, self.on_average(start, ends, room=room)
        )
        return found

    def on_average(self, start: int | Integers, ends: slice | Integers, *, room: Integers) -> Integers:
        """The same of a microbatch on average, where F leaves so many bytes on average: prices add up."""
        found = numpy.zeros_like(room)
        for each in self.priced:
            priced = each.least[ends] - each.least[start] - each.price * room
            numpy.maximum(found, priced // each.unit, out=found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForm:
    """Prefix sums over the trunk's layers, each at the least that it costs in a stage of this form."""

    width: int
    """Devices that share the stage's layers."""
    forward: Integers
    """F, in nanoseconds of all replicas; so are the next two."""
    returning: Integers
    """The shortest action that sends the gradient on, with what it recomputes."""
    backward: Integers
    """All of the backward pass, with what it recomputes."""
    held: Integers
    """Bytes that F leaves on a device for the backward pass."""
    state: Integers
    """Resident bytes on a device."""
    excess: Integers
    """Weighted device time of a microbatch beyond the least in any form."""
    weight: int
    """Of a nanosecond of recomputation beside these sums, at least."""
    lacking: Integers
    """Layers that have no costs at this width: no stage of the form holds one."""
    recomputing: tuple[int, int] = (0, 0)
    """Of its microbatches, how many recompute beside these sums, at least and at most."""
    repeated: Integers
    """The recomputation of one of them, in nanoseconds of all replicas."""
    repeated_excess: Integers
    """The same in weighted device time."""
    left: Integers
    """Bytes that F of one of them leaves on a device."""
    fitting: tuple[int, int | None] = (1, None)
    """How many microbatches fit at once beside each other, at least and at most; None: any number."""
    layers: LayerChoices | None = None
    """What they recompute beside these sums where each decides."""

    @property
    def most_beyond(self) -> int:
        """Nanoseconds of recomputation beside these sums in the whole trunk, at most."""
        return int(self.repeated[-1]) if self.layers is None else self.layers.longest

    @property
    def work(self) -> int:
        """Nanoseconds of a microbatch in the whole trunk, at most."""
        return int(self.forward[-1] + self.backward[-1]) + self.most_beyond


def least_form(trunk: Trunk) -> StageForm:
    """Every sum at the least of any width and kind; a stage takes as many slots as it has replicas."""
    none = numpy.zeros_like(trunk.forward)
    return StageForm(
        width=1, weight=0, forward=trunk.forward, returning=trunk.returning, backward=trunk.backward,
        held=trunk.held, state=trunk.state, excess=none, lacking=none, repeated=none, repeated_excess=none, left=none,
    )  # fmt: skip


def stage_forms(trunk: Trunk, weights: dict[str, int]) -> list[StageForm]:
    """Every form; none where nothing tells stages apart.

    `weights`: of the device types' time. With split placement F, I and W of a layer may differ in width.
    """
    options, widths = trunk.least.problem.options, trunk.least.widths
    is_whole = not options.recompute or (options.recompute_layers and options.recompute_microbatches)
    if options.split_placement or (widths == (1,) and is_whole):
        return []
    if recomputes_by_stage(options):
        return [_form(trunk, weights, width=width, recomputes=kind) for width in widths for kind in (False, True)]
    if options.recompute_microbatches and not is_whole:
        return [form for width in widths for form in _by_microbatch(trunk, weights, width=width)]
    forms = [_form(trunk, weights, width=width, recomputes=None) for width in widths]
    return forms if is_whole else [level for form in forms for level in _by_layer(trunk, form)]


def _by_microbatch(trunk: Trunk, weights: dict[str, int], *, width: int) -> Iterator[StageForm]:
    """Where each microbatch recomputes or not: forms of all numbers of those that do, in a few ranges."""
    count = trunk.least.problem.num_microbatches
    kept, recomputed = (_form(trunk, weights, width=width, recomputes=kind) for kind in (False, True))
    rows = [[e for e in trunk.least.choices(layer) if e[1] == width] for layer in trunk.path]
    spent = [[weights[name] * width * work.recompute_ns for name, _, work in row] for row in rows]
    repeated = prefix_sums([min((work.recompute_ns for _, _, work in row), default=0) for row in rows])
    beyond = prefix_sums([min(row, default=0) for row in spent])
    ends = sorted({count * part // _RANGES for part in range(_RANGES)} | {count - 1})
    for first, last in pairwise([-1, *ends]):
        yield replace(
            kept, recomputing=(first + 1, last), repeated=repeated, repeated_excess=beyond, left=recomputed.held
        )
    yield recomputed


def layer_choices(least: Least, layers: Sequence[int], *, width: int) -> LayerChoices:
    """What these layers may recompute at a width where each of them or each microbatch decides."""
    choices = [_choices(least, layer, width=width) for layer in layers]
    pairs = {(time, own[0][1] - left) for own in choices for time, left in own if left < own[0][1]}
    at_once = least.problem.max_replicas * max(device.usable_bytes for device in least.problem.cluster.devices)
    stash = prefix_sums([own[0][1] if own else 0 for own in choices])
    most, ratios = max(1, at_once, int(stash[-1])), sorted({Fraction(*pair) for pair in pairs})
    return LayerChoices(
        stash=stash,
        quickest=min((time for time, _ in pairs), default=0),
        most=max((size for _, size in pairs), default=1),
        priced=tuple(_price_bytes(choices, ratio, most=most) for ratio in ratios[:: -(-len(ratios) // _PRICES) or 1]),
    )


def _by_layer(trunk: Trunk, form: StageForm) -> Iterator[StageForm]:
    """Where each layer recomputes or not: forms of how many microbatches fit at once, each twice as many as before."""
    layers = layer_choices(trunk.least, trunk.path, width=form.width)
    fewest, count = 1, trunk.least.problem.num_microbatches
    while fewest <= count:
        last = 2 * fewest > count
        yield replace(form, fitting=(fewest, None if last else 2 * fewest - 1), layers=layers)
        fewest *= 2


def _form(trunk: Trunk, weights: dict[str, int], *, width: int, recomputes: bool | None) -> StageForm:
    """`recomputes`: None where that is decided by layer or microbatch, which costs nothing here."""
    least, cheapest = trunk.least, trunk.least.weighted_work(weights)

    def whole(work: LayerWork) -> int:
        return work.forward_ns + work.backward_ns + (work.recompute_ns if recomputes else 0)

    rows = [[entry for entry in least.choices(layer) if entry[1] == width] for layer in trunk.path]
    spent = [[weights[name] * width * whole(work) for name, _, work in row] for row in rows]
    none = numpy.zeros_like(trunk.forward)
    times = form_times(least, trunk.path, width=width, recomputes=recomputes)
    return StageForm(
        width=width,
        weight=width * min(weights.values()),
        repeated=none,
        repeated_excess=none,
        left=none,
        forward=times.forward,
        returning=times.returning,
        backward=times.backward,
        held=prefix_sums([held_at(least, layer, width=width, recomputes=recomputes) for layer in trunk.path]),
        state=prefix_sums([least.states(layer).get(width, 0) for layer in trunk.path]),
        excess=prefix_sums(
            [max(0, min(row, default=0) - cheapest[layer]) for layer, row in zip(trunk.path, spent, strict=True)]
        ),
        lacking=prefix_sums([not row for row in rows]),
    )


def form_times(
    least: Least, layers: Sequence[int], *, width: int, recomputes: bool | None, types: Container[str] = ()
) -> LeastWork:
    """Prefix sums of what layers take at a width, in nanoseconds of all replicas; 0 where they cannot have it.

    `types`: of devices, for layers that were measured there; none: any.
    """

    def take(work: LayerWork) -> tuple[int, int, int, int]:
        returning, backward = least.returning(work), work.backward_ns
        again = work.recompute_ns if recomputes else 0
        return work.forward_ns, returning + again, backward + again, backward - returning

    columns = []
    for layer in layers:
        rows = [(name, take(work)) for name, own, work in least.choices(layer) if own == width]
        chosen = [times for name, times in rows if name in types] or [times for _, times in rows] or [(0, 0, 0, 0)]
        columns.append([min(column) for column in zip(*chosen, strict=True)])
    forward, returning, backward, rest = map(prefix_sums, numpy.array(columns, dtype=numpy.int64).reshape(-1, 4).T)
    return LeastWork(forward=forward, returning=returning, backward=backward, rest=rest)


def held_at(least: Least, layer: int, *, width: int, recomputes: bool | None) -> int:
    """Bytes that F leaves of a layer on a device at a width, at least; 0 where it cannot have it.

    `recomputes`: whether its stage does; None where layers or microbatches decide.
    """
    entry = dict(least.entries(layer)).get(width)
    return 0 if entry is None else min(least.held_sizes(entry, may_recompute=recomputes is not False))


def _choices(least: Least, layer: int, *, width: int) -> list[tuple[int, int]]:
    """What a layer recomputes and what F leaves of it, nothing first; none where it cannot have this width."""
    works = [work for _, own, work in least.choices(layer) if own == width]
    entry = dict(least.entries(layer)).get(width)
    if entry is None or not works:
        return []
    return [
        (min(0 if kind is None else work.recomputation_ns(kind) for work in works), checkpoint_bytes(entry, kind))
        for kind in recomputations(entry, by_layer=least.problem.options.recompute_layers)
    ]


def _price_bytes(choices: Sequence[list[tuple[int, int]]], ratio: Fraction, *, most: int) -> PricedBytes:
    """At a price near the ratio, so that it times `most` bytes stays within 64 bits."""
    unit = 1 << max(0, min(_UNIT_BITS, _MOST_BITS - int(ratio * most).bit_length()))
    price = int(ratio * unit)
    sums = [min((time * unit + price * left for time, left in own), default=0) for own in choices]
    return PricedBytes(price=price, unit=unit, least=prefix_sums(sums))
