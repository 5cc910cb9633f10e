"""The equations of a timeline checked all at once, as arrays: whether they hold, not which of them does not.

These are the equations of `planner.replay`, which names the ones that are broken. Plans that need more of them (groups,
split placement, bucketed synchronisation, devices that cannot send and compute at once) are left to it altogether.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy

from planner.costs import CostModel
from planner.encoding import Integers, Words, holders
from planner.plan import Plan
from planner.timeline import PlayedActions, PlayedTransfers, Timeline

if TYPE_CHECKING:
    from planner.replay import Leg, Seat

MOST_NS = 2**62
"""Times from here on are not checked here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When the actions of a timeline start and end, in the plan's order: [A] nanoseconds each."""

    start: Integers
    end: Integers


def read_times(timeline: Timeline, words: Words) -> Times | None:
    """The times that a timeline claims; None if its devices or its actions are not those of the words."""
    actions = timeline.actions
    if set(actions) != set(words.schedule):
        return None
    if isinstance(actions, PlayedActions) and _is_same(actions.words, words):
        return Times(start=actions.start, end=actions.end)
    starts, ends = list[int](), list[int]()
    for device, word in words.schedule.items():
        if [timed.action for timed in actions[device]] != list(word):
            return None
        starts += [timed.start_ns for timed in actions[device]]
        ends += [timed.end_ns for timed in actions[device]]
    if max(map(abs, starts + ends), default=0) >= MOST_NS:
        return None
    return Times(start=numpy.array(starts, dtype=numpy.int64), end=numpy.array(ends, dtype=numpy.int64))


def _is_same(played: Words, words: Words) -> bool:
    """Whether these are the very same words in the same order."""
    pairs = zip(played.schedule.items(), words.schedule.items(), strict=True)
    return all(a[0] == b[0] and a[1] is b[1] for a, b in pairs)


def all_hold(
    plan: Plan, times: Times, *, timeline: Timeline, costs: CostModel, seats: list["Seat"], legs: list["Leg"],
    words: Words,
) -> bool:  # fmt: skip
    """Whether every equation holds; False also for plans that are not checked here."""
    problem = costs.problem
    is_usual = problem.cluster.overlap and problem.options.synchronisation == "after"
    if not is_usual or any(stage.is_split for stage in plan.stages) or any(len(seat.group) > 1 for seat in seats):
        return False
    at = {(seat.group[0], seat.stage): number for number, seat in enumerate(seats)}
    holder = holders(words, at, num_stages=len(plan.stages))
    if holder is None or max(words.microbatch, default=0) >= problem.num_microbatches:
        return False
    check = _Check(plan, times, costs=costs, seats=seats, legs=legs, words=words, holder=holder)
    return check.durations() and check.transfers(timeline) and check.starts() and check.synchronisations(timeline)


class _Check:
    """The equations in groups; each relies on those before it."""

    def __init__(
        self, plan: Plan, times: Times, *, costs: CostModel, seats: list["Seat"], legs: list["Leg"], words: Words,
        holder: Integers,
    ) -> None:  # fmt: skip
        self.plan, self.times, self.costs, self.seats, self.legs = plan, times, costs, seats, legs
        self.words, self.holder = words, holder
        self.count = costs.problem.num_microbatches
        shape = len(seats), self.count
        self.forward_end, self.backward_end = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int64)
        self.inputs_at, self.gradients_at = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int64)
        for place, table in ((0, self.forward_end), (1, self.backward_end)):
            chosen = words.place == place
            table[holder[chosen], words.microbatch[chosen]] = times.end[chosen]

    def durations(self) -> bool:
        """Every action takes the time that its stage costs."""
        costs = [[seat.cost.duration_ns(kind) for kind in "FIWB"] for seat in self.seats]
        if max(map(max, costs), default=0) >= MOST_NS:
            return False
        expected = numpy.array(costs, dtype=numpy.int64)[self.holder, self.words.kind]
        return bool((self.times.end - self.times.start == expected).all())

    def transfers(self, timeline: Timeline) -> bool:
        """Every leg makes one transfer per microbatch, ready when its action ends, and the links serve them in turn."""
        remote = [leg for leg in self.legs if not leg.is_local]
        claimed = _claims(timeline, remote, seats=self.seats, count=self.count)
        if claimed is None:
            return False
        ready, start, end = claimed
        for row, leg in enumerate(remote):
            source = (self.backward_end if leg.is_backward else self.forward_end)[leg.sender]
            if (ready[row] != source).any() or (end[row] - start[row] != leg.duration_ns).any():
                return False
            self._deliver(leg, end[row])
        for leg in self.legs:
            if leg.is_local:
                self._deliver(leg, (self.backward_end if leg.is_backward else self.forward_end)[leg.sender])
        return bool((start == _turns(remote, ready, end=end, seats=self.seats)).all())

    def _deliver(self, leg: "Leg", end: Integers) -> None:
        arrivals = (self.gradients_at if leg.is_backward else self.inputs_at)[leg.receiver]
        numpy.maximum(arrivals, end, out=arrivals)

    def starts(self) -> bool:
        """Every action starts as soon as its inputs are there and its device is free."""
        where = self.holder, self.words.microbatch
        free = numpy.concatenate([[0], self.times.end[:-1]])[: len(self.times.end)]
        free[self.words.first[:-1][self.words.first[:-1] < len(free)]] = 0
        needed = numpy.stack(
            [self.inputs_at, numpy.maximum(self.forward_end, self.gradients_at), self.backward_end]
        )[self.words.place, *where]  # fmt: skip
        return bool((self.times.start == numpy.maximum(free, needed)).all())

    def synchronisations(self, timeline: Timeline) -> bool:
        """Every replicated stage synchronises once, as soon as its last action has ended."""
        stage_end = numpy.zeros(len(self.plan.stages), dtype=numpy.int64)
        numpy.maximum.at(stage_end, self.words.stage, self.times.end)
        durations = {number: self.costs.synchronisation_ns(stage) for number, stage in enumerate(self.plan.stages)}
        expected = {
            (number, int(stage_end[number]), int(stage_end[number]) + duration)
            for number, duration in durations.items()
            if duration
        }
        claimed = [tuple(timed) for timed in timeline.synchronisations]
        return len(claimed) == len(expected) and set(claimed) == expected


_Ends = tuple[str, str, int, int, str]


def _ends_of(leg: "Leg", seats: list["Seat"]) -> _Ends:
    sender, receiver = seats[leg.sender], seats[leg.receiver]
    direction = "backward" if leg.is_backward else "forward"
    return sender.group[0], receiver.group[0], sender.stage, receiver.stage, direction


def _claims(
    timeline: Timeline, legs: list["Leg"], *, seats: list["Seat"], count: int
) -> tuple[Integers, Integers, Integers] | None:
    """[legs, M] readiness, start and end of the transfers that a timeline claims.

    None if they are not one per leg and microbatch, each with the leg's bytes and links.
    """
    row = {_ends_of(leg, seats): number for number, leg in enumerate(legs)}
    sent = timeline.transfers
    if isinstance(sent, PlayedTransfers):
        rows = [row.get((f.sender, f.receiver, f.from_stage, f.to_stage, f.direction), -1) for f in sent.flows]
        if sorted(rows) != list(range(len(legs))) or sent.ready.shape != (len(legs), count):
            return None
        if any(
            (f.num_bytes, f.links) != (legs[n].num_bytes, legs[n].links) for f, n in zip(sent.flows, rows, strict=True)
        ):
            return None
        order = numpy.argsort(numpy.array(rows, dtype=numpy.int64))
        durations = numpy.array([f.duration_ns for f in sent.flows], dtype=numpy.int64)[order]
        ready, start = sent.ready[order], sent.start[order]
        return ready, start, start + durations.reshape(-1, 1)
    return _listed_claims(timeline, legs, row=row, count=count)


def _listed_claims(
    timeline: Timeline, legs: list["Leg"], *, row: dict[_Ends, int], count: int
) -> tuple[Integers, Integers, Integers] | None:
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for source, target, a, b, microbatch, direction, size, links, *times in timeline.transfers:
        number = row.get((source, target, a, b, direction), -1)
        key = number, microbatch
        if number < 0 or key in found or not 0 <= microbatch < count or max(times) >= MOST_NS:
            return None
        if (size, links) != (legs[number].num_bytes, legs[number].links):
            return None
        found[key] = times[0], times[1], times[2]
    if len(found) < len(legs) * count:
        return None
    table = numpy.array([found[n, m] for n in range(len(legs)) for m in range(count)], dtype=numpy.int64)
    columns = table.reshape(len(legs), count, 3)
    return columns[:, :, 0], columns[:, :, 1], columns[:, :, 2]


def _turns(legs: Sequence["Leg"], ready: Integers, *, end: Integers, seats: list["Seat"]) -> Integers:
    """[legs, M] when each transfer can start: once it is ready and those before it on its links have ended.

    The order on every link is that of readiness, stage, microbatch, direction, replica and rank.
    """
    count = ready.shape[1] if len(legs) else 0
    expected: Integers = ready.copy()
    users: dict[int, list[int]] = {}
    for row, leg in enumerate(legs):
        for link in leg.links if leg.duration_ns else ():
            users.setdefault(link, []).append(row)
    seat_of = [(leg.is_backward, seats[leg.sender].replica, leg.rank, leg.sender) for leg in legs]
    place = numpy.empty(len(legs), dtype=numpy.int64)
    place[sorted(range(len(legs)), key=lambda row: seat_of[row])] = numpy.arange(len(legs))
    stage = numpy.array([seats[leg.sender].stage for leg in legs], dtype=numpy.int64)
    turn = (stage[:, None] * count + numpy.arange(count)) * max(len(legs), 1) + place[:, None]
    rank = numpy.empty(ready.size, dtype=numpy.int64)
    rank[numpy.lexsort((turn.ravel(), ready.ravel()))] = numpy.arange(ready.size)
    ranks = rank.reshape(ready.shape)
    for rows in {tuple(rows) for rows in users.values()}:
        some = numpy.array(rows, dtype=numpy.int64)
        order = numpy.argsort(ranks[some].ravel())
        index = (some[:, None] * count + numpy.arange(count)).ravel()[order]
        before = end.ravel()[index[:-1]]
        target = expected.reshape(-1)
        target[index[1:]] = numpy.maximum(target[index[1:]], before)
    return expected
