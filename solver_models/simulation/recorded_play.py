"""Any schedule played by the evaluator, with the time of every action and of every transfer.

The search knows nets whose microbatches come in order and whose transfers repeat. A schedule that somebody wrote may
order microbatches as it likes, let several devices run an action together, hold devices while they send, and send some
things once. All of that is a `PlayableSchedule`; the evaluator's `play` is what plays it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import unwrap
from itertools import accumulate, chain

import numpy as np

from solver_models.compiled import interpreting
from solver_models.device_rows import DeviceRow, column, device_table
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, Integers, ShortIntegers, Transfer
from solver_models.simulation.columns import (
    ACTIVATIONS,
    DIRECTION,
    GRADIENTS,
    HAS_WEIGHT,
    RECEIVER,
    ROUTE,
    SHARED,
    TICKS,
)
from solver_models.simulation.evaluator import (
    FAR,
    OPTIONS,
    Net,
    NetReplicas,
    Policy,
    Recording,
    make_net,
    play,
)
from solver_models.simulation.event_heap import MOST_MICROBATCHES, MOST_STAGES, MOST_TRANSFERS
from solver_models.simulation.host_clock import make_hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayableSchedule:
    """N stage replicas of S stages on D devices, P transfers between them, and A actions, device by device."""

    num_microbatches: int
    """M; actions name one of 0 ... M - 1."""
    stage: Integers
    """[N] stage of every stage replica."""
    devices: Sequence[DeviceRow]
    """[D] what is known of them; memory is not looked at."""
    groups: Sequence[tuple[int, ...]]
    """[N] devices of every stage replica, all of which run its actions together; transfers go to and from the first."""
    duration: Integers
    """[N, 4] ticks of F, I, W and B; where `ticks` says more of actions, the least."""
    transfers: Sequence[Transfer]
    """[P] what stage replicas send, or to themselves what holds links alone.

    What is ready at once goes by stage, microbatch, direction, stage replica, and place in this list.
    """
    waits: Integers
    """[N, 2] activations and gradients that every microbatch of a stage replica waits for; W waits for its stage
    replica's gradients."""
    waits_once: Integers
    """[N] arrivals before the first action of a stage replica."""
    opening: Sequence[int] = ()
    """Stage replicas whose activations leave at time 0, once."""
    closing: Sequence[int] = ()
    """[S] stage replica whose gradients leave once all actions of the stage have ended, or -1; empty if there are
    none."""
    overlaps: bool = True
    """Whether devices compute while they send and receive."""
    first: Integers
    """[D + 1] where the actions of every device begin."""
    replica: Integers
    """[A] stage replica of every action."""
    kind: Integers
    """[A] kind of every action; F before I or B before W for every stage replica and microbatch."""
    microbatch: Integers
    """[A] microbatch of every action."""
    ticks: Integers | None = None
    """[A] ticks of every action, where they differ within a kind of a stage replica."""
    host: Integers | None = None
    """[A, 2] ticks that the host takes to ask for every action, and from its beginning to the end of the action at
    least; None: it takes no time."""
    gate: Integers | None = None
    """[A] actions that each of the `peers` of its device has ended before it starts; None: nothing waits so."""
    peers: Sequence[tuple[int, ...]] = ()
    """[D] devices whose actions those of a device wait for, each of the other; empty where nothing waits so."""

    @property
    def num_stages(self) -> int:
        """S, stages without stage replicas at the end left out."""
        return int(self.stage.max(initial=0)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTimes:
    """When everything began; -1 where it never did, because the schedule deadlocks."""

    start: Integers
    """[A] ticks."""
    took: Integers
    """[A] ticks that it lasted, waiting for its host included."""
    sent: Integers
    """[P, M + 1] ticks; in the last column transfers that were sent once."""


def play_schedule(schedule: PlayableSchedule) -> PlayedTimes:
    """Play; ValueError if there are more stages, microbatches or transfers than an event's key has room for."""
    check_size(num_stages=schedule.num_stages, num_microbatches=schedule.num_microbatches)
    if max(len(schedule.transfers), len(schedule.stage)) > MOST_TRANSFERS:
        raise ValueError(
            f"{len(schedule.transfers)} transfers between {len(schedule.stage)} stage replicas; "
            f"use fewer: at most {MOST_TRANSFERS} can be played"
        )
    table, device_orders, nothing = _TransferTable(schedule), _DeviceOrders(schedule), np.zeros(1, np.int64)
    policy, codes = Policy(nothing, nothing, nothing, None), device_orders.table(4 * schedule.replica + schedule.kind)
    with interpreting(len(schedule.replica)):
        net = table.net()
        recording = _make_recording(schedule, net, table=table, device_orders=device_orders)
        play(net, policy, codes.astype(np.int32), device_orders.lengths, True, FAR, recording)
    sent = np.full(recording.sent.shape, -1, np.int64)
    sent[table.order] = recording.sent
    used = device_orders.is_used
    return PlayedTimes(start=recording.start[used], took=recording.duration[used], sent=sent)


def check_size(*, num_stages: int = 0, num_microbatches: int = 0) -> None:
    """ValueError if there are more stages or microbatches than an event's key has room for."""
    if num_stages > MOST_STAGES:
        raise ValueError(f"{num_stages} stages; at most {MOST_STAGES} can be played: give stages more layers")
    if num_microbatches > MOST_MICROBATCHES:
        raise ValueError(
            f"num_microbatches = {num_microbatches}; at most {MOST_MICROBATCHES} can be played: make them larger"
        )


class _TransferTable:
    """The transfers of a schedule by sender and direction, each with a route of its own."""

    def __init__(self, schedule: PlayableSchedule) -> None:
        self.schedule, self.head = schedule, column([group[0] for group in schedule.groups])
        self.num_stages = schedule.num_stages
        rows = column([(each.sender, each.receiver, each.is_backward, each.duration) for each in schedule.transfers])
        keys = rows.reshape(-1, 4) @ column([2, 0, 1, 0])  # by sender, then direction
        self.order = np.argsort(keys, kind="stable")
        self.starts = np.cumsum([0, *np.bincount(keys, minlength=2 * len(schedule.stage))], dtype=np.int64)
        self.sender, self.target, self.is_backward, self.duration = rows.reshape(-1, 4)[self.order].T
        self.links = [schedule.transfers[number].links for number in self.order.tolist()]

    def net(self) -> Net:
        """The stage replicas and transfers as the evaluator reads them; what only policies read is zero."""
        schedule, links = self.schedule, list(chain.from_iterable(self.links))
        number = {link: index for index, link in enumerate(dict.fromkeys(links))}
        scalars = {"num_microbatches": schedule.num_microbatches, "num_links": len(number)}
        scalars["transfers_hold"] = not schedule.overlaps
        replicas = NetReplicas(
            stage=schedule.stage, device=self.head, duration=np.ascontiguousarray(schedule.duration),
            host=np.zeros((0, 4, 2), np.int64), size=np.zeros((HAS_WEIGHT + 1, len(schedule.stage)), np.int64),
            devices=device_table(schedule.devices), synchronisation=np.zeros(self.num_stages, np.int64),
            scalars=column([scalars.get(name, 0) for name in OPTIONS]),
        )  # fmt: skip
        table = np.zeros((SHARED + 1, len(self.links)), np.int64)
        inside = (self.head[self.sender] == self.head[self.target]) & (self.duration == 0)
        table[RECEIVER], table[TICKS], table[DIRECTION] = self.target, self.duration, self.is_backward
        table[ROUTE], table[SHARED] = np.where(inside, -1, np.arange(len(self.links))), self._is_shared()
        routes = _starts(self.links), column([number[link] for link in links])
        net: Net = unwrap(make_net)(replicas, self.starts, table, *routes)  # to hand it over costs more than to make it
        return net

    def _is_shared(self) -> Integers:
        """[P] 1 if the transfer has to wait for its turn: its links, or its devices, may be wanted by another one.

        After an action that takes no time, several of its own may be ready at once.
        """
        used, ticks = Counter(chain.from_iterable(self.links)), self.schedule.duration[self.sender]
        wanted = {link for link, count in used.items() if count > 1}
        busy = np.array([not wanted.isdisjoint(links) for links in self.links], dtype=np.bool_)
        returning = np.minimum(ticks[:, INPUT_GRAD], ticks[:, BACKWARD])
        least = np.where(self.is_backward == 1, returning, ticks[:, FORWARD])
        waits = busy | (least == 0) | (not self.schedule.overlaps)
        shared: Integers = (waits & (self.duration > 0)).astype(np.int64)
        return shared


class _DeviceOrders:
    """The device orders of a schedule, a row per device."""

    def __init__(self, schedule: PlayableSchedule) -> None:
        self.lengths = np.diff(schedule.first)
        self.is_used = np.arange(self.lengths.max(initial=1)) < self.lengths[:, None]

    def table(self, values: Integers) -> Integers:
        """[D, longest] what is known of every action [A]; 0 where there is none."""
        found = np.zeros((*self.is_used.shape, *values.shape[1:]), np.int64)
        found[self.is_used] = values
        return found


def _make_recording(
    schedule: PlayableSchedule, net: Net, *, table: _TransferTable, device_orders: _DeviceOrders
) -> Recording:
    """Room for the times, and what the search's nets do not know."""
    count, num_devices = schedule.num_microbatches, len(device_orders.lengths)
    is_heading = table.head[schedule.replica] == np.repeat(np.arange(num_devices), device_orders.lengths)
    left = np.bincount(schedule.stage[schedule.replica[is_heading]], minlength=table.num_stages).tolist()
    peers, groups = schedule.peers or [()] * num_devices, schedule.groups
    ticks = schedule.duration[schedule.replica, schedule.kind] if schedule.ticks is None else schedule.ticks
    shape = device_orders.is_used.shape
    gate = np.zeros(shape) if schedule.gate is None else device_orders.table(schedule.gate)
    return Recording(
        microbatch=device_orders.table(schedule.microbatch).astype(np.int32),
        duration=device_orders.table(ticks),
        host=np.zeros((0, 0, 2), np.int64) if schedule.host is None else device_orders.table(schedule.host),
        hosts=make_hosts(net.devices, schedule.host is not None),
        start=np.full(shape, -1, np.int64),
        missing=_make_missing(schedule),
        sent=np.full((len(schedule.transfers), count + 1), -1, np.int64),
        member_start=_starts(groups),
        members=column(list(chain.from_iterable(groups))),
        closing=column([*zip(left, schedule.closing or [-1] * table.num_stages, strict=True)]).reshape(-1, 2),
        opening=column(schedule.opening),
        gate=gate.astype(np.int32),
        peer_start=_starts(peers),
        peers=column(list(chain.from_iterable(peers))),
    )


def _make_missing(schedule: PlayableSchedule) -> ShortIntegers:
    missing = np.zeros((len(schedule.stage), GRADIENTS + 1, schedule.num_microbatches + 1), np.int32)
    missing[:, :, :-1] = schedule.waits[:, :, None]
    missing[:, ACTIVATIONS, -1] = schedule.waits_once
    return missing


def _starts(parts: Sequence[Sequence[int]]) -> Integers:
    """Where each of the parts begins once they stand one after the other, and where the last one ends."""
    return column([0, *accumulate(map(len, parts))])
