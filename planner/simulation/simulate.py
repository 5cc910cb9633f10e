"""Plays a plan: every action, transfer and synchronisation gets its time, every device its memory trace.

The evaluator of the search plays it (`solver_models.simulation.recorded_play`); here names become numbers before, and
times a timeline after. What takes no time occupies nothing. Transfers equal in readiness, stage, microbatch and
direction go in the order of the sending replicas, then of the edges, then of the receiving replicas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy

from planner.actions import KINDS
from planner.errors import OutOfRangeError, PlanError
from planner.layout.costs import CostModel, StageCost
from planner.layout.device_groups import device_rows
from planner.layout.gathers import Gather, Rank, TimedGather, gathers
from planner.layout.split_placement import BEFORE_FIRST
from planner.layout.stage_replicas import LaidOut, StageReplica, Transfer, lay_out
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.encoding import PLACES, EncodedOrders, Integers, encode
from planner.simulation.offloads import OffloadedPlay, journeys
from planner.simulation.timeline import (
    Direction,
    MemoryPoint,
    PlayedActions,
    PlayedChannel,
    PlayedMemory,
    PlayedTransfers,
    TimedAction,
    TimedSynchronisation,
    TimedTransfer,
    Timeline,
)
from solver_models.device_rows import DeviceRow, column
from solver_models.instance import INPUT_GRAD, WEIGHT_GRAD
from solver_models.instance import Transfer as TimedSend
from solver_models.simulation.recorded_play import PlayableSchedule, PlayedTimes, play_schedule

__all__ = [
    "Direction",
    "MemoryPoint",
    "TimedAction",
    "TimedSynchronisation",
    "TimedTransfer",
    "Timeline",
    "simulate",
]

MOST = 2**60
"""Plans that could take longer in nanoseconds, or hold more bytes, are not played: their sums need 64 bits."""


def simulate(problem: Problem, plan: Plan, *, costs: CostModel | None = None) -> Timeline:
    """Play `plan` on `problem`.

    Raises PlanError if the plan cannot be played to its end (`planner.verify` says in detail why).
    """
    model = costs or CostModel(problem)
    _require_assignment(problem, plan)
    read = encode(plan.schedule)
    if read is None:
        raise PlanError("the schedule holds something that is not an action of a stage for a microbatch")
    return _Playback(plan, laid_out=lay_out(plan, costs=model), device_orders=read, costs=model).timeline()


def _require_assignment(problem: Problem, plan: Plan) -> None:
    """PlanError unless every pipeline of a dealing is there, and every microbatch of the problem in one of them."""
    balanced, count = [m for assignment in plan.dealing for m in assignment], problem.num_microbatches
    if not plan.dealing:
        return
    if problem.microbatches is None or sorted(balanced) != list(range(count)) or not all(plan.dealing):
        raise PlanError(f"the dealing is not one of {count} listed microbatches, each in one pipeline")
    if any(len(stage.replicas) != len(plan.dealing) or stage.is_split or stage.samples for stage in plan.stages):
        raise PlanError(f"a stage does not have one whole replica for each of the {len(plan.dealing)} pipelines")


class _Sent(NamedTuple):
    """One channel between two devices."""

    sender: StageReplica
    receiver: StageReplica
    transfer: Transfer
    rank: int
    """Among what the sender sends in the same direction."""
    once: int | None
    """The only microbatch that it is sent for; None: all."""

    def played(self) -> PlayedChannel:
        """What its transfers have in common."""
        sender, sent = self.sender, self.transfer
        assert sent.route is not None
        ends = sender.group[0], self.receiver.group[0], sender.stage, self.receiver.stage
        direction: Direction = "backward" if sent.is_backward else "forward"
        return PlayedChannel(*ends, direction, sent.num_bytes, sent.route.links, sent.ticks, sender.replica, self.rank)


class _GatherQueue:
    """What a rank gathers, one after the other: a device of the evaluator beside the others."""

    def __init__(self, rank: Rank, *, plan: Plan) -> None:
        assert plan.max_active_stages is not None
        self.rank = rank
        stages = [action.stage for action in plan.schedule[rank.devices[0]]]
        self.asked, self.needed = gathers(stages, most=plan.max_active_stages)


class _Playback:
    """One plan, as the evaluator plays it."""

    def __init__(self, plan: Plan, *, laid_out: LaidOut, device_orders: EncodedOrders, costs: CostModel) -> None:
        self.plan, self.device_orders, self.costs, self.problem = plan, device_orders, costs, costs.problem
        self.count = self.problem.num_microbatches
        self.laid_out, self.replicas = laid_out, laid_out.replicas
        self.queues = [_GatherQueue(rank, plan=plan) for rank in laid_out.ranks]
        stashes = journeys(plan, laid_out.replicas, cluster=self.problem.cluster)
        self.offloads = OffloadedPlay(stashes, device_orders=device_orders)
        self.transfers = list(self._list_channels())
        self._check_size()
        self.holder = self._find_holders()
        self.variant = self._keeps()
        self.ticks = laid_out.durations_ns[self.holder, self.variant, device_orders.kind]
        self.host = self._hosts(laid_out.costs)

    def _hosts(self, costs_of: Sequence[Sequence[StageCost]]) -> Integers | None:
        """[A, 2] what the host takes to ask, and from its beginning to the end at least; None: no time anywhere."""
        if not any(cost.clocks for costs in costs_of for cost in costs):
            return None
        nothing = ((0, 0),) * len(KINDS)
        table = numpy.array([[cost.clocks or nothing for cost in costs] for costs in costs_of], dtype=numpy.int64)
        return table[self.holder, self.variant, self.device_orders.kind]

    def _keeps(self) -> Integers:
        """[A] 1 if the microbatch keeps everything where others of its stage recompute."""
        if self.laid_out.durations_ns.shape[1] == 1:
            return numpy.zeros_like(self.holder)
        table = numpy.zeros((len(self.plan.stages), self.count), dtype=numpy.int64)
        for number, stage in enumerate(self.plan.stages):
            table[number, list(stage.kept_of(self.count))] = True
        return table[self.device_orders.stage, self.device_orders.microbatch]

    def _list_channels(self) -> Iterator[_Sent]:
        once = dict.fromkeys(self.laid_out.opening, BEFORE_FIRST)
        once |= dict.fromkeys(self.laid_out.closing.values(), self.count)
        for _, channels in groupby(self.laid_out.by_sender, key=lambda sent: (sent.sender, sent.is_backward)):
            for rank, sent in enumerate(channels):
                ends = self.replicas[sent.sender], self.replicas[sent.receiver]
                yield _Sent(*ends, sent, rank, once.get(sent.sender))

    def _check_size(self) -> None:
        """OutOfRangeError if sums of times or bytes could need more than 64 bits."""
        times = self.count * sum(sum(replica.cost.durations_ns) for replica in self.replicas)
        times += self.count * sum(sent.transfer.ticks for sent in self.transfers)
        times += sum(route.duration_ns(each.num_bytes) for each in self.offloads.journeys for route in each.routes)
        costs = [replica.cost for replica in self.replicas]
        most = max((cost.stash_bytes + cost.weight_stash_bytes for cost in costs), default=0)
        if max(times, most * len(self.device_orders.kind)) >= MOST:
            raise OutOfRangeError(f"times or bytes of this plan add up to more than {MOST}; use a coarser unit")

    def _find_holders(self) -> Integers:
        """[A] stage replica of every action; PlanError if a device has none for one."""
        index = {device: number for number, device in enumerate(self.device_orders.schedule)}
        sizes = {size: number for number, size in enumerate(self.problem.sizes or (None,))}
        table = numpy.full((len(sizes), len(index), len(self.plan.stages) + 1, len(KINDS)), -1, dtype=numpy.int32)
        for number, replica in enumerate(self.replicas):
            for device in replica.group:
                for kind in replica.kinds if device in index else "":
                    table[sizes[replica.size], index[device], replica.stage, KINDS.index(kind)] = number
        stage = numpy.minimum(self.device_orders.stage, len(self.plan.stages))
        size = self._listed_sizes(sizes)
        found = table[size, self.device_orders.device, stage, self.device_orders.kind].astype(numpy.int64)
        if self.plan.dealing:
            found[~self._is_assigned()] = -1
        wrong = numpy.flatnonzero((found < 0) | (self.device_orders.microbatch >= self.count))
        if len(wrong):
            at = int(wrong[0])
            device = list(index)[self.device_orders.device[at]]
            action = self.device_orders.schedule[device][at - int(self.device_orders.first[index[device]])]
            there = table[size[at], index[device], stage[at]]
            kinds = "".join(kind for kind, replica in zip(KINDS, there, strict=True) if replica >= 0)
            why = f"of stage {action.stage} it runs only {kinds}" if kinds else "it holds no such stage"
            if action.microbatch >= self.count:
                why = f"there are {self.count} microbatches"
            raise PlanError(f"{device} cannot run {action}: {why}")
        return found

    def _listed_sizes(self, sizes: dict[int | None, int]) -> Integers:
        """[A] number of the size of the microbatch, among those that the problem lists."""
        if self.problem.microbatches is None:
            return numpy.zeros_like(self.device_orders.kind)
        of_microbatch = column([sizes[size] for size in self.problem.microbatches])
        return of_microbatch[numpy.minimum(self.device_orders.microbatch, self.count - 1)]

    def _is_assigned(self) -> Any:
        """[A] whether the microbatch belongs to the pipeline of the device."""
        assignment = numpy.full(self.count, -1, dtype=numpy.int64)
        for number, own in enumerate(self.plan.dealing):
            assignment[list(own)] = number
        replicas = enumerate(zip(*(stage.replicas for stage in self.plan.stages), strict=True))
        home = {device: number for number, groups in replicas for group in groups for device in group}
        of_device = column([home.get(device, -2) for device in self.device_orders.schedule])
        return (
            assignment[numpy.minimum(self.device_orders.microbatch, self.count - 1)]
            == of_device[self.device_orders.device]
        )

    def timeline(self) -> Timeline:
        """Play; PlanError if the plan deadlocks."""
        runs = self._may_run()
        rings = self._rings()
        schedule = self._schedule(runs, rings=rings)
        times = self._play(schedule) if self.offloads.journeys and runs.all() else play_schedule(schedule)
        start, count = numpy.full(len(self.holder), -1, dtype=numpy.int64), numpy.count_nonzero(runs)
        start[runs], gathering = times.start[:count], times.start[count:]
        self._require_end(start)
        end = start + times.took[:count]
        found = self._timeline(start, end=end, times=times, rings=rings)
        if self.offloads.journeys:
            return replace(found, offloads=self.offloads.timed())
        return replace(found, gathers=self._timed_gathers(gathering)) if self.queues else found

    def _play(self, schedule: PlayableSchedule) -> PlayedTimes:
        """With stashes in between."""
        inserted = self.offloads.inserted(schedule, make_transfer=TimedSend)
        times: PlayedTimes = self.offloads.own_times(play_schedule(replace(schedule, **inserted)))
        return times

    def _may_run(self) -> Any:
        """[A] false from the first action on that stands before what it needs on its own device, F before I before W.

        There the device stops for good.
        """
        replicas = self.replicas
        first = dict[tuple[int, int, int | None], int]()  # a W alone comes behind what else the device does for a stage
        bases = [first.setdefault((each.stage, each.replica, each.size), n) for n, each in enumerate(replicas)]
        base = column(bases)[self.holder]
        heads = {device: number for number, device in enumerate(self.device_orders.schedule)}
        head = numpy.array([heads.get(replica.group[0], -1) for replica in replicas], dtype=numpy.int64)[self.holder]
        leads = numpy.flatnonzero(head == self.device_orders.device)
        slot = (3 * base + self.device_orders.place) * self.count + self.device_orders.microbatch
        at = numpy.full(3 * len(replicas) * self.count, len(slot), dtype=numpy.int64)
        at[slot[leads[::-1]]] = leads[::-1]  # the first of several
        needs = numpy.zeros((len(replicas), 3), dtype=numpy.bool_)
        needs[:, PLACES[INPUT_GRAD]] = ["F" in replica.kinds for replica in replicas]
        needs[:, PLACES[WEIGHT_GRAD]] = ["I" in replicas[number].kinds for number in bases]
        asks = leads[needs[self.holder[leads], self.device_orders.place[leads]]]
        stops = asks[at[slot[asks] - self.count] > asks]
        may = numpy.ones(len(slot), dtype=numpy.bool_)
        for stop in stops.tolist():
            may[stop : self.device_orders.first[self.device_orders.device[stop] + 1]] = False
        return may

    def _rings(self) -> dict[int, tuple[int, ...]]:
        """Links of the all-reduces that queue for them, by stage."""
        if self.problem.options.synchronisation != "bucketed":
            return {}
        stages = enumerate(self.plan.stages)
        return {
            number: self.costs.ring_links(stage) for number, stage in stages if self.laid_out.synchronisation_ns[number]
        }

    def _schedule(self, runs: Any, *, rings: dict[int, tuple[int, ...]]) -> PlayableSchedule:
        """What the evaluator plays: the stage replicas, and after them one per ring, which sends to itself."""
        replicas, device_orders = self.replicas, self.device_orders
        heads = [self.plan.stages[number].replicas[0][0] for number in rings]
        devices = dict.fromkeys(
            [*device_orders.schedule, *(device for replica in replicas for device in replica.group)]
        )
        index, rows = {device: number for number, device in enumerate(devices)}, device_rows(self.problem.cluster)
        closing = dict(self.laid_out.closing) | {number: len(replicas) + place for place, number in enumerate(rings)}
        per_device = numpy.bincount(device_orders.device[runs], minlength=len(index)).tolist()
        queues, beside = self.queues, len(rings) + len(self.queues)
        arrivals = column([*self.laid_out.arrivals(), *[[0, 0, 0]] * beside]).reshape(-1, 3)
        asked = [(place, gather) for place, queue in enumerate(queues) for gather in queue.asked]
        gathering = [(len(replicas) + len(rings) + place, 0, 0, self._gathering_ns(each)) for place, each in asked]
        own = numpy.array((self.holder, device_orders.kind, device_orders.microbatch, self.ticks))[:, runs]
        columns = numpy.concatenate((own, column(gathering).reshape(-1, 4).T), axis=1)
        replica, kind, microbatch, ticks = map(numpy.ascontiguousarray, columns)
        return PlayableSchedule(
            num_microbatches=self.count,
            stage=column([*(each.stage for each in replicas), *rings, *(queue.rank.stages[0] for queue in queues)]),
            devices=[*(rows[device] for device in devices), *(DeviceRow() for _ in queues)],
            groups=[
                *(tuple(index[x] for x in replica.group) for replica in replicas),
                *((index[head],) for head in heads),
                *((len(index) + number,) for number in range(len(queues))),
            ],
            duration=numpy.concatenate(
                [self.laid_out.durations_ns.min(axis=1), numpy.zeros((beside, len(KINDS)), numpy.int64)]
            ),
            transfers=[*(timed_send(sent.transfer) for sent in self.transfers), *self._ring_transfers(rings)],
            waits=arrivals[:, :2],
            waits_once=arrivals[:, -1],
            opening=self.laid_out.opening,
            closing=[closing.get(number, -1) for number in range(len(self.plan.stages))],
            overlaps=self.problem.cluster.overlap,
            first=column([0, *accumulate((*per_device, *(len(queue.asked) for queue in queues)))]),
            replica=replica,
            kind=kind,
            microbatch=microbatch,
            host=None if self.host is None else self.host[runs],
            ticks=ticks,
            gate=self._gates(runs, asked=[gather for _, gather in asked]),
            peers=self._peers(index),
        )

    def _gathering_ns(self, gather: Gather) -> int:
        return self.costs.gathering_ns(self.plan.stages[gather.stage])

    def _gates(self, runs: Any, *, asked: Sequence[Gather]) -> Integers | None:
        """Gatherings of its rank that every action waits for, then of gatherings their positions; None: nothing."""
        if not self.queues:
            return None
        gate = numpy.zeros(len(self.holder), dtype=numpy.int64)
        for number, device in enumerate(self.device_orders.schedule):
            for queue in (each for each in self.queues if device in each.rank.devices):
                gate[self.device_orders.first[number] : self.device_orders.first[number + 1]] = queue.needed
        return numpy.concatenate([gate[runs], column([gather.position for gather in asked])])

    def _peers(self, index: dict[str, int]) -> list[tuple[int, ...]]:
        """[D] the queue of every device that gathers, and the devices of every queue."""
        if not self.queues:
            return []
        own = {device: len(index) + number for number, queue in enumerate(self.queues) for device in queue.rank.devices}
        devices = [(own[device],) if device in own else () for device in index]
        return [*devices, *(tuple(index[device] for device in queue.rank.devices) for queue in self.queues)]

    def _timed_gathers(self, start: Integers) -> tuple[TimedGather, ...]:
        asked = [gather for queue in self.queues for gather in queue.asked]
        found = [
            TimedGather(*gather, begin, begin + self._gathering_ns(gather))
            for gather, begin in zip(asked, start.tolist(), strict=True)
        ]
        return tuple(sorted(found, key=lambda timed: timed.start_ns))

    def _ring_transfers(self, rings: dict[int, tuple[int, ...]]) -> Iterator[TimedSend]:
        for place, (number, links) in enumerate(rings.items(), start=len(self.replicas)):
            duration = self.laid_out.synchronisation_ns[number]
            yield TimedSend(sender=place, receiver=place, is_backward=True, duration=duration, links=links)

    def _require_end(self, start: Integers) -> None:
        """PlanError if an action never started: where each device stands."""
        waiting = numpy.flatnonzero(start < 0)
        if len(waiting):
            at = dict(zip(self.device_orders.device[waiting[::-1]].tolist(), waiting[::-1].tolist(), strict=True))
            device_orders = enumerate(self.device_orders.schedule.items())
            stuck = [
                f"{d} at {device_order[at[n] - int(self.device_orders.first[n])]}"
                for n, (d, device_order) in device_orders
                if n in at
            ]
            raise PlanError(f"the schedule deadlocks: {'; '.join(stuck[:5])}")

    def _synchronisations(
        self, ends: list[int], *, times: PlayedTimes, rings: dict[int, tuple[int, ...]]
    ) -> tuple[TimedSynchronisation, ...]:
        """Each stage's once its last action has ended, in order of their start; where they queue, when it is due."""
        queued = dict(zip(rings, times.sent[len(self.transfers) :, -1].tolist(), strict=True))
        found = []
        for number, ready in enumerate(ends):
            duration = self.laid_out.synchronisation_ns[number] if ready >= 0 else 0
            if duration:
                start = queued.get(number, ready)
                found.append(TimedSynchronisation(number, start, start + duration))
        return tuple(sorted(found, key=lambda timed: timed.start_ns))

    def _stage_ends(self, end: Integers) -> list[int]:
        """[S] when the last action of each stage ends; -1 where nothing of it runs."""
        latest = numpy.full(len(self.plan.stages), -1, dtype=numpy.int64)
        numpy.maximum.at(latest, self.device_orders.stage, end)
        return latest.tolist()

    def _timeline(
        self, start: Integers, *, end: Integers, times: PlayedTimes, rings: dict[int, tuple[int, ...]]
    ) -> Timeline:
        actions, ends = PlayedActions(self.device_orders, start=start, end=end), self._stage_ends(end)
        synchronisations = self._synchronisations(ends, times=times, rings=rings)
        transfers = self._transfers(self._ready(end, ends), times=times)
        last = [int(end.max(initial=0)), *(timed.end_ns for timed in synchronisations)]
        if self.laid_out.closing:
            last += [sent.end_ns for sent in transfers if sent.microbatch == self.count]
        makespan = max(last) + self.laid_out.lost_ns(ends) + self.laid_out.tail_ns
        memory, first = self._memory(actions), self.device_orders.first
        used = numpy.flatnonzero(first[1:] > first[:-1])
        return Timeline(
            actions=actions,
            transfers=transfers,
            synchronisations=synchronisations,
            makespan_ns=makespan,
            span_ns=int((end[first[1:][used] - 1] - start[first[:-1][used]]).max(initial=0)),
            bubble=1 - int((end - start).sum()) / (len(actions) * makespan) if makespan else 0.0,
            memory=memory,
            peak_bytes=memory.peaks(),
        )

    def _transfers(self, ready: Integers, *, times: PlayedTimes) -> Sequence[TimedTransfer]:
        """As a table where every channel is sent for every microbatch, else one by one; `ready` as in `_ready`."""
        chosen = [number for number, sent in enumerate(self.transfers) if sent.transfer.route is not None]
        channels, ready = [self.transfers[number] for number in chosen], ready[chosen]
        starts = times.sent[chosen]
        played = tuple(sent.played() for sent in channels)
        if all(sent.once is None for sent in channels) and (starts[:, :-1] >= 0).all():
            return PlayedTransfers(played, ready=ready[:, :-1], start=numpy.ascontiguousarray(starts[:, :-1]))
        found = []
        for row, microbatch in numpy.argwhere(starts >= 0).tolist():
            channel, once = played[row], channels[row].once
            sent = channel.timed(
                microbatch if once is None else once,
                ready=int(ready[row, microbatch]),
                start=int(starts[row, microbatch]),
            )
            found.append((channel.order(sent), sent))
        return tuple(sent for _, sent in sorted(found))

    def _ready(self, end: Integers, ends: list[int]) -> Integers:
        """[P, M + 1] when the action of every transfer has ended; in the last column when those sent once may go."""
        replicas, columns = len(self.replicas), self.count + 1
        table = numpy.zeros((3 * replicas, columns), dtype=numpy.int64)
        table[3 * self.holder + self.device_orders.place, self.device_orders.microbatch] = end
        for number, replica in self.laid_out.closing.items():
            table[3 * replica + 1, -1] = max(ends[number], 0)
        rows = [3 * sent.transfer.sender + sent.transfer.is_backward for sent in self.transfers]
        return table[column(rows)]

    def _memory(self, actions: PlayedActions) -> PlayedMemory:
        """What is held depends on the device orders alone, only the times come from the simulation."""
        during, after = self.laid_out.memory_steps[self.holder, self.variant, self.device_orders.kind].T
        if self.offloads.journeys:
            during, after = during + self.offloads.moved_bytes, after + self.offloads.moved_bytes
        base = column([self.laid_out.static_bytes[device] for device in self.device_orders.schedule])
        sums = numpy.concatenate([[0], numpy.cumsum(after)])
        first = self.device_orders.first[:-1]
        before = sums[:-1] + (base - sums[first])[self.device_orders.device]
        return PlayedMemory(actions, base=base, during=before + during, after=before + after)


def timed_send(sent: Transfer) -> TimedSend:
    """A transfer as the core has it."""
    return TimedSend(
        sender=sent.sender,
        receiver=sent.receiver,
        is_backward=sent.is_backward,
        duration=sent.ticks,
        links=sent.links,
    )
