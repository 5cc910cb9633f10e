"""The schedule bound: stages and devices are given, any order of actions is allowed.

Microbatches are told apart by their rank in time only: what is said of the k-th F of a lane holds for whichever
microbatch that is. If every F waits for something of its own microbatch, the k-th F waits for the k-th such thing
(order statistics), so all bounds hold for every order, in sequence or not.
"""

from collections.abc import Iterable

import numpy

from planner.bounds.minimum_costs import Integers
from planner.bounds.order.joint_memory_limit import HeldTogether, make_held_together
from planner.bounds.order.memory_rounds import MAX_TABLE, NEVER, MemoryTurns, Turns
from planner.bounds.order.one_machine_bound import OneMachineJobs, join, one_machine
from planner.bounds.order.stage_replicas import Lanes, Transfer, make_lanes
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem

MIN_PASSES, PASS_EFFORT = 24, 200_000_000
"""Passes over all lanes, as many at least; and table entries for which there may be more. Each leaves valid bounds; a
late one rarely changes any, but where one microbatch fits, every pass lets one more wait for the one before it."""

_MAX_SPAN_DEVICES = 16
"""Devices whose span is bounded one by one, those with the most work first."""


def schedule_bound(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> int:
    """No order of actions makes the objective smaller with these stages on these devices.

    Proof. `HeadsAndTails` holds a head and a tail for the k-th F, I and W of every lane; each device, and each link,
    then runs jobs with heads and tails, one at a time (`one_machine`). And a device idles before an I, or after an F,
    where its lanes together have not the memory for as much work as would fill that time (`HeldTogether`). For the span
    of a device, heads count from its first action and tails to its last: what happens on other devices has no absolute
    time.
    """
    if any(stage.is_split for stage in stages):
        return _largest_load(problem, stages, costs=costs)
    lanes = make_lanes(problem, stages, costs=costs)
    devices = list(dict.fromkeys(device for lane in lanes.lanes for device in lane.devices))
    if problem.options.objective == "span":
        devices.sort(key=lambda device: -_work_on(lanes, device))
        found = [
            _on_device(HeadsAndTails(problem, lanes, anchor=device), device) for device in devices[:_MAX_SPAN_DEVICES]
        ]
        return max([*found, *(problem.num_microbatches * _work_on(lanes, device) for device in devices)])
    return bound_of_times(HeadsAndTails(problem, lanes, anchor=None)) + lanes.optimizer_ns


def bound_of_times(times: "HeadsAndTails") -> int:
    """The largest bound of a device or a link."""
    return max([_on_device(times, device) for device in times.partners.on] + _on_links(times))


def _largest_load(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> int:
    """The work of the busiest device: all that is said here where I or W of a stage are on other devices than its F."""
    loads: dict[str, int] = {}
    for stage in stages:
        for part in costs.parts(stage) if stage.is_split else ():
            cost = costs.part_cost(stage, part)
            loads[part.device] = loads.get(part.device, 0) + sum(cost.duration_ns(kind) for kind in part.kinds)
        for replica, group in enumerate(() if stage.is_split else stage.replicas):
            cost = costs.stage_cost(stage, replica)
            for device in group:
                backward = min(cost.backward_ns, cost.input_grad_ns + cost.weight_grad_ns)
                loads[device] = loads.get(device, 0) + cost.forward_ns + backward
    tail = costs.optimizer_ns(stages) if problem.options.objective == "makespan" else 0
    return problem.num_microbatches * max(loads.values()) + tail


def _work_on(lanes: Lanes, device: str) -> int:
    """Nanoseconds of work per microbatch."""
    return sum(lanes.lanes[n].forward + lanes.lanes[n].returning + lanes.lanes[n].rest for n in lanes.on(device))


def _on_device(times: "HeadsAndTails", device: str) -> int:
    """The bound of a device: one machine, where without overlap its transfers occupy it too; and what fits into it."""
    parts = [jobs for number in times.partners.on[device] for jobs in times.actions(number)]
    if not times.problem.cluster.overlap:
        parts += [times.transfers(flow) for flow in times.lanes.sent_or_received.get(device, ())]
    return max(one_machine(join(parts)), _in_memory(times, device))


def _in_memory(times: "HeadsAndTails", device: str) -> int:
    """The bound of what fits into a device at a time."""
    numbers = times.partners.on[device]
    lanes = [times.lanes.lanes[number] for number in numbers]
    return times.memory[device].floor(
        starts=numpy.sort(
            numpy.concatenate([times.return_end[n] - lane.returning for n, lane in zip(numbers, lanes, strict=True)])
        ),
        tails=numpy.sort(times.forward_tail[numbers], axis=None),
        first=min(int(times.forward_end[n, 0]) - lane.forward for n, lane in zip(numbers, lanes, strict=True)),
        last=0 if times.anchor is not None else min(lane.synchronisation for lane in lanes),
    )


def _on_links(times: "HeadsAndTails") -> list[int]:
    """The one-machine bound of every link."""
    parts: dict[int, list[OneMachineJobs]] = {}
    for flow in times.flows():
        for link in flow.links:
            parts.setdefault(link, []).append(times.transfers(flow))
    return [one_machine(join(jobs)) for jobs in parts.values()]


class HeadsAndTails:
    """Heads and tails: when the k-th F and I of every lane can end at the earliest, and what must follow at the least.

    `anchor`: None for the makespan; otherwise the device from whose first start to whose last end time is counted.
    """

    def __init__(self, problem: Problem, lanes: Lanes, *, anchor: str | None) -> None:
        self.problem, self.lanes, self.anchor = problem, lanes, anchor
        self.count = problem.num_microbatches
        self.rank: Integers = numpy.arange(self.count, dtype=numpy.int64)
        shape = (len(lanes.lanes), self.count)
        self.forward_end: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.return_end: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.forward_tail: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.return_tail: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.partners = _Partners(lanes, anchor=anchor)
        self.in_flight = [self._in_flight(number) for number in range(len(lanes.lanes))]
        self.within = [self._within(number) for number in range(len(lanes.lanes))]
        """Per lane: lanes on its device whose microbatches it holds, too, and how many it may hold beside one there."""
        self.around = [
            [(k, most) for k, pairs in enumerate(self.within) for j, most in pairs if j == number]
            for number in range(len(lanes.lanes))
        ]
        """The same the other way round."""
        self.known_rounds: dict[Turns, MemoryTurns] = {}
        self.rounds = [self._rounds(number, returning=lane.returning) for number, lane in enumerate(lanes.lanes)]
        self.forced = [self._forced(number) for number in range(len(lanes.lanes))]
        self.memory = {device: self._memory(device) for device in self.partners.on}
        """What fits into every device."""
        self._settle()

    @classmethod
    def of(cls, problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> "HeadsAndTails":
        """The heads and tails of stages that are given, for the makespan."""
        return cls(problem, make_lanes(problem, stages, costs=costs), anchor=None)

    def _settle(self) -> None:
        """Pass over all lanes until nothing changes."""
        entries = len(self.lanes.lanes) * self.count * min(self.count, MAX_TABLE)
        for _ in range(max(MIN_PASSES, min(2 * self.count, PASS_EFFORT // entries))):
            before = self._state()
            self._pass()
            if self._state() == before:
                return

    def _state(self) -> tuple[int, ...]:
        """Sums that change whenever a head or a tail is raised."""
        tables = (self.forward_end, self.return_end, self.forward_tail, self.return_tail)
        return tuple(int(table.sum()) for table in tables)

    def _pass(self) -> None:
        """Raise every head and tail once."""
        numbers = range(len(self.lanes.lanes))
        for number in numbers:
            self._raise_forward(number)
            self._raise_return_tail(number)
        for number in reversed(numbers):
            self._raise_return(number)
            self._raise_forward_tail(number)

    def _is_anchored(self, number: int) -> bool:
        return self.anchor is None or self.anchor in self.lanes.lanes[number].devices

    def _in_flight(self, number: int) -> int:
        """F of the lane that may have started without their I having ended.

        A lane further up on the same device holds every microbatch at least as long, so their bytes add up.
        """
        lane, most = self.lanes.lanes[number], self.count
        for device, budget in zip(lane.devices, lane.budgets, strict=True):
            held = lane.held + sum(self.lanes.lanes[other].held for other in self.partners.holders(number, device))
            most = min(most, budget // held if held else most)
        return max(1, most)

    def _within(self, number: int) -> list[tuple[int, int]]:
        """Lanes on its device that hold only what this one holds, with the most F begun and not returned beside one.

        If one F more is begun, none is held there, and until an I of this lane ends none can be: so I of as many have
        ended there. The (k + most)-th F of this lane starts after the k-th I of that one.
        """
        lane, found = self.lanes.lanes[number], list[tuple[int, int]]()
        for device, budget in zip(lane.devices, lane.budgets, strict=True):
            for other in self.partners.on[device]:
                inner = self.lanes.lanes[other]
                if lane.held and number in self.partners.holders(other, device):
                    room = max(budget, inner.budgets[inner.devices.index(device)]) - inner.held
                    found.append((other, max(1, room // lane.held)))
        return [(other, most) for other, most in found if most < self.count]

    def _memory(self, device: str) -> HeldTogether:
        """What the lanes of a device have room for together; the least workspace of theirs is there."""
        numbers = self.partners.on[device]
        lanes = [self.lanes.lanes[number] for number in numbers]
        outer = None
        if len(numbers) == 2:
            holding = [n for n, m in (numbers, reversed(numbers)) if n in self.partners.holders(m, device)]
            outer = numbers.index(holding[0]) if holding else None
        budget = max(lane.budgets[lane.devices.index(device)] for lane in lanes)
        return make_held_together(lanes, budget=budget, count=self.count, outer=outer)

    def _rounds(self, number: int, *, returning: int) -> MemoryTurns:
        """How the actions of a lane take turns, if every I comes with so much work."""
        lane = self.lanes.lanes[number]
        turns = Turns(
            count=self.count, forward=lane.forward, returning=returning, rest=lane.rest,
            in_flight=self.in_flight[number], held=lane.held, kept=lane.kept, budget=min(lane.budgets),
        )  # fmt: skip
        if turns not in self.known_rounds:
            self.known_rounds[turns] = MemoryTurns(turns)
        return self.known_rounds[turns]

    def _forced(self, number: int) -> Integers:
        """Per k: the least work of backward passes that must precede the k-th F on its device."""
        partners = [self.lanes.lanes[other] for other in self.partners.returns_from[number]]
        returning = self.lanes.lanes[number].returning + sum(lane.returning for lane in partners)
        return self._rounds(number, returning=returning).forced

    def _base(self, number: int) -> int:
        """No action on the lane's device starts earlier: the first one is an F."""
        if self.anchor in self.lanes.lanes[number].devices:
            return 0
        return min(int(self.forward_end[n, 0]) - self.lanes.lanes[n].forward for n in self.partners.colocated[number])

    def _raise_forward(self, number: int) -> None:
        """The k-th F ends no sooner than its inputs, its place in the lane, its memory and its device allow."""
        lane, most = self.lanes.lanes[number], self.in_flight[number]
        ready = numpy.full(self.count, 0 if self._is_anchored(number) else NEVER, dtype=numpy.int64)
        for flow in self.lanes.inputs[number]:
            ready = numpy.maximum(ready, self.forward_end[flow.sender] + flow.duration)
        ready[most:] = numpy.maximum(ready[most:], self.return_end[number, : self.count - most])
        for inner, beside in self.within[number]:
            ready[beside:] = numpy.maximum(ready[beside:], self.return_end[inner, : self.count - beside])
        rounds = self.rounds[number]
        returns = self.return_end[number] - lane.returning
        end = _in_line(ready, lane.forward)
        end = numpy.maximum(end, rounds.after(ready, rounds.to_forward))
        end = numpy.maximum(end, rounds.after(returns, rounds.return_to_forward))
        device = self._base(number) + (self.rank + 1) * self.partners.forward_work[number] + self.forced[number]
        self.forward_end[number] = numpy.maximum(self.forward_end[number], numpy.maximum(end, device))

    def _raise_return(self, number: int) -> None:
        """The k-th I ends no sooner than its gradients, its F, its place in the lane and its device allow."""
        lane = self.lanes.lanes[number]
        forward_ready = self.forward_end[number] - lane.forward
        ready = self.forward_end[number]
        for flow in self.lanes.gradients[number]:
            ready = numpy.maximum(ready, self.return_end[flow.sender] + flow.duration)
        rounds = self.rounds[number]
        end = _in_line(ready, lane.returning)
        end = numpy.maximum(end, rounds.after(forward_ready, rounds.to_return))
        end = numpy.maximum(end, rounds.after(numpy.maximum(ready, end - lane.returning), rounds.return_to_return))
        device = self._base(number) + (self.rank + 1) * self.partners.return_work[number]
        self.return_end[number] = numpy.maximum(self.return_end[number], numpy.maximum(end, device))

    def _raise_return_tail(self, number: int) -> None:
        """What follows the I after which k more come: theirs, the W, upstream I; memory lets F wait for it."""
        lane, most = self.lanes.lanes[number], self.in_flight[number]
        need = numpy.full(self.count, NEVER, dtype=numpy.int64)
        if self._is_anchored(number):
            left = numpy.maximum(self.rank + 1 - most, 0) * lane.forward + self.rank * lane.returning
            own = left + (self.rank + 1) * lane.rest
            shared = own + (self.rank + 1) * self.partners.return_tail_work[number] + self._last(number)
            need = numpy.maximum(shared, own + (0 if self.anchor is not None else lane.synchronisation))
        for flow in self.lanes.returns[number]:
            target = self.lanes.lanes[flow.receiver]
            need = numpy.maximum(need, flow.duration + target.returning + self.return_tail[flow.receiver])
        need[most:] = numpy.maximum(need[most:], lane.forward + self.forward_tail[number, : self.count - most])
        for outer, beside in self.around[number]:
            after = self.lanes.lanes[outer].forward + self.forward_tail[outer, : self.count - beside]
            need[beside:] = numpy.maximum(need[beside:], after)
        tail = numpy.maximum.accumulate(need - self.rank * lane.returning) + self.rank * lane.returning
        self.return_tail[number] = numpy.maximum(self.return_tail[number], tail)

    def _raise_forward_tail(self, number: int) -> None:
        """What follows the F after which k more come: its own I and W, and everything downstream."""
        lane = self.lanes.lanes[number]
        need = lane.returning + self.return_tail[number]
        if self._is_anchored(number):
            left = self.rank * lane.forward + (self.rank + 1) * self.partners.forward_tail_work[number]
            need = numpy.maximum(need, left + self._last(number))
            if self.anchor is None:
                own = self.rank * lane.forward + (self.rank + 1) * (lane.returning + lane.rest)
                need = numpy.maximum(need, own + lane.synchronisation)
        for flow in self.lanes.outputs[number]:
            target = self.lanes.lanes[flow.receiver]
            need = numpy.maximum(need, flow.duration + target.forward + self.forward_tail[flow.receiver])
        tail = numpy.maximum.accumulate(need - self.rank * lane.forward) + self.rank * lane.forward
        self.forward_tail[number] = numpy.maximum(self.forward_tail[number], tail)

    def _last(self, number: int) -> int:
        """What follows the last action of the lane's device, whichever lane it is of."""
        if self.anchor is not None:
            return 0
        return min(self.lanes.lanes[n].synchronisation for n in self.partners.colocated[number])

    def actions(self, number: int) -> Iterable[OneMachineJobs]:
        """The F, I and rests of a lane as jobs of its device."""
        lane, size = self.lanes.lanes[number], self.count
        durations = [numpy.full(size, time, dtype=numpy.int64) for time in (lane.forward, lane.returning, lane.rest)]
        tail = numpy.full(size, 0 if self.anchor is not None else lane.synchronisation, dtype=numpy.int64)
        yield OneMachineJobs(
            heads=self.forward_end[number] - lane.forward, times=durations[0], tails=self.forward_tail[number, ::-1]
        )
        yield OneMachineJobs(
            heads=self.return_end[number] - lane.returning, times=durations[1], tails=self.return_tail[number, ::-1]
        )
        yield OneMachineJobs(heads=self.return_end[number], times=durations[2], tails=tail)

    def transfers(self, flow: Transfer) -> OneMachineJobs:
        """The transfers of a flow as jobs of its links."""
        target = self.lanes.lanes[flow.receiver]
        ends, tails, time = (
            (self.return_end, self.return_tail, target.returning)
            if flow.is_backward
            else (self.forward_end, self.forward_tail, target.forward)
        )
        return OneMachineJobs(
            heads=ends[flow.sender],
            times=numpy.full(self.count, flow.duration, dtype=numpy.int64),
            tails=tails[flow.receiver, ::-1] + time,
        )

    def flows(self) -> Iterable[Transfer]:
        """All transfers."""
        for group in (*self.lanes.outputs, *self.lanes.returns):
            yield from group


def overfull(lanes: Lanes) -> tuple[int, str, int] | None:
    """A lane, a device of its group and how many bytes too many it needs there for one microbatch; None if none does.

    When the I of the lane runs, its whole stash is there, and lanes on the device that wait for its gradient hold the
    same microbatch.
    """
    partners = _Partners(lanes, anchor=None)
    for number, lane in enumerate(lanes.lanes):
        for device, budget in zip(lane.devices, lane.budgets, strict=True):
            others = (lanes.lanes[other] for other in partners.holders(number, device) if other != number)
            needed = lane.held + sum(other.held for other in others)
            if needed > budget:
                return number, device, needed - budget
    return None


def _in_line(ready: Integers, time: int) -> Integers:
    """End of the k-th of equal jobs that one device runs one after the other."""
    rank = numpy.arange(len(ready), dtype=numpy.int64)
    line: Integers = numpy.maximum.accumulate(ready - rank * time) + (rank + 1) * time
    return line


class _Partners:
    """Lanes on the same device that a lane waits for, or that wait for it, and how much work that is per microbatch.

    Of a group one device is looked at: the anchor, if it belongs to it.
    """

    def __init__(self, lanes: Lanes, *, anchor: str | None) -> None:
        self.on: dict[str, list[int]] = {}
        for number, lane in enumerate(lanes.lanes):
            for device in lane.devices:
                self.on.setdefault(device, []).append(number)
        self.colocated = [self.on[anchor if anchor in lane.devices else lane.devices[0]] for lane in lanes.lanes]
        colocated = self.colocated
        needs = _closure([[flow.sender for flow in flows] for flows in lanes.inputs])
        self.serves = serves = _closure([[flow.sender for flow in flows] for flows in lanes.gradients], backwards=True)
        numbers = range(len(colocated))
        inputs_from = [[m for m in colocated[n] if needs[n] >> m & 1] for n in numbers]
        outputs_to = [[m for m in colocated[n] if needs[m] >> n & 1] for n in numbers]
        self.returns_from = [[m for m in colocated[n] if serves[n] >> m & 1] for n in numbers]
        self.returns_to = [[m for m in colocated[n] if serves[m] >> n & 1] for n in numbers]
        forward = [lane.forward for lane in lanes.lanes]
        returning = [lane.returning for lane in lanes.lanes]
        backward = [lane.returning + lane.rest for lane in lanes.lanes]
        self.forward_work = [forward[n] + sum(forward[m] for m in inputs_from[n]) for n in numbers]
        self.return_work = [
            returning[n] + sum(returning[m] for m in self.returns_from[n])
            + sum(forward[m] for m in {n, *inputs_from[n], *self.returns_from[n]})
            for n in numbers
        ]  # fmt: skip
        self.return_tail_work = [sum(backward[m] for m in self.returns_to[n]) for n in numbers]
        self.forward_tail_work = [
            backward[n] + sum(forward[m] for m in outputs_to[n])
            + sum(backward[m] for m in {*outputs_to[n], *self.returns_to[n]})
            for n in numbers
        ]  # fmt: skip

    def holders(self, number: int, device: str) -> list[int]:
        """Lanes on the device that hold every microbatch until after the I of the lane."""
        return [other for other in self.on[device] if self.serves[other] >> number & 1]


def _closure(sources: list[list[int]], *, backwards: bool = False) -> list[int]:
    """Per lane: the set of lanes it waits for, directly or not, as bits."""
    reached = [0] * len(sources)
    for number in reversed(range(len(sources))) if backwards else range(len(sources)):
        for source in sources[number]:
            reached[number] |= 1 << source | reached[source]
    return reached
