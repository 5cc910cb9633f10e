"""A plan that exists survives every rule of a refutation: its stages, its seats and the times of its actions.

A plan is followed, with its own makespan as the deadline, through the enumeration of cases, their memory, and the
windows and orders of every node of the tree that leads to it. The first rule that contradicts it is named.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy

from planner.actions import Action
from planner.bounds.cases.backward_passes import ONE, SPLIT, settle_passes
from planner.bounds.cases.case_enumeration import CaseEnumeration
from planner.bounds.cases.case_tables import CaseTables, WorkCount
from planner.bounds.cases.open_cases import CaseMaker
from planner.bounds.cases.order_windows import CHANGING, MAX_PASSES, Cases, OrderNodes, begin, narrow, screen
from planner.bounds.cases.tree_codes import ROOM_PARTS, STARTS_EARLY, TreeCodes, are_sound, choose, decide
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.simulation.timeline import Timeline

FORWARD, RETURN, LAST = range(3)


class ContradictedError(AssertionError):
    """A rule denies a plan that exists."""


def follow(problem: Problem, plan: Plan, *, depth: int) -> int:
    """Follow the plan into a tree so many nodes deep at most; the nodes that it passed.

    Raises ContradictedError if a rule leaves it out, TooManyCasesError if the problem has no refutation anyway.
    """
    timeline = simulate(problem, plan)
    tables = CaseTables(problem, CostModel(problem))
    deadline = timeline.makespan_ns - tables.least.optimizer_ns
    order, seats, segments = _find_sequence(tables, plan, deadline=deadline)
    device = _image(tables, seats, plan=plan, order=order)
    maker = CaseMaker(tables, effort=WorkCount(10**9))
    ways = [[_find_order(maker, seats[place], [device[d] for d in _devices(tables, plan, s)])
             for place, s in enumerate(order)]]  # fmt: skip
    cases, rows = maker.make(numpy.array([segments]), numpy.array([seats]), orders=numpy.array(ways))
    _require(len(rows) > 0, "memory")
    rows = screen(cases, rows, deadline=deadline)
    _require(len(rows) > 0, "screen")
    played = PlayedCase(cases)
    played.enter(tables, plan, timeline=timeline, order=order, device=device)
    return _descend(begin(cases, rows, deadline=deadline), cases, played=played, depth=depth)


def _require(condition: bool, where: str) -> None:
    if not condition:
        raise ContradictedError(where)


def _devices(tables: CaseTables, plan: Plan, stage: int) -> list[int]:
    return [tables.devices.index(group[0]) for group in plan.stages[stage].replicas]


def _find_sequence(tables: CaseTables, plan: Plan, *, deadline: int) -> tuple[list[int], list[int], list[int]]:
    """Stages in an order that the enumeration has, with the seats of the least image, and their segments."""
    index = {name: number for number, name in enumerate(tables.names)}
    masks = [sum(1 << index[name] for name in stage.layers) for stage in plan.stages]
    number = {seat: row for row, seat in enumerate(tables.assignments)}
    own = [number[tuple(sorted(_devices(tables, plan, s))), stage.recompute] for s, stage in enumerate(plan.stages)]
    why = ""
    for order in _sequences(tables, masks):
        rows = tables.images[:, [own[s] for s in order]].tolist()
        seats = min(rows)
        segments = [tables.segments.index(masks[s]) for s in order]
        lost = _lost(tables, segments, seats, deadline=deadline)
        if not lost:
            return order, seats, segments
        why = lost
    raise ContradictedError(why or "no order of its stages follows the dependencies")


def _sequences(tables: CaseTables, masks: list[int]) -> Iterator[list[int]]:
    """Orders of the stages that follow the dependencies."""
    known = set(tables.downsets)
    for order in permutations(range(len(masks))):
        if all(sum(masks[s] for s in order[:size]) in known for size in range(len(order))):
            yield list(order)


def _lost(tables: CaseTables, segments: list[int], seats: list[int], *, deadline: int) -> str:
    """The rule of the enumeration that leaves this sequence out; nothing if none does."""
    enumeration = CaseEnumeration(tables, deadline, effort=WorkCount(10**9))
    states = enumeration._root()
    for place in range(len(segments)):
        following = enumeration._expand(states)
        keep = (following.segments[:, place] == segments[place]) & (following.assignments[:, place] == seats[place])
        states = following.take(numpy.flatnonzero(keep))
        if len(states.done) != 1:
            return f"stage {place} of {len(segments)} is there {len(states.done)} times"
    return "" if states.done[0] == enumeration.full else "its stages are not all layers"


def _image(tables: CaseTables, seats: list[int], *, plan: Plan, order: list[int]) -> list[int]:
    """Where a symmetry takes every device, that takes the plan's seats to these."""
    number = {seat: row for row, seat in enumerate(tables.assignments)}
    own = [number[tuple(sorted(_devices(tables, plan, s))), plan.stages[s].recompute] for s in order]
    row = tables.images[:, own].tolist().index(seats)
    alone = [number[(device,), False] for device in range(len(tables.devices))]
    return [tables.assignments[seat][0][0] for seat in tables.images[row, alone].tolist()]


def _find_order(maker: CaseMaker, seat: int, devices: list[int]) -> int:
    found = [n for n in maker.orders_of[seat] if [d for d in maker.orders[n].tolist() if d >= 0] == devices]
    _require(len(found) == 1, "order of replicas")
    return found[0]


def _descend(orders: OrderNodes, cases: Cases, *, played: "PlayedCase", depth: int) -> int:
    """Pass by pass at the root, then node by node."""
    played.require_in(orders, where="begin")
    for number in range(MAX_PASSES):
        old = [getattr(orders, name).copy() for name in CHANGING]
        orders = narrow(orders, cases, settle=settle_passes, passes=1)
        played.require_in(orders, where=f"pass {number}")
        if all((getattr(orders, name) == each).all() for name, each in zip(CHANGING, old, strict=True)):
            break
    for number in range(depth):
        pair = choose(orders) if number % 2 else _any_start(orders, number)
        if pair[0] < 0:
            return number
        _require(bool(are_sound(pair, orders).all()), f"code at node {number}")
        both = decide(orders, pair, nodes=(numpy.zeros(1, dtype=numpy.int64),) * 2, cases=cases)
        orders = both.take(numpy.array([played.child(int(pair[0]), orders)]))
        played.require_in(orders, where=f"child of node {number}")
        orders = narrow(orders, cases, settle=settle_passes)
        played.require_in(orders, where=f"node {number + 1}")
    return depth


def _any_start(orders: OrderNodes, number: int) -> numpy.ndarray:
    """[1] the code of a part of the room of some action that is no part of an open pass."""
    codes = TreeCodes.of(orders)
    every = range(codes.first_start, codes.end)
    turned = [*every[7 * number + 3 :], *every[: 7 * number + 3]]
    sound = are_sound(numpy.array(turned), orders.take(numpy.zeros(len(turned), dtype=numpy.int64)))
    return numpy.array(turned)[sound.argmax() : sound.argmax() + 1] if sound.any() else numpy.array([-1])


class PlayedCase:
    """When the actions of a plan run, numbered as those of its case: the k-th of a kind is microbatch k's."""

    def __init__(self, cases: Cases) -> None:
        shape = cases.tail.shape[1], 3, cases.count
        self.cases = cases
        self.has_gain = cases.fused[0] > 0
        self.start, self.end, self.place = (numpy.full(shape, -1, dtype=numpy.int64) for _ in range(3))
        self.is_one = numpy.zeros((shape[0], shape[2]), dtype=bool)
        self.number = numpy.zeros(shape[:2], dtype=numpy.int64)
        self.split: list[list[int]] = [[] for _ in range(shape[0])]
        """Per lane, microbatches whose W is to come."""

    def enter(self, tables: CaseTables, plan: Plan, *, timeline: Timeline, order: list[int], device: list[int]) -> None:
        """Enter all actions of a plan whose stages are in this order, and whose devices are these of the case."""
        lane, places = dict[tuple[int, int], int](), self.cases.held.shape[2]
        used = [0] * len(device)
        for stage in order:
            for own in _devices(tables, plan, stage):
                lane[stage, own] = device[own] * places + used[own]
                used[own] += 1
        by_name = {layer.name: layer for layer in tables.problem.profile.layers}
        has_rest = [any(by_name[name].is_trainable for name in stage.layers) for stage in plan.stages]
        for name, actions in timeline.actions.items():
            for place, (action, start, end) in enumerate(actions):
                at = lane[action.stage, tables.devices.index(name)]
                self._enter(at, action, has_rest=has_rest[action.stage], times=(start, end, 2 * place))

    def _enter(self, lane: int, action: Action, *, has_rest: bool, times: tuple[int, int, int]) -> None:
        _, end, place = times
        if action.kind == "F":
            self._put(lane, FORWARD, times)
        elif action.kind == "W" and self.has_gain[lane]:
            self._put(lane, LAST, times, microbatch=self.split[lane].pop(0))
        elif action.kind == "W":
            self._put(lane, LAST, times)
        elif action.kind == "I" and has_rest:
            self.split[lane].append(self._put(lane, RETURN, times))
        else:
            microbatch = self._put(lane, RETURN, times)
            self.is_one[lane, microbatch] = True
            rest = 0 if self.has_gain[lane] else int(self.cases.by_replica(self.cases.time)[0, lane, LAST, 0])
            after = end - rest, end, place + 1
            self._put(lane, LAST, after, microbatch=microbatch if self.has_gain[lane] else None)

    def _put(self, lane: int, kind: int, times: tuple[int, int, int], *, microbatch: int | None = None) -> int:
        number = int(self.number[lane, kind]) if microbatch is None else microbatch
        self.number[lane, kind] += 1
        at = lane, kind, number
        self.start[at], self.end[at], self.place[at] = times
        return number

    def child(self, code: int, orders: OrderNodes) -> int:
        """Which child of this node, with this code, the plan is in."""
        devices, actions = self.cases.time.shape[1:]
        known = TreeCodes.of(orders)
        if code >= known.first_start:
            where, what = divmod(code - known.first_start, 2)
            begin, end, time = (values[0].ravel()[where] for values in (orders.start, orders.end, orders.time))
            is_there = self.place.ravel()[where] >= 0  # where there is no stage, its actions may start at any time
            played = self._parts(orders, self.cases.by_replica(orders.time)[0])[0].ravel()[where] if is_there else begin
            part = (end - begin - time) // ROOM_PARTS
            return int(played > begin + part if what == STARTS_EARLY else played < end - time - part)
        passes = code - devices * actions * actions
        if passes >= 0:
            return ONE if self.is_one[passes // self.cases.count, passes % self.cases.count] else SPLIT
        place = self.place.reshape(devices, actions)
        device, first, second = code // (actions * actions), code // actions % actions, code % actions
        return 0 if place[device, first] < place[device, second] else 1

    def require_in(self, orders: OrderNodes, *, where: str) -> None:
        """Raises ContradictedError unless the node is there, and every window and order holds what was played."""
        _require(len(orders.case) == 1, f"{where}: closed")
        time = self.cases.by_replica(orders.time)[0]
        start, end = self._parts(orders, time)
        is_real = self.place >= 0
        _require(bool((~is_real | (end - start >= time)).all()), f"{where}: an action takes longer")
        late = self.cases.by_replica(orders.start)[0] + time > end
        early = self.cases.by_replica(orders.end)[0] - time < start
        _require(not ((late | early) & is_real).any(), f"{where}: a window is too narrow")
        devices, actions = orders.start.shape[1:]
        place = self.place.reshape(devices, actions)
        counts = (place >= 0) & (orders.time[0] > 0)  # what takes no time fits anywhere
        wrong = orders.before[0] & (place[:, :, None] >= place[:, None, :]) & counts[:, :, None] & counts[:, None]
        _require(not wrong.any(), f"{where}: an order is wrong")

    def _parts(self, orders: OrderNodes, time: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Starts and ends, those of open passes as parts of what they are; a settled pass has to be what it is."""
        start, end = self.start.copy(), self.end.copy()
        is_open, is_one = orders.is_open[0], self.is_one & self.has_gain[:, None]
        is_part = is_open | ~self.has_gain[:, None]
        start[:, LAST] = numpy.where(is_part, end[:, LAST] - time[:, LAST], start[:, LAST])
        end[:, RETURN] = numpy.where(is_part, start[:, RETURN] + time[:, RETURN], end[:, RETURN])
        settled = self.has_gain[:, None] & ~is_open
        fused, returning = self.cases.fused[0][:, None], self.cases.returning[0][:, None]
        wanted = numpy.where(is_one, fused, returning)
        _require(bool((~settled | (time[:, RETURN] == wanted)).all()), "a backward pass is settled wrongly")
        return start, end
