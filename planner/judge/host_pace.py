"""Two clocks (section 3): when the card ends an action for which its host has to ask first.

Per layer and kind of action the host takes h to ask and the card d to work; the first kernel is asked for after f, and
the last one takes l. With H and D the times at which the host and the card are free,

    [ H' ]   [ h            -inf ]   [ H ]
    [ D' ] = [ max(f+d, h+l)   d ] * [ D ]          in max-plus algebra: * adds, + takes the larger

Layers of a stage are multiplied, those of F as listed, of I, W and B backwards; a layer that recomputes does so right
before. A host begins to ask once it has asked for the action before, and the third one before has ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy

from planner.judge.costs import KINDS, Times
from planner.judge.recomputation import FULL, NONE
from planner.judge.samples import round_up
from profiles.model_profile import LayerCost

MOST_AHEAD = 2
"""Actions that may be under way, or wait, on the card while the host asks for another."""


class HostAsking(NamedTuple):
    """What the host takes for one action of a layer."""

    host: Fraction
    first: Fraction
    last: Fraction


NO_ASKING = HostAsking(Fraction(0), Fraction(0), Fraction(0))


class Pace(NamedTuple):
    """An action's matrix without the card's own time: what the host takes, and from its beginning to the end."""

    host: int
    cross: int


class _Matrix(NamedTuple):
    host: int
    cross: int
    card: int

    def before(self, later: "_Matrix") -> "_Matrix":
        """The product: this action, and then a later one."""
        return _Matrix(
            host=later.host + self.host,
            cross=max(later.cross + self.host, later.card + self.cross),
            card=later.card + self.card,
        )


class TimedLayer(NamedTuple):
    """A layer of a stage for a share of a microbatch."""

    times: Times
    exchanges: Times
    asking: Mapping[str, HostAsking]
    """By action."""
    kind: str
    """By which kind it recomputes, if it does."""


def asking_times(measured: Mapping[int, LayerCost], samples: Fraction) -> dict[str, HostAsking]:
    """What the host takes by action: on the line between the neighbouring sizes, and beyond all sizes the nearest's."""
    below = [size for size in measured if size <= samples] or [min(measured)]
    above = [size for size in measured if size >= samples] or [max(measured)]
    low, high = max(below), min(above)
    weight = (samples - low) / (high - low) if low < high else Fraction(0)
    ends = _stated(measured[low]), _stated(measured[high])
    return {
        action: HostAsking(
            *((1 - weight) * a + weight * b for a, b in zip(*(_at(each, action) for each in ends), strict=True))
        )
        for action in {**ends[0], **ends[1]}
    }


def _at(stated: Mapping[str, HostAsking], action: str) -> HostAsking:
    return stated.get(action, NO_ASKING)


def _stated(cost: LayerCost) -> dict[str, HostAsking]:
    found = {each.action: HostAsking(*map(Fraction, (each.host_ns, each.first_ns, each.last_ns))) for each in cost.host}
    if found and "B" not in found:
        before, after = _at(found, "I"), found.get("W")
        found["B"] = before if after is None else HostAsking(before.host + after.host, before.first, after.last)
    return found


def stage_paces(layers: Sequence[TimedLayer], *, share: Fraction, overhead: Mapping[str, int]) -> tuple[Pace, ...]:
    """F, I, W and B of a stage on a device that takes a share of every microbatch; empty where no host takes time.

    As the card's: a layer's times for a whole microbatch are rounded up, then the share of the stage's; the overhead
    of an action is its host's too.
    """
    if not any(layer.asking for layer in layers):
        return ()
    found = []
    for kind in KINDS:
        whole = _Matrix(0, 0, 0)
        for each in _in_a_row(layers, kind, share=share):
            whole = whole.before(each)
        found.append(Pace(*(round_up(share * part) + overhead[kind] for part in (whole.host, whole.cross))))
    return tuple(found)


def after_gathers(
    paces: Sequence[Pace], layers: Sequence[TimedLayer], *, share: Fraction, taken: Mapping[str, int]
) -> tuple[Pace, ...]:
    """The same of a fully sharded stage, whose card takes longer: it gathers once the first kernel is asked for."""
    found = []
    for kind, pace in zip(KINDS, paces, strict=True):
        layer = layers[0 if kind == "F" else -1]
        begins_with = layer.kind if layer.kind != NONE and kind in "IB" else kind
        first = round_up(share * round_up(_at(layer.asking, begins_with).first / share))
        found.append(Pace(pace.host, max(pace.cross, first + taken[kind])))
    return tuple(found)


def _in_a_row(layers: Sequence[TimedLayer], kind: str, *, share: Fraction) -> Iterable[_Matrix]:
    for layer in layers if kind == "F" else layers[::-1]:
        own = dict(zip((*KINDS, FULL), layer.times, strict=True))
        if layer.kind != NONE and kind in "IB":
            yield _matrix(own[FULL], _at(layer.asking, layer.kind), exchanged=Fraction(0), share=share)
        exchanged = dict(zip((*KINDS, FULL), layer.exchanges, strict=True))[kind] if share < 1 else Fraction(0)
        yield _matrix(own[kind], _at(layer.asking, kind), exchanged=exchanged, share=share)


def _matrix(card: Fraction, asking: HostAsking, *, exchanged: Fraction, share: Fraction) -> _Matrix:
    works = round_up(card / share) + round_up(exchanged / share)
    host, first, last = (round_up(each / share) for each in asking)
    return _Matrix(host=host, cross=max(first + works, host + min(last, works)), card=works)


def card_ends(ends: Any, *, paces: Any, first: Any) -> Any:
    """[actions] before when none can end, since its host asks for it so late; the devices one after the other.

    `ends` [actions] as claimed, `paces` [actions, 2] as `Pace`, `first` [devices + 1] where those of each begin.
    """
    found = numpy.zeros_like(ends)
    for begin, end in pairwise(first):
        host, cross = paces[begin:end].T
        free = numpy.cumsum(host) - host
        waited = numpy.zeros_like(host)
        waited[MOST_AHEAD + 1 :] = ends[begin:end][: -MOST_AHEAD - 1]
        found[begin:end] = free + numpy.maximum.accumulate(waited - free) + cross
    return found
