"""The device orders of a schedule as arrays, so that millions of actions can be looked at together."""

from dataclasses import dataclass
from functools import cached_property

import numpy
from numpy.typing import NDArray

from planner.actions import Action
from planner.plan import Schedule

Integers = NDArray[numpy.int64]

_KIND_CODES = numpy.full(256, -1, dtype=numpy.int64)
"""By character: the index of a kind among F, I, W, B."""
_KIND_CODES[list(b"FIWB")] = range(4)

PLACES = numpy.array([0, 1, 2, 1], dtype=numpy.int64)
"""By kind: which of three slots of a microbatch it fills; I and B fill the same one."""

MOST = 2**31
"""Stages and microbatches from here on are not encoded."""


@dataclass(frozen=True, kw_only=True)
class EncodedOrders:
    """All device orders, one device after the other: A actions on D devices."""

    schedule: Schedule
    """The device orders themselves."""
    first: Integers
    """[D + 1] where the device order of each device begins."""
    kind: Integers
    """[A] index among F, I, W, B."""
    stage: Integers
    """[A] number of the stage that the action belongs to."""
    microbatch: Integers
    """[A] number of the microbatch that it works on."""

    @cached_property
    def device(self) -> Integers:
        """[A] index of the device."""
        return numpy.repeat(numpy.arange(len(self.first) - 1), numpy.diff(self.first))

    @cached_property
    def place(self) -> Integers:
        """[A] 0 for F, 1 for I and B, 2 for W."""
        return PLACES[self.kind]


def encode(schedule: Schedule) -> EncodedOrders | None:
    """The arrays of a schedule; None if an action in it is none. Device orders that several devices share are read
    once.
    """
    known: dict[int, tuple[Integers, Integers, Integers] | None] = {}
    for device_order in schedule.values():
        if id(device_order) not in known:
            known[id(device_order)] = _encode_order(device_order)
    columns = [known[id(device_order)] for device_order in schedule.values()]
    sound = [column for column in columns if column is not None]
    if len(sound) < len(columns):
        return None
    lengths = [len(column[0]) for column in sound]
    kind, stage, microbatch = (
        numpy.concatenate([numpy.empty(0, numpy.int64), *(column[n] for column in sound)]) for n in range(3)
    )
    first = numpy.concatenate([[0], numpy.cumsum(numpy.array(lengths, dtype=numpy.int64))]).astype(numpy.int64)
    return EncodedOrders(schedule=schedule, first=first, kind=kind, stage=stage, microbatch=microbatch)


def _encode_order(device_order: tuple[Action, ...]) -> tuple[Integers, Integers, Integers] | None:
    """Kinds, stages and microbatches; None if one of them is none."""
    if not device_order:
        nothing = numpy.empty(0, dtype=numpy.int64)
        return nothing, nothing, nothing
    if set(map(type, device_order)) != {Action}:
        return None
    kinds, stages, microbatches = zip(*device_order, strict=True)
    if not (set(map(type, stages)) == set(map(type, microbatches)) == {int} and set(kinds) <= {"F", "I", "W", "B"}):
        return None
    if min(stages) < 0 or min(microbatches) < 0 or max(stages) >= MOST or max(microbatches) >= MOST:
        return None
    codes = _KIND_CODES[numpy.frombuffer("".join(kinds).encode(), dtype=numpy.uint8)]
    return codes, numpy.array(stages, dtype=numpy.int64), numpy.array(microbatches, dtype=numpy.int64)
