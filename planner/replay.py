"""The second evaluation: checks a timeline against the equations of MODEL.md sections 3 and 4 without playing the plan.

Every action, transfer and synchronisation has one equation for its start, in terms of the ends of others, and each is
checked as it stands. A timeline that satisfies all of them is the only one: whatever takes time ends after it starts,
and what takes none depends on others without a cycle (`planner.verify` has ruled out deadlocks), so two such timelines
could not differ for a first time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy

from planner.actions import Action
from planner.costs import CostModel, StageCost, overlaps
from planner.encoding import Integers, Words, encode, holders
from planner.equations import Times, all_hold, read_times
from planner.plan import DeviceGroup, Plan, Stage
from planner.problem import Problem
from planner.simulate import TimedAction, Timeline
from planner.split_placement import BEFORE_FIRST, common, input_grad_ranges, part_of

MAX_INCONSISTENCIES = 20
"""No more than this many are listed."""

MOST_BYTES = 2**61
"""Sums from here on are not made of 64-bit integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a timeline amounts to, and which equations it breaks."""

    makespan_ns: int
    """End of the iteration."""
    span_ns: int
    """Longest time from the start of the first to the end of the last action of a device."""
    bubble: float
    """1 - total work / (devices used x makespan)."""
    peak_bytes: Mapping[str, int]
    """Peak memory of every device used."""
    inconsistencies: tuple[str, ...]
    """One sentence for every equation that does not hold, `MAX_INCONSISTENCIES` at most."""


class MemoryUse(NamedTuple):
    """What one device holds at most."""

    peak_bytes: int
    """The most it ever holds."""
    first_over: Action | None
    """The first action during which it holds more than its memory; None if it never does or already idle holds it."""


class Seat(NamedTuple):
    """One replica of one stage: a group of devices that run its actions together.

    With split placement: one device that works for the stage; the owner is replica 0.
    """

    stage: int
    replica: int
    group: DeviceGroup
    cost: StageCost


class Leg(NamedTuple):
    """What one seat sends another for every microbatch; `links` is empty and `duration_ns` 0 inside a device.

    With split placement, a leg between seats of one stage carries the stash (forward) or the weight stash (backward).
    """

    sender: int
    """Index of the sending seat."""
    receiver: int
    """Index of the receiving seat."""
    rank: int
    """Position among the sender's legs of the same direction: order of edges, then of receiving replicas."""
    is_backward: bool
    num_bytes: int
    links: tuple[int, ...]
    duration_ns: int
    is_local: bool


def replay(
    problem: Problem, plan: Plan, *, timeline: Timeline, costs: CostModel | None = None, words: Words | None = None
) -> Replay:
    """Check every equation of `timeline` and recompute its figures; the plan itself must be sound.

    `words` may give the words of its schedule as arrays.
    """
    model, encoded = costs or CostModel(problem), words or encode(plan.schedule)
    seats = make_seats(plan, costs=model)
    legs = make_legs(problem, seats, plan=plan, costs=model)
    times = None if encoded is None else read_times(timeline, encoded)
    makespan = _makespan_ns(problem, plan, timeline=timeline, times=times)
    found: tuple[str, ...] = ()
    if (
        encoded is None
        or times is None
        or timeline.makespan_ns != makespan
        or not all_hold(plan, times, timeline=timeline, costs=model, seats=seats, legs=legs, words=encoded)
    ):
        checker = _Checker(problem, plan, timeline=timeline, costs=model)
        found = tuple(text for text, _ in zip(checker.inconsistencies(), range(MAX_INCONSISTENCIES), strict=False))
    return Replay(
        makespan_ns=makespan,
        span_ns=_span_ns(timeline, encoded, times=times),
        bubble=_bubble(plan, timeline, times=times, makespan=makespan),
        peak_bytes={
            device: use.peak_bytes for device, use in memory_use(problem, plan, costs=model, words=encoded).items()
        },
        inconsistencies=found,
    )


def _makespan_ns(problem: Problem, plan: Plan, *, timeline: Timeline, times: Times | None) -> int:
    """End of the last action, synchronisation or finished gradient, plus the optimizer step."""
    if times is None:
        ends = [word[-1].end_ns for word in timeline.actions.values() if word]
    else:
        ends = [int(times.end.max(initial=0))]
    ends += [timed.end_ns for timed in timeline.synchronisations]
    if any(stage.weight_grad_replicas for stage in plan.stages):
        ends += [sent.end_ns for sent in timeline.transfers if sent.microbatch == problem.num_microbatches]
    return max(ends, default=0) + problem.profile.optimizer_ns


def _span_ns(timeline: Timeline, words: Words | None, *, times: Times | None) -> int:
    """Longest time from the start of the first to the end of the last action of a device."""
    if words is None or times is None:
        return max((word[-1].end_ns - word[0].start_ns for word in timeline.actions.values() if word), default=0)
    is_used = words.first[1:] > words.first[:-1]
    begins, ends = words.first[:-1][is_used], words.first[1:][is_used] - 1
    return int((times.end[ends] - times.start[begins]).max(initial=0))


def _bubble(plan: Plan, timeline: Timeline, *, times: Times | None, makespan: int) -> float:
    """1 - total work / (devices used x makespan); 0 where nothing takes time."""
    if times is None:
        work = sum(end - start for word in timeline.actions.values() for _, start, end in word)
    else:
        work = int((times.end - times.start).sum())
    available = len(plan.devices) * makespan
    return (available - work) / available if available else 0.0


def make_seats(plan: Plan, *, costs: CostModel) -> list[Seat]:
    """All seats, by stage, then replica."""
    seats: list[Seat] = []
    for number, stage in enumerate(plan.stages):
        if stage.is_split:
            parts = enumerate(costs.parts(stage))
            seats += (Seat(number, index, (part.device,), costs.part_cost(stage, part)) for index, part in parts)
        else:
            groups = enumerate(stage.replicas)
            seats += (Seat(number, index, group, costs.stage_cost(stage, index)) for index, group in groups)
    return seats


def make_legs(problem: Problem, seats: list[Seat], *, plan: Plan, costs: CostModel) -> list[Leg]:
    """Everything that flows between seats: replicas of two stages exchange what their sample ranges share."""
    index = {(seat.stage, seat.replica): number for number, seat in enumerate(seats)}
    ranks = [[0, 0] for _ in seats]
    legs = []
    for is_backward, sender_at, receiver_at, size in _flows(plan, costs=costs):
        sender, receiver = index[sender_at], index[receiver_at]
        devices = seats[sender].group[0], seats[receiver].group[0]
        links, duration, is_local = _way(problem, devices, num_bytes=size)
        rank = ranks[sender][is_backward]
        ranks[sender][is_backward] += 1
        legs.append(Leg(sender, receiver, rank, is_backward, size, links, duration, is_local))
    return legs


_Flow = tuple[bool, tuple[int, int], tuple[int, int], int]
"""Whether it goes backward, stage and replica of its sender and of its receiver, bytes."""


def _flows(plan: Plan, *, costs: CostModel) -> Iterator[_Flow]:
    """Everything that flows per microbatch, in the order in which equal transfers take their turns."""
    for (a, b), traffic in costs.traffic(plan.stages).items():
        is_split = plan.stages[a].is_split or plan.stages[b].is_split
        counts = len(plan.stages[a].replicas), len(plan.stages[b].replicas)
        for i, j, share, whole in overlaps(*counts):
            yield False, (a, i), (b, j), -(-traffic.forward_bytes * share // whole)
            if traffic.has_gradient and not is_split:
                yield True, (b, j), (a, i), -(-traffic.backward_bytes * share // whole)
        if is_split and traffic.has_gradient:
            for taker in input_grad_ranges(plan.stages[a]):
                for maker in input_grad_ranges(plan.stages[b]):
                    if both := common(taker, maker):
                        yield True, (b, maker.number), (a, taker.number), part_of(both, traffic.backward_bytes)
    for number, stage in enumerate(plan.stages):
        if stage.is_split:
            yield from _flows_within(stage, number, costs=costs)


def _flows_within(stage: Stage, number: int, *, costs: CostModel) -> Iterator[_Flow]:
    """With split placement: the stash goes from F to every I elsewhere, the weight stash from I to a W elsewhere."""
    parts, cost = costs.parts(stage), costs.stage_cost(stage, 0)
    takers = [index for index, part in enumerate(parts) if "W" in part.kinds]
    for index, part in enumerate(parts):
        if index and part.share:
            yield False, (number, 0), (number, index), part_of(part.share, cost.stash_bytes)
        for taker in takers:
            if part.share and taker != index:
                yield True, (number, index), (number, taker), part_of(part.share, cost.weight_stash_bytes)


def make_single_legs(problem: Problem, seats: list[Seat], *, plan: Plan, costs: CostModel) -> list[Leg]:
    """What travels once per iteration with split placement: weights to I (forward), the gradient of W (backward)."""
    legs: list[Leg] = []
    owner = 0
    for number, seat in enumerate(seats):
        stage = plan.stages[seat.stage]
        if not stage.is_split:
            continue
        if seat.replica == 0:
            owner = number
            continue
        kinds = costs.parts(stage)[seat.replica].kinds
        ways = [(False, owner, number, costs.parameter_bytes(stage))] * ("I" in kinds)
        ways += [(True, number, owner, costs.gradient_bytes(stage))] * ("W" in kinds)
        for is_backward, sender, receiver, size in ways:
            devices = seats[sender].group[0], seats[receiver].group[0]
            links, duration, is_local = _way(problem, devices, num_bytes=size)
            legs.append(Leg(sender, receiver, len(legs), is_backward, size, links, duration, is_local))
    return legs


def _way(problem: Problem, ends: tuple[str, str], *, num_bytes: int) -> tuple[tuple[int, ...], int, bool]:
    """Links, duration and whether it stays inside a device: the first devices of two groups exchange what flows."""
    if ends[0] == ends[1]:
        return (), 0, True
    route = problem.cluster.route(*ends, num_bytes=num_bytes)
    seconds = -(-num_bytes * 1_000_000_000 // route.bandwidth_bytes_per_s)
    return route.links, route.latency_ns + seconds, False


def memory_use(problem: Problem, plan: Plan, *, costs: CostModel, words: Words | None = None) -> dict[str, MemoryUse]:
    """Peak memory per device, from the order of its actions alone (MODEL.md section 4)."""
    static, seats = costs.static_bytes(plan.stages), make_seats(plan, costs=costs)
    limits = {device: problem.cluster.by_name[device].memory_bytes for device in plan.schedule}
    at = {(device, seat.stage): number for number, seat in enumerate(seats) for device in seat.group}
    holder = None if words is None else holders(words, at, num_stages=len(plan.stages))
    most = max((max(seat.cost.stash_bytes, seat.cost.weight_stash_bytes) for seat in seats), default=0)
    if words is not None and holder is not None and most * len(holder) < MOST_BYTES:
        return _memory_of_all(words, [seat.cost for seat in seats], holder=holder, base=static, limits=limits)
    cost_of: dict[str, dict[int, StageCost]] = {device: {} for device in plan.schedule}
    for seat in seats:
        for device in seat.group:
            cost_of[device][seat.stage] = seat.cost
    return {
        device: _memory_of(word, cost_of[device], base=static[device], limit=limits[device])
        for device, word in plan.schedule.items()
    }


def _memory_of_all(
    words: Words, costs: list[StageCost], *, holder: Integers, base: dict[str, int], limits: dict[str, int]
) -> dict[str, MemoryUse]:
    """`_memory_of` for all devices at once; `holder` [A] is the cost that each action has."""
    kept = numpy.array([[c.held_bytes, c.weight_stash_bytes - c.held_bytes, -c.weight_stash_bytes, -c.held_bytes]
                        for c in costs], dtype=numpy.int64)  # fmt: skip
    rest = [c.stash_bytes - c.held_bytes + c.workspace_bytes for c in costs]
    extra = [
        (c.held_bytes + c.workspace_bytes, more, c.received_bytes + c.workspace_bytes, more)
        for c, more in zip(costs, rest, strict=True)
    ]
    change = kept[holder, words.kind]
    total = numpy.concatenate([[0], numpy.cumsum(change)])
    before = total[:-1] - total[words.first[:-1]][words.device]
    most = numpy.maximum(before + numpy.array(extra, dtype=numpy.int64)[holder, words.kind], before + change)
    uses = {}
    for number, (device, word) in enumerate(words.schedule.items()):
        part = most[words.first[number] : words.first[number + 1]]
        peak, over = base[device] + int(part.max(initial=0)), part > limits[device] - base[device]
        is_named = base[device] <= limits[device] and bool(over.any())
        uses[device] = MemoryUse(peak, word[int(over.argmax())] if is_named else None)
    return uses


def _memory_of(word: tuple[Action, ...], cost_of: dict[int, StageCost], *, base: int, limit: int) -> MemoryUse:
    between, peak, first_over = base, base, None
    for action in word:
        cost, kind = cost_of[action.stage], action.kind
        if kind == "F":
            between += cost.held_bytes
            during = between
        elif kind == "W":
            during = between + cost.received_bytes
            between -= cost.weight_stash_bytes
        else:
            during = between - cost.held_bytes + cost.stash_bytes
            between += (cost.weight_stash_bytes if kind == "I" else 0) - cost.held_bytes
        during += cost.workspace_bytes
        if during > peak or between > peak:
            peak = max(during, between)
            if peak > limit and first_over is None:
                first_over = action
    return MemoryUse(peak, first_over if base <= limit else None)


_Key = tuple[int, ...]
"""Readiness, stage, microbatch, direction, replica, rank: the order in which transfers take their links."""


class _Checker:
    """The equations, one method each, over tables of what the timeline claims."""

    def __init__(self, problem: Problem, plan: Plan, *, timeline: Timeline, costs: CostModel) -> None:
        self.problem, self.plan, self.timeline, self.costs = problem, plan, timeline, costs
        self.num_microbatches = problem.num_microbatches
        self.seats = make_seats(plan, costs=costs)
        self.legs = make_legs(problem, self.seats, plan=plan, costs=costs)
        self.single_legs = make_single_legs(problem, self.seats, plan=plan, costs=costs)
        self.seat_of = {(device, seat.stage): n for n, seat in enumerate(self.seats) for device in seat.group}
        slots = range(len(self.seats))
        self.forward_end = [[0] * self.num_microbatches for _ in slots]
        self.backward_end = [[0] * self.num_microbatches for _ in slots]
        self.inputs_at = [[0] * self.num_microbatches for _ in slots]
        self.gradients_at = [[0] * self.num_microbatches for _ in slots]
        self.weight_stash_at: dict[tuple[int, int], int] = {}
        self.stage_end = [0] * len(plan.stages)
        self.queue: list[tuple[_Key, tuple[int, ...], int, int, tuple[str, ...]]] = []
        self.busy: dict[str, list[tuple[int, int]]] = {device: [] for device in plan.schedule}

    def inconsistencies(self) -> Iterator[str]:
        """All equations; those of starts need the tables that the first ones fill."""
        if set(self.timeline.actions) != set(self.plan.schedule):
            yield "the timeline's devices are not the plan's"
            return
        broken = list(chain(self.words(), self.durations()))
        if not broken:
            self.deliver_locally()
            broken += self.transfers()
        yield from broken
        if not broken:
            yield from chain(self.synchronisations(), self.queueing(), self.groups(), self.starts(), self.figures())

    def words(self) -> Iterator[str]:
        """Every device runs the plan's actions in the plan's order."""
        for device, word in self.plan.schedule.items():
            if [timed.action for timed in self.timeline.actions[device]] != list(word):
                yield f"the timeline's actions on {device} are not the plan's"

    def durations(self) -> Iterator[str]:
        """An action takes the time that its stage costs; its end is noted for whatever waits for it."""
        for device, word in self.timeline.actions.items():
            for (kind, stage, microbatch), start, end in word:
                number = self.seat_of[device, stage]
                seat = self.seats[number]
                if end - start != seat.cost.duration_ns(kind):
                    yield f"{stage}{kind}{microbatch} on {device} takes {end - start} ns instead of its cost"
                if kind == "F":
                    self.forward_end[number][microbatch] = end
                elif kind != "W":
                    self.backward_end[number][microbatch] = end
                self.stage_end[stage] = max(self.stage_end[stage], end)

    def transfers(self) -> Iterator[str]:
        """Every leg makes one transfer per microbatch, ready when its action has ended; it is queued with its key."""
        remote = {self.ends_of(leg): leg for leg in self.legs if not leg.is_local}
        missing = {(key, microbatch) for key in remote for microbatch in range(self.num_microbatches)}
        single = {
            (self.ends_of(leg), self.num_microbatches if leg.is_backward else BEFORE_FIRST): leg
            for leg in self.single_legs
        }
        missing.update(single)
        for sent in self.timeline.transfers:
            source, target, from_stage, to_stage, microbatch, direction, size, links, ready, start, end = sent
            key = source, target, from_stage, to_stage, direction
            if (key, microbatch) not in missing:
                yield f"{_name(sent)} is not needed, or occurs twice"
                continue
            missing.remove((key, microbatch))
            leg = single[key, microbatch] if (key, microbatch) in single else remote[key]
            if (size, links, end - start) != (leg.num_bytes, leg.links, leg.duration_ns):
                yield f"{_name(sent)} has the wrong size, route or duration"
            if ready != (at := self.source_end(leg, microbatch)):
                yield f"{_name(sent)} is ready at {ready} ns, but its action ends at {at} ns"
            self.deliver(leg, microbatch, end=end)
            order = ready, from_stage, microbatch, int(leg.is_backward), self.seats[leg.sender].replica, leg.rank
            devices = () if self.problem.cluster.overlap else (source, target)
            self.queue.append((order, links if leg.duration_ns else (), start, end, devices))
        for ends, microbatch in sorted(missing):
            yield f"the {ends[4]} transfer from {ends[0]} to {ends[1]} for microbatch {microbatch} is missing"

    def ends_of(self, leg: Leg) -> tuple[str, str, int, int, str]:
        """Devices, stages and direction of a leg, as its transfers state them."""
        sender, receiver = self.seats[leg.sender], self.seats[leg.receiver]
        direction = "backward" if leg.is_backward else "forward"
        return sender.group[0], receiver.group[0], sender.stage, receiver.stage, direction

    def deliver(self, leg: Leg, microbatch: int, *, end: int) -> None:
        """Note when a transfer has arrived, for whatever waits for it."""
        number = leg.receiver
        if self.seats[leg.sender].stage != self.seats[number].stage:
            arrivals = (self.gradients_at if leg.is_backward else self.inputs_at)[number]
            arrivals[microbatch] = max(arrivals[microbatch], end)
        elif not leg.is_backward:  # weights or stash: I waits for them as for its gradients
            served = range(self.num_microbatches) if microbatch == BEFORE_FIRST else (microbatch,)
            for each in served:
                self.gradients_at[number][each] = max(self.gradients_at[number][each], end)
        elif microbatch < self.num_microbatches:
            known = self.weight_stash_at.get((number, microbatch), 0)
            self.weight_stash_at[number, microbatch] = max(known, end)

    def source_end(self, leg: Leg, microbatch: int) -> int:
        """When the action ends that a leg takes its data from: weights are there from the start, gradients at last."""
        if microbatch == BEFORE_FIRST:
            return 0
        if microbatch == self.num_microbatches:
            return self.stage_end[self.seats[leg.sender].stage]
        return (self.backward_end if leg.is_backward else self.forward_end)[leg.sender][microbatch]

    def deliver_locally(self) -> None:
        """Inside a device everything arrives at once."""
        for leg in self.legs:
            if leg.is_local:
                arrivals = (self.gradients_at if leg.is_backward else self.inputs_at)[leg.receiver]
                for microbatch in range(self.num_microbatches):
                    arrivals[microbatch] = max(arrivals[microbatch], self.source_end(leg, microbatch))

    def synchronisations(self) -> Iterator[str]:
        """A replicated stage synchronises once its last action has ended: at once, or queueing with the transfers."""
        claimed = {timed.stage: timed for timed in self.timeline.synchronisations}
        for number, stage in enumerate(self.plan.stages):
            duration, timed = self.costs.synchronisation_ns(stage), claimed.pop(number, None)
            if duration == 0 and timed is None:
                continue
            if timed is None or timed.end_ns - timed.start_ns != duration:
                yield f"the synchronisation of stage {number} does not take {duration} ns"
            elif self.problem.options.synchronisation == "bucketed":
                order = self.stage_end[number], number, self.num_microbatches, 2
                self.queue.append((order, self.ring_links(number), timed.start_ns, timed.end_ns, ()))
            elif timed.start_ns != self.stage_end[number]:
                yield f"the synchronisation of stage {number} does not start at the end of its last action"
        if claimed or len({timed.stage for timed in self.timeline.synchronisations}) < len(
            self.timeline.synchronisations
        ):
            yield "the timeline has a synchronisation too many"

    def ring_links(self, number: int) -> tuple[int, ...]:
        """The links under the ring of a stage's replicas."""
        stage = self.plan.stages[number]
        heads = [group[0] for group in stage.replicas]
        size = self.costs.gradient_bytes(stage)
        routes = [self.problem.cluster.route(heads[i - 1], heads[i], num_bytes=size).links for i in range(len(heads))]
        return tuple(link for links in routes for link in links)

    def queueing(self) -> Iterator[str]:
        """In the order of their keys, transfers start once their links (without overlap: devices too) are free."""
        free: dict[int, int] = {}
        words = {} if self.problem.cluster.overlap else {d: _lasting(w) for d, w in self.timeline.actions.items()}
        self.queue.sort()
        for order, links, start, end, devices in self.queue:
            expected = order[0]
            for link in links:
                if free.get(link, 0) > expected:
                    expected = free[link]
            if end > order[0] and links:
                expected = max([expected, *(self.free_at(device, order[0], word=words[device]) for device in devices)])
                for device in devices:
                    self.busy[device].append((order[0], end))
            if start != expected:
                yield (
                    f"what stage {order[1]} sends for microbatch {order[2]}, ready at {order[0]} ns, "
                    f"starts at {start} ns, but it can at {expected} ns"
                )
            for link in links:
                free[link] = end

    def free_at(self, device: str, ready: int, *, word: list[TimedAction]) -> int:
        """When a device is free for a transfer: after earlier transfers and the actions started before it was ready."""
        index = bisect_left(word, ready, key=lambda timed: timed.start_ns)
        last = word[index - 1].end_ns if index else 0
        return max(last, self.busy[device][-1][1] if self.busy[device] else 0)

    def groups(self) -> Iterator[str]:
        """The devices of a group run an action at the same time."""
        for seat in self.seats:
            if len(seat.group) > 1:
                played = [
                    [timed for timed in self.timeline.actions[device] if timed.action.stage == seat.stage]
                    for device in seat.group
                ]
                if any(word != played[0] for word in played):
                    yield f"the devices {', '.join(seat.group)} do not run stage {seat.stage} at the same times"

    def starts(self) -> Iterator[str]:
        """An action starts as soon as its inputs are there and all devices of its group are free."""
        before = self.ends_before()
        for device, word in self.timeline.actions.items():
            free = 0
            for action, start, end in word:
                kind, stage, microbatch = action
                number = self.seat_of[device, stage]
                expected = free if len(self.seats[number].group) == 1 else before[number, action]
                free = end
                if kind == "F":
                    needed = self.inputs_at[number][microbatch]
                elif kind == "W":
                    needed = self.backward_end[number][microbatch]
                    if (number, microbatch) in self.weight_stash_at:
                        needed = max(needed, self.weight_stash_at[number, microbatch])
                else:
                    needed = max(self.forward_end[number][microbatch], self.gradients_at[number][microbatch])
                expected = max(expected, needed)
                if end > start and not self.problem.cluster.overlap:
                    expected = self.after_transfers(self.seats[number].group, expected)
                if start != expected:
                    yield f"{action} on {device} starts at {start} ns, but it can at {expected} ns"

    def ends_before(self) -> dict[tuple[int, Action], int]:
        """For actions of groups of several devices: when the last of these devices ended its previous action."""
        before: dict[tuple[int, Action], int] = {}
        for seat_number, seat in enumerate(self.seats):
            if len(seat.group) > 1:
                for device in seat.group:
                    free = 0
                    for action, _, end in self.timeline.actions[device]:
                        if action.stage == seat.stage:
                            before[seat_number, action] = max(free, before.get((seat_number, action), 0))
                        free = end
        return before

    def after_transfers(self, group: DeviceGroup, start: int) -> int:
        """`start`, or later: the transfers of the devices that are ready by then go first."""
        while True:
            later = start
            for device in group:
                busy = self.busy[device]
                index = bisect_right(busy, start, key=lambda entry: entry[0])
                if index:
                    later = max(later, busy[index - 1][1])
            if later == start:
                return start
            start = later

    def figures(self) -> Iterator[str]:
        """The timeline's makespan is the end of the last action or synchronisation, plus the optimizer step."""
        makespan = _makespan_ns(self.problem, self.plan, timeline=self.timeline, times=None)
        if self.timeline.makespan_ns != makespan:
            yield f"the timeline says makespan {self.timeline.makespan_ns} ns, but ends at {makespan} ns"


def _lasting(word: tuple[TimedAction, ...]) -> list[TimedAction]:
    return [timed for timed in word if timed.end_ns > timed.start_ns]


def _name(sent: tuple[object, ...]) -> str:
    return f"the {sent[5]} transfer from {sent[0]} to {sent[1]} for microbatch {sent[4]}"
