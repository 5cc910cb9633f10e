"""The schedule bound: stages and devices are given, any order of actions is allowed.

Microbatches are distinguished by their rank in time only: what is said of the k-th F of a stage replica holds for
whichever microbatch that is. If every F waits for something of its own microbatch, the k-th F waits for the k-th such
thing (order statistics), so all bounds hold for every order, in sequence or not.

Two replicas of a device: let k hold every microbatch that j holds, and let at most n' of k's fit beside one of j's.
Then F number m + n' of k starts after I number m of j has ended. Proof: if m of I of k have ended, so have m in j. If
only e < m have, n' + m - e > n' of k's microbatches are held, so none of j's may be. Every F of j so far then has its I
behind it; let there be c < m. Some F of j is still to come, and until it starts no further I of j ends. At most c of I
of k have ended by then. So at least n' + m - c > n' of k's are held beside it, which is too many.
"""

from collections.abc import Iterable

import numpy

from planner.bounds.minimum_costs import Integers
from planner.bounds.order.joint_memory_limit import HeldTogether, make_held_together
from planner.bounds.order.memory_rounds import MAX_TABLE, NEVER, MemoryRounds, RoundCosts
from planner.bounds.order.one_machine_bound import OneMachineJobs, join, one_machine
from planner.bounds.order.stage_replicas import StageReplica, StageReplicas, make_replicas
from planner.layout.costs import CostModel
from planner.layout.stage_replicas import Transfer, lay_out_stages
from planner.plan import Stage
from planner.problem import Problem

MIN_PASSES, PASS_EFFORT = 24, 200_000_000
"""Passes over all stage replicas, as many at least; and table entries for which there may be more. Each leaves valid
bounds; a late one rarely changes any, but where one microbatch fits, every pass lets one more wait for the one before
it."""

_MAX_SPAN_DEVICES = 16
"""Devices whose span is bounded one by one, those with the most work first."""


def schedule_bound(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> int:
    """No order of actions makes the objective smaller with these stages on these devices.

    Nor does any choice of the microbatches that recompute, where that is open: I and B take no more than they do
    where everything is kept, and F leaves no more than a checkpoint. Proof. `HeadsAndTails` holds a head and a tail
    for the k-th F, I and W of every stage replica; each device, and each link, then runs jobs with heads and tails,
    one at a time (`one_machine`). And a device idles before an I, or after an F, where its stage replicas together
    have not the memory for as much work as would fill that time (`HeldTogether`). For the span of a device, heads
    count from its first action and tails to its last: what happens on other devices has no absolute time.
    """
    if any(stage.is_split for stage in stages):
        return _largest_load(problem, stages, costs=costs)
    replicas = make_replicas(problem, stages, costs=costs)
    devices = list(dict.fromkeys(device for replica in replicas.replicas for device in replica.devices))
    if problem.options.ranked_by == "span":
        devices.sort(key=lambda device: -_work_on(replicas, device))
        found = [
            _on_device(HeadsAndTails(problem, replicas, anchor=device), device)
            for device in devices[:_MAX_SPAN_DEVICES]
        ]
        return max([*found, *(problem.num_microbatches * _work_on(replicas, device) for device in devices)])
    return bound_of_times(HeadsAndTails(problem, replicas, anchor=None)) + replicas.optimizer_ns


def bound_of_times(times: "HeadsAndTails") -> int:
    """The largest bound of a device or a link."""
    return max([_on_device(times, device) for device in times.partners.on] + _on_links(times))


def _largest_load(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> int:
    """The work of the busiest device: all that is said here where I or W of a stage are on other devices than its F."""
    laid_out, loads = lay_out_stages(stages, costs=costs), dict[str, int]()
    for each in laid_out.replicas:
        stage, kinds = stages[each.stage], each.kinds.replace("IWB", "")
        cost = each.cost if stage.is_split else costs.least_cost(stage, each.replica)
        backward = cost.least_backward_ns if kinds != each.kinds else 0
        for device in each.group if each.kinds else ():
            loads[device] = loads.get(device, 0) + sum(map(cost.duration_ns, kinds)) + backward
    tail = laid_out.tail_ns if problem.options.objective == "makespan" else 0
    return problem.num_microbatches * max(loads.values()) + tail


def _work_on(replicas: StageReplicas, device: str) -> int:
    """Nanoseconds of work per microbatch."""
    return sum(
        replicas.replicas[n].forward + replicas.replicas[n].returning + replicas.replicas[n].rest
        for n in replicas.on(device)
    )


def _on_device(times: "HeadsAndTails", device: str) -> int:
    """The bound of a device: one machine, where without overlap its transfers occupy it too; and what fits into it."""
    parts = [jobs for number in times.partners.on[device] for jobs in times.actions(number)]
    if not times.problem.cluster.overlap:
        parts += [times.transfers(transfer) for transfer in times.replicas.sent_or_received.get(device, ())]
    return max(one_machine(join(parts)), _in_memory(times, device))


def _in_memory(times: "HeadsAndTails", device: str) -> int:
    """The bound of what fits into a device at a time."""
    numbers = times.partners.on[device]
    replicas = [times.replicas.replicas[number] for number in numbers]
    return times.memory[device].lower_bound(
        starts=numpy.sort(
            numpy.concatenate(
                [times.return_end[n] - replica.returning for n, replica in zip(numbers, replicas, strict=True)]
            )
        ),
        tails=numpy.sort(times.forward_tail[numbers], axis=None),
        first=min(int(times.forward_end[n, 0]) - replica.forward for n, replica in zip(numbers, replicas, strict=True)),
        last=0 if times.anchor is not None else min(replica.synchronisation for replica in replicas),
    )


def _on_links(times: "HeadsAndTails") -> list[int]:
    """The one-machine bound of every link."""
    parts: dict[int, list[OneMachineJobs]] = {}
    for transfer in times.all_transfers():
        for link in transfer.links:
            parts.setdefault(link, []).append(times.transfers(transfer))
    return [one_machine(join(jobs)) for jobs in parts.values()]


class HeadsAndTails:
    """Heads and tails: when the k-th F and I of every stage replica can end at the earliest, and what must follow at
    the least.

    `anchor`: None for the makespan; otherwise the device from whose first start to whose last end time is counted.
    """

    def __init__(self, problem: Problem, replicas: StageReplicas, *, anchor: str | None) -> None:
        self.problem, self.replicas, self.anchor = problem, replicas, anchor
        self.count = problem.num_microbatches
        self.rank: Integers = numpy.arange(self.count, dtype=numpy.int64)
        shape = (len(replicas.replicas), self.count)
        self.forward_end: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.return_end: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.forward_tail: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.return_tail: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.rest_end: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.rest_tail: Integers = numpy.full(shape, NEVER, dtype=numpy.int64)
        self.partners = _Partners(replicas, anchor=anchor)
        self.in_flight = [self._in_flight(number) for number in range(len(replicas.replicas))]
        self.unfinished = [self._unfinished(replica) for replica in replicas.replicas]
        self.within = [self._within(number) for number in range(len(replicas.replicas))]
        """Per stage replica: stage replicas on its device whose microbatches it holds, too, and how many it may hold
        beside one there."""
        self.around = [
            [(k, most) for k, pairs in enumerate(self.within) for j, most in pairs if j == number]
            for number in range(len(replicas.replicas))
        ]
        """The same the other way round."""
        self.known_rounds: dict[RoundCosts, MemoryRounds] = {}
        self.rounds = [
            self._rounds(number, returning=replica.returning) for number, replica in enumerate(replicas.replicas)
        ]
        self.forced = [self._forced(number) for number in range(len(replicas.replicas))]
        self.memory = {device: self._memory(device) for device in self.partners.on}
        """Per device, the joint memory limit of its stage replicas."""
        self._settle()

    @classmethod
    def of(cls, problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> "HeadsAndTails":
        """The heads and tails of stages that are given, for the makespan."""
        return cls(problem, make_replicas(problem, stages, costs=costs), anchor=None)

    def _settle(self) -> None:
        """Pass over all stage replicas until nothing changes."""
        entries = len(self.replicas.replicas) * self.count * min(self.count, MAX_TABLE)
        for _ in range(max(MIN_PASSES, min(2 * self.count, PASS_EFFORT // entries))):
            before = self._state()
            self._pass()
            if self._state() == before:
                return

    def _state(self) -> tuple[int, ...]:
        """Sums that change whenever a head or a tail is raised."""
        tables = (
            self.forward_end, self.return_end, self.rest_end, self.forward_tail, self.return_tail, self.rest_tail,
        )  # fmt: skip
        return tuple(int(table.sum()) for table in tables)

    def _pass(self) -> None:
        """Raise every head and tail once."""
        numbers = range(len(self.replicas.replicas))
        for number in numbers:
            self._raise_forward(number)
            self._raise_rest_tail(number)
            self._raise_return_tail(number)
        for number in reversed(numbers):
            self._raise_return(number)
            self._raise_rest(number)
            self._raise_forward_tail(number)

    def _is_anchored(self, number: int) -> bool:
        return self.anchor is None or self.anchor in self.replicas.replicas[number].devices

    def _in_flight(self, number: int) -> int:
        """F of the stage replica that may have started without their I having ended.

        A stage replica further up on the same device holds every microbatch at least as long, so their bytes add up.
        """
        replica, most = self.replicas.replicas[number], self.count
        for device, budget in zip(replica.devices, replica.budgets, strict=True):
            held = replica.held + sum(
                self.replicas.replicas[other].held for other in self.partners.holders(number, device)
            )
            most = min(most, budget // held if held else most)
        return max(1, most)

    def _unfinished(self, replica: StageReplica) -> int:
        """F of the stage replica that may have started without their W having ended.

        Each of them holds what is there from F to I, or what is kept from I to W.
        """
        least = min(replica.held, replica.kept) if replica.rest else 0
        return max(1, min(self.count, min(replica.budgets) // least)) if least else self.count

    def _within(self, number: int) -> list[tuple[int, int]]:
        """Stage replicas on its device that hold only what this one holds, with the most F begun and not returned
        beside one.

        If one F more is begun, none is held there, and until an I of this stage replica ends none can be: so I of as
        many have ended there. The (k + most)-th F of this stage replica starts after the k-th I of that one.
        """
        replica, found = self.replicas.replicas[number], list[tuple[int, int]]()
        for device, budget in zip(replica.devices, replica.budgets, strict=True):
            for other in self.partners.on[device]:
                inner = self.replicas.replicas[other]
                if replica.held and number in self.partners.holders(other, device):
                    room = max(budget, inner.budgets[inner.devices.index(device)]) - inner.held
                    found.append((other, max(1, room // replica.held)))
        return [(other, most) for other, most in found if most < self.count]

    def _memory(self, device: str) -> HeldTogether:
        """What the stage replicas of a device have room for together; the least workspace of theirs is there."""
        numbers = self.partners.on[device]
        replicas = [self.replicas.replicas[number] for number in numbers]
        outer = None
        if len(numbers) == 2:
            holding = [n for n, m in (numbers, reversed(numbers)) if n in self.partners.holders(m, device)]
            outer = numbers.index(holding[0]) if holding else None
        budget = max(replica.budgets[replica.devices.index(device)] for replica in replicas)
        return make_held_together(replicas, budget=budget, count=self.count, outer=outer)

    def _rounds(self, number: int, *, returning: int) -> MemoryRounds:
        """How the actions of a stage replica take turns, if every I comes with so much work."""
        replica = self.replicas.replicas[number]
        costs = RoundCosts(
            count=self.count, forward=replica.forward, returning=returning, rest=replica.rest,
            in_flight=self.in_flight[number], held=replica.held, kept=replica.kept, budget=min(replica.budgets),
        )  # fmt: skip
        if costs not in self.known_rounds:
            self.known_rounds[costs] = MemoryRounds(costs)
        return self.known_rounds[costs]

    def _forced(self, number: int) -> Integers:
        """Per k: the least work of backward passes that must precede the k-th F on its device."""
        partners = [self.replicas.replicas[other] for other in self.partners.returns_from[number]]
        returning = self.replicas.replicas[number].returning + sum(replica.returning for replica in partners)
        return self._rounds(number, returning=returning).forced

    def _base(self, number: int) -> int:
        """No action on the stage replica's device starts earlier: the first one is an F."""
        if self.anchor in self.replicas.replicas[number].devices:
            return 0
        return min(
            int(self.forward_end[n, 0]) - self.replicas.replicas[n].forward for n in self.partners.colocated[number]
        )

    def _raise_forward(self, number: int) -> None:
        """The k-th F ends no sooner than its inputs, its place in the stage replica, memory and device allow."""
        replica, most = self.replicas.replicas[number], self.in_flight[number]
        ready = numpy.full(self.count, 0 if self._is_anchored(number) else NEVER, dtype=numpy.int64)
        for transfer in self.replicas.inputs[number]:
            ready = numpy.maximum(ready, self.forward_end[transfer.sender] + transfer.ticks)
        ready[most:] = numpy.maximum(ready[most:], self.return_end[number, : self.count - most])
        most = self.unfinished[number]
        ready[most:] = numpy.maximum(ready[most:], self.rest_end[number, : self.count - most])
        for inner, beside in self.within[number]:
            ready[beside:] = numpy.maximum(ready[beside:], self.return_end[inner, : self.count - beside])
        rounds = self.rounds[number]
        returns = self.return_end[number] - replica.returning
        end = _in_line(ready, replica.forward)
        end = numpy.maximum(end, rounds.after(ready, rounds.to_forward))
        end = numpy.maximum(end, rounds.after(returns, rounds.return_to_forward))
        device = self._base(number) + (self.rank + 1) * self.partners.forward_work[number] + self.forced[number]
        self.forward_end[number] = numpy.maximum(self.forward_end[number], numpy.maximum(end, device))

    def _raise_return(self, number: int) -> None:
        """The k-th I ends no sooner than its gradients, its F, its place in the stage replica and its device allow."""
        replica = self.replicas.replicas[number]
        forward_ready = self.forward_end[number] - replica.forward
        ready = self.forward_end[number]
        for transfer in self.replicas.gradients[number]:
            ready = numpy.maximum(ready, self.return_end[transfer.sender] + transfer.ticks)
        rounds = self.rounds[number]
        end = _in_line(ready, replica.returning)
        end = numpy.maximum(end, rounds.after(forward_ready, rounds.to_return))
        end = numpy.maximum(end, rounds.after(numpy.maximum(ready, end - replica.returning), rounds.return_to_return))
        device = self._base(number) + (self.rank + 1) * self.partners.return_work[number]
        self.return_end[number] = numpy.maximum(self.return_end[number], numpy.maximum(end, device))

    def _raise_return_tail(self, number: int) -> None:
        """What follows the I after which k more come: theirs, the W, upstream I; memory lets F wait for it."""
        replica, most = self.replicas.replicas[number], self.in_flight[number]
        need = numpy.full(self.count, NEVER, dtype=numpy.int64)
        if self._is_anchored(number):
            left = numpy.maximum(self.rank + 1 - most, 0) * replica.forward + self.rank * replica.returning
            own = left + (self.rank + 1) * replica.rest
            shared = own + (self.rank + 1) * self.partners.return_tail_work[number] + self._last(number)
            need = numpy.maximum(shared, own + (0 if self.anchor is not None else replica.synchronisation))
        for transfer in self.replicas.returns[number]:
            target = self.replicas.replicas[transfer.receiver]
            need = numpy.maximum(need, transfer.ticks + target.returning + self.return_tail[transfer.receiver])
        need[most:] = numpy.maximum(need[most:], replica.forward + self.forward_tail[number, : self.count - most])
        need = numpy.maximum(need, replica.rest + self.rest_tail[number])
        for outer, beside in self.around[number]:
            after = self.replicas.replicas[outer].forward + self.forward_tail[outer, : self.count - beside]
            need[beside:] = numpy.maximum(need[beside:], after)
        tail = numpy.maximum.accumulate(need - self.rank * replica.returning) + self.rank * replica.returning
        self.return_tail[number] = numpy.maximum(self.return_tail[number], tail)

    def _raise_rest(self, number: int) -> None:
        """The k-th W ends no sooner than its I and its place in the stage replica allow."""
        end = _in_line(self.return_end[number], self.replicas.replicas[number].rest)
        self.rest_end[number] = numpy.maximum(self.rest_end[number], end)

    def _raise_rest_tail(self, number: int) -> None:
        """What follows the W after which k more come: those, and an F for which it makes room."""
        replica, most = self.replicas.replicas[number], self.unfinished[number]
        need = numpy.full(self.count, NEVER, dtype=numpy.int64)
        if self._is_anchored(number):
            need = self.rank * replica.rest + (0 if self.anchor is not None else replica.synchronisation)
        need[most:] = numpy.maximum(need[most:], replica.forward + self.forward_tail[number, : self.count - most])
        tail = numpy.maximum.accumulate(need - self.rank * replica.rest) + self.rank * replica.rest
        self.rest_tail[number] = numpy.maximum(self.rest_tail[number], tail)

    def _raise_forward_tail(self, number: int) -> None:
        """What follows the F after which k more come: its own I and W, and everything downstream."""
        replica = self.replicas.replicas[number]
        need = replica.returning + self.return_tail[number]
        if self._is_anchored(number):
            left = self.rank * replica.forward + (self.rank + 1) * self.partners.forward_tail_work[number]
            need = numpy.maximum(need, left + self._last(number))
            if self.anchor is None:
                own = self.rank * replica.forward + (self.rank + 1) * (replica.returning + replica.rest)
                need = numpy.maximum(need, own + replica.synchronisation)
        for transfer in self.replicas.outputs[number]:
            target = self.replicas.replicas[transfer.receiver]
            need = numpy.maximum(need, transfer.ticks + target.forward + self.forward_tail[transfer.receiver])
        tail = numpy.maximum.accumulate(need - self.rank * replica.forward) + self.rank * replica.forward
        self.forward_tail[number] = numpy.maximum(self.forward_tail[number], tail)

    def _last(self, number: int) -> int:
        """What follows the last action of the stage replica's device, whichever stage replica it is of."""
        if self.anchor is not None:
            return 0
        return min(self.replicas.replicas[n].synchronisation for n in self.partners.colocated[number])

    def actions(self, number: int) -> Iterable[OneMachineJobs]:
        """The F, I and rests of a stage replica as jobs of its device."""
        replica, size = self.replicas.replicas[number], self.count
        durations = [
            numpy.full(size, time, dtype=numpy.int64) for time in (replica.forward, replica.returning, replica.rest)
        ]
        yield OneMachineJobs(
            heads=self.forward_end[number] - replica.forward, times=durations[0], tails=self.forward_tail[number, ::-1]
        )
        yield OneMachineJobs(
            heads=self.return_end[number] - replica.returning, times=durations[1], tails=self.return_tail[number, ::-1]
        )
        yield OneMachineJobs(
            heads=self.rest_end[number] - replica.rest, times=durations[2], tails=self.rest_tail[number, ::-1]
        )

    def transfers(self, transfer: Transfer) -> OneMachineJobs:
        """A transfer of every microbatch as jobs of its links."""
        target = self.replicas.replicas[transfer.receiver]
        ends, tails, time = (
            (self.return_end, self.return_tail, target.returning)
            if transfer.is_backward
            else (self.forward_end, self.forward_tail, target.forward)
        )
        return OneMachineJobs(
            heads=ends[transfer.sender],
            times=numpy.full(self.count, transfer.ticks, dtype=numpy.int64),
            tails=tails[transfer.receiver, ::-1] + time,
        )

    def all_transfers(self) -> Iterable[Transfer]:
        """Those of activations and of gradients, each once."""
        for group in (*self.replicas.outputs, *self.replicas.returns):
            yield from group


def overfull(replicas: StageReplicas) -> tuple[int, str, int] | None:
    """A stage replica, a device of its group and how many bytes too many it needs there for one microbatch; None if
    none does.

    When the I of the stage replica runs, its whole stash is there, and stage replicas on the device that wait for its
    gradient hold the same microbatch.
    """
    partners = _Partners(replicas, anchor=None)
    for number, replica in enumerate(replicas.replicas):
        for device, budget in zip(replica.devices, replica.budgets, strict=True):
            others = (replicas.replicas[other] for other in partners.holders(number, device) if other != number)
            needed = replica.held + sum(other.held for other in others)
            if needed > budget:
                return number, device, needed - budget
    return None


def _in_line(ready: Integers, time: int) -> Integers:
    """End of the k-th of equal jobs that one device runs one after the other."""
    rank = numpy.arange(len(ready), dtype=numpy.int64)
    return numpy.maximum.accumulate(ready - rank * time) + (rank + 1) * time


class _Partners:
    """Stage replicas on the same device that a stage replica waits for, or that wait for it, and how much work that is
    per microbatch.

    Of a group one device is looked at: the anchor, if it belongs to it.
    """

    def __init__(self, replicas: StageReplicas, *, anchor: str | None) -> None:
        self.on: dict[str, list[int]] = {}
        for number, replica in enumerate(replicas.replicas):
            for device in replica.devices:
                self.on.setdefault(device, []).append(number)
        self.colocated = [
            self.on[anchor if anchor in replica.devices else replica.devices[0]] for replica in replicas.replicas
        ]
        colocated = self.colocated
        needs = _closure([[transfer.sender for transfer in all_transfers] for all_transfers in replicas.inputs])
        self.serves = serves = _closure(
            [[transfer.sender for transfer in all_transfers] for all_transfers in replicas.gradients], backwards=True
        )
        numbers = range(len(colocated))
        inputs_from = [[m for m in colocated[n] if needs[n] >> m & 1] for n in numbers]
        outputs_to = [[m for m in colocated[n] if needs[m] >> n & 1] for n in numbers]
        self.returns_from = [[m for m in colocated[n] if serves[n] >> m & 1] for n in numbers]
        self.returns_to = [[m for m in colocated[n] if serves[m] >> n & 1] for n in numbers]
        forward = [replica.forward for replica in replicas.replicas]
        returning = [replica.returning for replica in replicas.replicas]
        backward = [replica.returning + replica.rest for replica in replicas.replicas]
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
        """Stage replicas on the device that hold every microbatch until after the I of the stage replica."""
        return [other for other in self.on[device] if self.serves[other] >> number & 1]


def _closure(sources: list[list[int]], *, backwards: bool = False) -> list[int]:
    """Per stage replica: the set of stage replicas it waits for, directly or not, as bits."""
    reached = [0] * len(sources)
    for number in reversed(range(len(sources))) if backwards else range(len(sources)):
        for source in sources[number]:
            reached[number] |= 1 << source | reached[source]
    return reached
