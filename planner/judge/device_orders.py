"""The schedule as arrays: A actions on D devices, one device after the other."""

from dataclasses import dataclass
from functools import cached_property

import numpy
from numpy.typing import NDArray

from planner.actions import Action
from planner.judge.costs import KINDS
from planner.judge.stage_replicas import StageReplica
from planner.plan import Schedule

Integers = NDArray[numpy.int64]
Booleans = NDArray[numpy.bool_]

_NOWHERE = -1
"""Stands for whatever is not there: a kind that is none, a stage or a microbatch beyond those of the problem."""

_CODES = {kind: code for code, kind in enumerate(KINDS)}

_CODE_OF_BYTE = numpy.array([_CODES.get(chr(byte), _NOWHERE) for byte in range(256)], dtype=numpy.int64)

_PLACE_OF_KIND = numpy.array([0, 1, 2, 1], dtype=numpy.int64)
"""By F, I, W, B: the place that an action takes among those of its stage and microbatch."""


def are_actions(order: tuple[object, ...]) -> bool:
    """Whether all of them are; looks at columns, since there may be millions."""
    if set(map(type, order)) - {Action}:
        return False
    kinds, stages, microbatches = zip(*order, strict=True) if order else ((), (), ())  # type: ignore[misc, unused-ignore]
    types = set(map(type, stages)) | set(map(type, microbatches))
    return types <= {int} and all(isinstance(kind, str) for kind in set(kinds))


@dataclass(frozen=True, kw_only=True)
class DeviceOrders:
    """All device orders; what is not of this problem is `_NOWHERE`."""

    schedule: Schedule
    """Per device its actions, as the plan lists them."""
    first: Integers
    """[D + 1] where the order of each device begins."""
    kind: Integers
    """[A] index among F, I, W, B."""
    stage: Integers
    """Stage of each action: [A]."""
    microbatch: Integers
    """Microbatch of each action: [A]."""

    @cached_property
    def device(self) -> Integers:
        """[A] index of the device."""
        return numpy.repeat(numpy.arange(len(self.first) - 1), numpy.diff(self.first))

    @cached_property
    def place(self) -> Integers:
        """[A] 0 for F, 1 for I and B, 2 for W."""
        return _PLACE_OF_KIND[self.kind]

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """[D] their names."""
        return tuple(self.schedule)

    def action(self, row: int) -> Action:
        """The action of a row, as the plan has it."""
        device = int(self.device[row])
        return self.schedule[self.devices[device]][row - int(self.first[device])]

    def device_name(self, row: int) -> str:
        """Name of the device that runs the action of a row."""
        return self.devices[int(self.device[row])]

    def runners(self, replicas: list[StageReplica]) -> Integers:
        """[A] index of the stage replica that runs the action; `_NOWHERE` if the device has none of that stage."""
        index = {device: number for number, device in enumerate(self.devices)}
        num_stages = max((replica.stage for replica in replicas), default=0) + 1
        of_pair = {
            index[device] * num_stages + replica.stage: number
            for number, replica in enumerate(replicas)
            for device in replica.group
            if device in index
        }
        keys = numpy.array(sorted(of_pair), dtype=numpy.int64)
        numbers = numpy.array([of_pair[key] for key in keys.tolist()], dtype=numpy.int64)
        if not len(keys):
            return numpy.full(len(self.kind), _NOWHERE, dtype=numpy.int64)
        wanted = self.device * num_stages + self.stage
        at = numpy.minimum(numpy.searchsorted(keys, wanted), len(keys) - 1)
        return numpy.where((keys[at] == wanted) & (self.stage >= 0), numbers[at], _NOWHERE)


def read_orders(schedule: Schedule, *, num_stages: int, num_microbatches: int) -> DeviceOrders:
    """The arrays of a schedule that consists of actions."""
    known: dict[int, Integers] = {}
    for order in schedule.values():
        if id(order) not in known:
            known[id(order)] = _columns(order, limits=(num_stages, num_microbatches))
    tables = [known[id(order)] for order in schedule.values()]
    columns = numpy.concatenate([numpy.empty((3, 0), dtype=numpy.int64), *tables], axis=1)
    lengths = numpy.array([0, *(table.shape[1] for table in tables)], dtype=numpy.int64)
    return DeviceOrders(
        schedule=schedule, first=numpy.cumsum(lengths), kind=columns[0], stage=columns[1], microbatch=columns[2]
    )


def _columns(order: tuple[Action, ...], *, limits: tuple[int, int]) -> Integers:
    """[3, actions] kind, stage and microbatch."""
    if not order:
        return numpy.empty((3, 0), dtype=numpy.int64)
    kinds, stages, microbatches = zip(*order, strict=True)
    known = "".join(kind if kind in _CODES else "?" for kind in kinds) if set(kinds) - _CODES.keys() else "".join(kinds)
    found = [_CODE_OF_BYTE[numpy.frombuffer(known.encode(), dtype=numpy.uint8)]]
    for values, limit in zip((stages, microbatches), limits, strict=True):
        is_inside = min(values) >= 0 and max(values) < limit
        inside = values if is_inside else [value if 0 <= value < limit else _NOWHERE for value in values]
        found.append(numpy.array(inside, dtype=numpy.int64))
    return numpy.stack(found)


class Positions:
    """Where in its device's order every action stands, to be asked about millions of them at once."""

    def __init__(self, orders: DeviceOrders, *, num_stages: int, num_microbatches: int) -> None:
        self.orders, self.num_stages, self.num_microbatches = orders, num_stages, num_microbatches
        rows = numpy.flatnonzero((orders.kind >= 0) & (orders.stage >= 0) & (orders.microbatch >= 0))
        keys = self._keys(orders.device[rows], orders.stage[rows], kind=orders.kind[rows], m=orders.microbatch[rows])
        by_key = numpy.argsort(keys, kind="stable")
        self.keys, self.rows = keys[by_key], rows[by_key]

    def _keys(self, device: Integers, stage: Integers, *, kind: Integers, m: Integers) -> Integers:
        return ((device * self.num_stages + stage) * len(KINDS) + kind) * self.num_microbatches + m

    def find(self, device: Integers, stage: Integers, *, kind: str, m: Integers) -> Integers:
        """Rows of the actions of that kind, by device, stage and microbatch; `_NOWHERE` where there is none."""
        wanted = self._keys(device, stage, kind=numpy.int64(KINDS.index(kind)), m=m)  # type: ignore[arg-type]
        if not len(self.keys):
            return numpy.full(len(wanted), _NOWHERE, dtype=numpy.int64)
        at = numpy.minimum(numpy.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return numpy.where(self.keys[at] == wanted, self.rows[at], _NOWHERE)

    def twin(self, rows: Integers, kind: str) -> Integers:
        """Rows of the actions of that kind for the same device, stage and microbatch as `rows`."""
        orders = self.orders
        return self.find(orders.device[rows], orders.stage[rows], kind=kind, m=orders.microbatch[rows])

    def repeated(self) -> Integers:
        """Rows of actions that stand in the same order a second time."""
        again: Integers = self.rows[1:][self.keys[1:] == self.keys[:-1]]
        return again
