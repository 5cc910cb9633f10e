"""The device orders of a schedule as arrays, so that millions of actions can be looked at together."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

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
    """The arrays of a schedule; None if an action in it is none. Orders that several devices share are read once."""
    distinct = {id(device_order): device_order for device_order in schedule.values()}
    columns = _encode_actions([*chain.from_iterable(distinct.values())])
    if columns is None:
        return None
    ends = dict(zip(distinct, accumulate(map(len, distinct.values())), strict=True))
    if len(distinct) < len(schedule):
        orders = schedule.values()
        parts = [numpy.arange(ends[id(each)] - len(each), ends[id(each)]) for each in orders]
        columns = columns[:, numpy.concatenate(parts)]
    first = numpy.array([0, *accumulate(map(len, schedule.values()))], dtype=numpy.int64)
    kind, stage, microbatch = columns
    return EncodedOrders(schedule=schedule, first=first, kind=kind, stage=stage, microbatch=microbatch)


def _encode_actions(actions: list[Action]) -> Integers | None:
    """[3, A] kinds, stages and microbatches; None if one of them is none."""
    if not actions:
        return numpy.empty((3, 0), dtype=numpy.int64)
    if set(map(type, actions)) != {Action}:
        return None
    kinds, stages, microbatches = zip(*actions, strict=True)
    if not ({*map(type, stages)} == {*map(type, microbatches)} == {int} and {*kinds} <= {"F", "I", "W", "B"}):
        return None
    if min(stages) < 0 or min(microbatches) < 0 or max(stages) >= MOST or max(microbatches) >= MOST:
        return None
    columns = numpy.empty((3, len(actions)), dtype=numpy.int64)
    columns[0] = _KIND_CODES[numpy.frombuffer("".join(kinds).encode(), dtype=numpy.uint8)]
    columns[1], columns[2] = stages, microbatches
    return columns
