"""A played plan: every action, transfer and synchronisation with its times, kept in arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy

from planner.actions import Action
from planner.layout.gathers import TimedGather
from planner.layout.offload import TimedOffload
from planner.option_values import Objective, ranked_by
from planner.simulation.encoding import EncodedOrders, Integers

Direction = Literal["forward", "backward"]

_Value = TypeVar("_Value")


class TimedAction(NamedTuple):
    """One action on one device, from `start_ns` to `end_ns`."""

    action: Action
    start_ns: int
    end_ns: int


class TimedTransfer(NamedTuple):
    """One transfer between two devices for one microbatch; it waited on its links from `ready_ns` to `start_ns`.

    With split placement transfers also go from a stage to itself: forward the stash, or before all microbatches (-1)
    the weights; backward the weight stash, or after all microbatches the finished gradient.
    """

    sender: str
    receiver: str
    from_stage: int
    to_stage: int
    microbatch: int
    direction: Direction
    num_bytes: int
    links: tuple[int, ...]
    ready_ns: int
    start_ns: int
    end_ns: int


class TimedSynchronisation(NamedTuple):
    """The all-reduce of one replicated stage."""

    stage: int
    start_ns: int
    end_ns: int


class MemoryPoint(NamedTuple):
    """From `time_ns` on, `num_bytes` are held, until the next point."""

    time_ns: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A played plan."""

    actions: Mapping[str, tuple[TimedAction, ...]]
    """Per device, in the plan's order."""
    transfers: Sequence[TimedTransfer]
    """In order of readiness."""
    synchronisations: tuple[TimedSynchronisation, ...]
    """In order of their start."""
    makespan_ns: int
    """End of the iteration, optimizer included."""
    span_ns: int
    """Longest time from the start of the first to the end of the last action of a device."""
    bubble: float
    """1 - total work / (devices used x makespan)."""
    memory: Mapping[str, tuple[MemoryPoint, ...]]
    """Bytes held on every device over time."""
    peak_bytes: Mapping[str, int]
    """Largest value of `memory` per device."""
    gathers: tuple[TimedGather, ...] = ()
    """In order of their start."""
    offloads: tuple[TimedOffload, ...] = ()
    """In order of their start."""

    def objective_ns(self, objective: Objective) -> int:
        """Makespan or span, whichever ranks plans."""
        return self.span_ns if ranked_by(objective) == "span" else self.makespan_ns


class _PerDevice(Mapping[str, tuple[_Value, ...]]):
    """A tuple per device, made when it is asked for."""

    def __init__(self, device_orders: EncodedOrders) -> None:
        self.device_orders = device_orders
        self._number = {device: number for number, device in enumerate(device_orders.schedule)}
        self._made: dict[str, tuple[_Value, ...]] = {}

    def __getitem__(self, device: str) -> tuple[_Value, ...]:
        if device not in self._made:
            number = self._number[device]
            self._made[device] = self._make(
                device, slice(self.device_orders.first[number], self.device_orders.first[number + 1])
            )
        return self._made[device]

    def __iter__(self) -> Iterator[str]:
        return iter(self._number)

    def __len__(self) -> int:
        return len(self._number)

    def _make(self, device: str, part: slice) -> tuple[_Value, ...]:
        raise NotImplementedError


class PlayedActions(_PerDevice[TimedAction]):
    """The device orders with their times."""

    def __init__(self, device_orders: EncodedOrders, *, start: Integers, end: Integers) -> None:
        super().__init__(device_orders)
        self.start, self.end = start, end

    def _make(self, device: str, part: slice) -> tuple[TimedAction, ...]:
        device_order = self.device_orders.schedule[device]
        return tuple(map(TimedAction, device_order, self.start[part].tolist(), self.end[part].tolist()))


class PlayedMemory(_PerDevice[MemoryPoint]):
    """What is held: `base` before all actions, `during` each of them, and `after`."""

    def __init__(self, actions: PlayedActions, *, base: Integers, during: Integers, after: Integers) -> None:
        super().__init__(actions.device_orders)
        self.actions, self.base, self.during, self.after = actions, base, during, after

    def _make(self, device: str, part: slice) -> tuple[MemoryPoint, ...]:
        times = numpy.stack((self.actions.start[part], self.actions.end[part]), axis=1).ravel().tolist()
        sizes = numpy.stack((self.during[part], self.after[part]), axis=1).ravel().tolist()
        return (MemoryPoint(0, int(self.base[self._number[device]])), *map(MemoryPoint, times, sizes))

    def peaks(self) -> dict[str, int]:
        """The largest value per device."""
        first = self.device_orders.first
        most = numpy.maximum(self.during, self.after)
        return {
            device: int(max(self.base[number], most[first[number] : first[number + 1]].max(initial=0)))
            for device, number in self._number.items()
        }


class PlayedChannel(NamedTuple):
    """What the transfers of one stage replica to another have in common."""

    sender: str
    receiver: str
    from_stage: int
    to_stage: int
    direction: Direction
    num_bytes: int
    links: tuple[int, ...]
    duration_ns: int
    replica: int
    """Of the sender."""
    rank: int
    """Among what it sends in the same direction."""

    def timed(self, microbatch: int, *, ready: int, start: int) -> TimedTransfer:
        """A transfer in ns: `ready` when its tensor exists, `start` when its links are free."""
        return TimedTransfer(
            self.sender, self.receiver, self.from_stage, self.to_stage, microbatch, self.direction, self.num_bytes,
            self.links, ready, start, start + self.duration_ns,
        )  # fmt: skip

    def order(self, sent: TimedTransfer) -> tuple[int, ...]:
        """Where a transfer of this channel stands among others in order of readiness."""
        is_backward = int(self.direction == "backward")
        return (
            sent.ready_ns, int(self.duration_ns > 0), self.from_stage, sent.microbatch, is_backward, self.replica,
            self.rank,
        )  # fmt: skip


class PlayedTransfers(Sequence[TimedTransfer]):
    """The transfers of P channels for M microbatches each."""

    def __init__(self, channels: tuple[PlayedChannel, ...], *, ready: Integers, start: Integers) -> None:
        self.channels = channels
        self.ready, self.start = ready, start
        """[P, M] nanoseconds."""

    @cached_property
    def _all(self) -> tuple[TimedTransfer, ...]:
        num_microbatches = self.ready.shape[1] if len(self.channels) else 0
        keys = [
            (
                int(channel.duration_ns > 0),
                channel.from_stage,
                int(channel.direction == "backward"),
                channel.replica,
                channel.rank,
            )
            for channel in self.channels
        ]
        columns = numpy.array(keys, dtype=numpy.int64).reshape(-1, 5).repeat(num_microbatches, axis=0).T
        microbatch = numpy.tile(numpy.arange(num_microbatches), len(self.channels))
        lasts, stages, backwards, replicas, ranks = columns
        order = numpy.lexsort((ranks, replicas, backwards, microbatch, stages, lasts, self.ready.ravel()))
        ready, start = self.ready.ravel().tolist(), self.start.ravel().tolist()
        return tuple(self._transfer(index, ready=ready[index], start=start[index]) for index in order.tolist())

    def _transfer(self, index: int, *, ready: int, start: int) -> TimedTransfer:
        number, microbatch = divmod(index, self.ready.shape[1])
        channel: PlayedChannel = self.channels[number]
        return channel.timed(microbatch, ready=ready, start=start)

    @overload
    def __getitem__(self, index: int) -> TimedTransfer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TimedTransfer, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __iter__(self) -> Iterator[TimedTransfer]:
        return iter(self._all)

    def __len__(self) -> int:
        return int(self.ready.size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    __hash__ = None  # type: ignore[assignment]
