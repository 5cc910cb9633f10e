"""The fast way to play a plan: devices run ahead through their words, and only links that are shared need a clock.

A transfer whose links serve no other flow waits for nothing but its own predecessor, so its arrival is known as soon as
its action has ended. The others wait in one queue, by readiness: whatever no device has come to yet depends on one of
them and is ready only after it has arrived, so the first of the queue may always go.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy

from planner.costs import CostModel
from planner.encoding import Integers, Words, holders
from planner.errors import PlanError
from planner.plan import Plan
from planner.timeline import (
    Direction,
    PlayedActions,
    PlayedFlow,
    PlayedMemory,
    PlayedTransfers,
    TimedSynchronisation,
    Timeline,
)

if TYPE_CHECKING:
    from planner.simulate import StageReplica

_WEIGHT_GRAD = 2
"""Place of a W among the actions of a lane."""

MOST_NS = 2**60
"""Plans that could take longer, or hold more bytes, are not played with 64-bit integers."""

_Own = tuple[int, int, list[int], list[int]]
"""A flow without competition: slot of its target for microbatch 0, duration, its starts, [its last end]."""


class _Flow(NamedTuple):
    """What one lane sends another for every microbatch, between two devices."""

    sender: int
    receiver: int
    is_backward: bool
    rank: int
    links: tuple[int, ...]
    duration: int


class FastEvaluation:
    """The game of one plan whose words are encoded; `holder` [A] is the lane of every action."""

    def __init__(
        self, plan: Plan, *, lanes: Sequence["StageReplica"], words: Words, holder: Integers, costs: CostModel
    ) -> None:
        self.plan, self.lanes, self.words, self.holder, self.costs = plan, lanes, words, holder, costs
        self.problem = costs.problem
        self.count = self.problem.num_microbatches
        self.times = numpy.array([[lane.cost.duration_ns(kind) for kind in "FIWB"] for lane in lanes], numpy.int64)
        self.durations = self.times[holder, words.kind]
        self.slot = (3 * holder + words.place) * self.count + words.microbatch
        number = {id(lane): index for index, lane in enumerate(lanes)}
        self.flows: list[_Flow] = []
        self.played: list[PlayedFlow] = []
        self.within: list[list[int]] = [[] for _ in range(3 * len(lanes))]
        for index, lane in enumerate(lanes):
            for is_backward, receivers in ((False, lane.forward_to), (True, lane.backward_to)):
                for rank, (target, num_bytes, route) in enumerate(receivers):
                    if route is None:
                        target_slot = (3 * number[id(target)] + is_backward) * self.count
                        self.within[3 * index + is_backward].append(target_slot)
                        continue
                    duration = route.duration_ns(num_bytes)
                    self.flows.append(_Flow(index, number[id(target)], is_backward, rank, route.links, duration))
                    ends = lane.group[0], target.group[0], lane.stage, target.stage
                    way: Direction = "backward" if is_backward else "forward"
                    sent = PlayedFlow(*ends, way, num_bytes, route.links, duration, lane.replica, rank)
                    self.played.append(sent)
        self.starts: list[int] = []
        self.flow_starts: list[list[int]] = [[0] * self.count for _ in self.flows]

    def is_short(self) -> bool:
        """Whether all times and sums of bytes stay within 64 bits."""
        costs = [lane.cost for lane in self.lanes]
        if max((c.stash_bytes + c.weight_stash_bytes for c in costs), default=0) * len(self.slot) >= MOST_NS:
            return False
        work = sum(map(sum, self.times.tolist()))
        return self.count * (work + sum(flow.duration for flow in self.flows)) < MOST_NS

    def play(self) -> Timeline:
        """The timeline; raises PlanError if the plan deadlocks."""
        alone, queued, order = self._connect()
        moving = numpy.flatnonzero(self.words.place != _WEIGHT_GRAD)
        bounds = numpy.searchsorted(moving, self.words.first)
        positions = self._run(alone, queued, queue=_Queue(self, order), moving=moving, bounds=bounds.tolist())
        first = self.words.first.tolist()
        stuck = [
            f"{device} at {word[moving[at] - begin]}"
            for (device, word), at, stop, begin in zip(
                self.words.schedule.items(), positions, bounds[1:].tolist(), first, strict=False
            )
            if at < stop
        ]
        if stuck:
            raise PlanError(f"the schedule deadlocks: {'; '.join(stuck[:5])}")
        return self._timeline(self._all_starts(moving))

    def _connect(self) -> tuple[list[list[_Own]], list[list[int]], list[int]]:
        """Per lane and place (F, I, W): flows without competition, others by their rank in the queue; who is who there.

        What an action that takes no time sends is queued as well: several of them may be ready at once.
        """
        users: dict[int, int] = {}
        for flow in self.flows:
            for link in flow.links if flow.duration else ():
                users[link] = users.get(link, 0) + 1
        alone: list[list[_Own]] = [[] for _ in range(3 * len(self.lanes))]
        queued: list[list[int]] = [[] for _ in range(3 * len(self.lanes))]
        order = sorted(range(len(self.flows)), key=lambda n: (self.flows[n].is_backward, *self._seat(n)))
        for rank, number in enumerate(order):
            flow = self.flows[number]
            source = 3 * flow.sender + flow.is_backward
            shortest = self.times[flow.sender, [1, 3]].min() if flow.is_backward else self.times[flow.sender, 0]
            if flow.duration and (not shortest or any(users[link] > 1 for link in flow.links)):
                queued[source].append(rank)
            else:
                target = (3 * flow.receiver + flow.is_backward) * self.count
                alone[source].append((target, flow.duration, self.flow_starts[number], [0]))
        return alone, queued, order

    def _seat(self, number: int) -> tuple[int, int, int]:
        flow = self.flows[number]
        return self.lanes[flow.sender].replica, flow.rank, self.lanes[flow.sender].stage

    def keeps_order(self) -> bool:
        """Whether F, I and W of every microbatch stand in this order on their device, so that only arrivals count."""
        at = numpy.full(3 * len(self.lanes) * self.count, -1, dtype=numpy.int64)
        at[self.slot] = numpy.arange(len(self.slot))
        forward, input_grad, weight_grad = at.reshape(len(self.lanes), 3, self.count).transpose(1, 0, 2)
        has_weight = weight_grad >= 0
        return bool(
            (forward >= 0).all()
            and (forward < input_grad).all()
            and (input_grad[has_weight] < weight_grad[has_weight]).all()
        )

    def _missing(self) -> list[int]:
        """Per slot: how many arrivals its action waits for."""
        waits = numpy.zeros((len(self.lanes), 3), dtype=numpy.int64)
        waits[:, 0] = [lane.num_inputs for lane in self.lanes]
        waits[:, 1] = [lane.num_gradients for lane in self.lanes]
        missing: list[int] = waits.reshape(-1, 1).repeat(self.count, axis=1).ravel().tolist()
        return missing

    def _run(
        self, alone: list[list[_Own]], queued: list[list[int]], *, queue: "_Queue", moving: Integers, bounds: list[int]
    ) -> list[int]:
        """Fill `flow_starts`, and `starts` of the actions `moving` (F, I and B), between whose `bounds` devices stand.

        Returns how far each device came. W wait for nothing but the action before. One loop, since calls cost too much.
        """
        count, within = self.count, self.within
        missing, arrival = self._missing(), [0] * (3 * len(self.lanes) * count)
        slots, places = self.slot[moving].tolist(), (self.slot[moving] // count).tolist()
        times, rests = (column.tolist() for column in self._times_of(moving))
        starts = self.starts = [0] * len(slots)
        turns = [[queue.turn(self.lanes[place // 3].stage, rank) for rank in row] for place, row in enumerate(queued)]
        time_bits, rank_bits, transfers = queue.time_bits, queue.rank_bits, queue.waiting
        waiting: dict[int, int] = {}
        position, stops = bounds[:-1], bounds[1:]
        free_at = [0] * len(position)
        ready = list(range(len(position)))[::-1]
        while ready or transfers:
            if not ready:
                target, end = queue.depart()
                if arrival[target] < end:
                    arrival[target] = end
                missing[target] -= 1
                if not missing[target] and target in waiting:
                    ready.append(waiting.pop(target))
                continue
            device = ready.pop()
            at, stop, free = position[device], stops[device], free_at[device]
            while at < stop:
                slot = slots[at]
                if missing[slot]:
                    waiting[slot] = device
                    break
                begin = arrival[slot]
                starts[at] = begin = begin if begin > free else free
                end = begin + times[at]
                free = end + rests[at]
                place = places[at]
                at += 1
                microbatch = slot - place * count
                for target in within[place]:
                    missing[target + microbatch] -= 1
                for target, duration, began, last in alone[place]:
                    began[microbatch] = begin = last[0] if last[0] > end and duration else end
                    last[0] = arrived = begin + duration
                    target += microbatch
                    if arrival[target] < arrived:
                        arrival[target] = arrived
                    missing[target] -= 1
                    if not missing[target] and target in waiting:
                        ready.append(waiting.pop(target))
                for turn in turns[place]:
                    heappush(transfers, end << time_bits | turn | microbatch << rank_bits)
            position[device], free_at[device] = at, free
        return position

    def _times_of(self, moving: Integers) -> tuple[Integers, Integers]:
        """How long each of these actions takes, and how long the W that follow it directly take."""
        done = numpy.concatenate([[0], numpy.cumsum(self.durations)])
        after = numpy.append(moving[1:], len(self.durations))
        return self.durations[moving], done[after] - done[moving + 1]

    def _all_starts(self, moving: Integers) -> Integers:
        """Starts of all actions: a W begins when the action before it ends."""
        done = numpy.concatenate([[0], numpy.cumsum(self.durations)])
        before = numpy.cumsum(self.words.place != _WEIGHT_GRAD) - 1
        starts: Integers = numpy.array(self.starts, dtype=numpy.int64)[before] + done[:-1] - done[moving[before]]
        return starts

    def _timeline(self, start: Integers) -> Timeline:
        end = start + self.durations
        synchronisations = self._synchronisations(end)
        last = [int(end.max(initial=0)), *(timed.end_ns for timed in synchronisations)]
        makespan = max(last) + self.problem.profile.optimizer_ns
        actions = PlayedActions(self.words, start=start, end=end)
        memory = self._memory(actions)
        first = self.words.first
        used = numpy.flatnonzero(first[1:] > first[:-1])
        return Timeline(
            actions=actions,
            transfers=PlayedTransfers(tuple(self.played), ready=self._ready(end), start=self._flow_starts()),
            synchronisations=tuple(synchronisations),
            makespan_ns=makespan,
            span_ns=int((end[first[1:][used] - 1] - start[first[:-1][used]]).max(initial=0)),
            bubble=1 - int((end - start).sum()) / (len(actions) * makespan) if makespan else 0.0,
            memory=memory,
            peak_bytes=memory.peaks(),
        )

    def _flow_starts(self) -> Integers:
        return numpy.array(self.flow_starts, dtype=numpy.int64).reshape(len(self.flows), self.count)

    def _ready(self, end: Integers) -> Integers:
        """[flows, M] when the action of every transfer ends."""
        ends = numpy.zeros(3 * len(self.lanes) * self.count, dtype=numpy.int64)
        ends[self.slot] = end
        rows = [3 * flow.sender + flow.is_backward for flow in self.flows]
        found: Integers = ends.reshape(-1, self.count)[numpy.array(rows, dtype=numpy.int64)]
        return found

    def _synchronisations(self, end: Integers) -> list[TimedSynchronisation]:
        """Each stage's once its last action has ended, in order of their start."""
        latest = numpy.full(len(self.plan.stages), -1, dtype=numpy.int64)
        numpy.maximum.at(latest, self.words.stage, end)
        found = []
        for number, start in enumerate(latest.tolist()):
            duration = self.costs.synchronisation_ns(self.plan.stages[number]) if start >= 0 else 0
            if duration:
                found.append(TimedSynchronisation(number, start, start + duration))
        return sorted(found, key=lambda timed: timed.start_ns)

    def _memory(self, actions: PlayedActions) -> PlayedMemory:
        """What is held depends on the order of the words alone, only the times come from the game."""
        from planner.simulate import memory_steps

        steps = numpy.array([[memory_steps(lane.cost, kind) for kind in "FIWB"] for lane in self.lanes], numpy.int64)
        during, after = steps.reshape(len(self.lanes), 4, 2)[self.holder, self.words.kind].T
        static = self.costs.static_bytes(self.plan.stages)
        base = numpy.array([static[device] for device in self.words.schedule], dtype=numpy.int64)
        sums = numpy.concatenate([[0], numpy.cumsum(after)])
        first = self.words.first[:-1]
        before = sums[:-1] + (base - sums[first])[self.words.device]
        return PlayedMemory(actions, base=base, during=before + during, after=before + after)


class _Queue:
    """Transfers that share links, each taking its links once those before it have let them go."""

    def __init__(self, course: FastEvaluation, order: list[int]) -> None:
        self.waiting: list[int] = []
        """A heap: when each is ready and its turn among those (stage, microbatch, rank of the flow), in one integer."""
        self.rank_bits, self.count_bits = len(order).bit_length(), course.count.bit_length()
        self.time_bits = self.rank_bits + self.count_bits + len(course.plan.stages).bit_length()
        used = dict.fromkeys(link for flow in course.flows for link in flow.links)
        number = {link: index for index, link in enumerate(used)}
        self.free = [0] * len(number)
        self.flows = [
            (
                tuple(number[link] for link in flow.links),
                flow.duration,
                (3 * flow.receiver + flow.is_backward) * course.count,
                course.flow_starts[index],
            )
            for index, flow in ((index, course.flows[index]) for index in order)
        ]

    def turn(self, stage: int, rank: int) -> int:
        """What decides between the flows that are ready at once, but for the microbatch."""
        return stage << self.rank_bits + self.count_bits | rank

    def depart(self) -> tuple[int, int]:
        """Let the first one go; the slot that waits for it, and when it arrives."""
        first = heappop(self.waiting)
        links, duration, target, starts = self.flows[first & (1 << self.rank_bits) - 1]
        begin, free = first >> self.time_bits, self.free
        for link in links:
            if free[link] > begin:
                begin = free[link]
        end = begin + duration
        for link in links:
            free[link] = end
        microbatch = first >> self.rank_bits & (1 << self.count_bits) - 1
        starts[microbatch] = begin
        return target + microbatch, end


def make_fast_evaluation(
    plan: Plan, *, lanes: Sequence["StageReplica"], words: Words | None, costs: CostModel
) -> FastEvaluation | None:
    """The game, or None if the plan needs the general one: groups, split placement, bucketed synchronisation, devices
    that cannot send and compute at once, actions that are foreign, repeated, missing or out of order, or times beyond
    64 bits.
    """
    problem = costs.problem
    is_usual = problem.cluster.overlap and problem.options.synchronisation == "after"
    if words is None or not is_usual or any(stage.is_split for stage in plan.stages):
        return None
    if any(len(lane.group) > 1 for lane in lanes) or max(words.microbatch, default=0) >= problem.num_microbatches:
        return None
    seats = {(lane.group[0], lane.stage): number for number, lane in enumerate(lanes)}
    holder = holders(words, seats, num_stages=len(plan.stages))
    if holder is None or len(seats) < len(lanes) or set(words.schedule) != {device for device, _ in seats}:
        return None
    course = FastEvaluation(plan, lanes=lanes, words=words, holder=holder, costs=costs)
    is_repeated = bool(len(course.slot)) and int(numpy.bincount(course.slot).max()) > 1
    return None if is_repeated or not course.keeps_order() or not course.is_short() else course
