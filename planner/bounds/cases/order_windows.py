"""Time windows and orders of the actions of many cases at once: what a deadline leaves, in integers.

A case has its stages on its devices. Every device has `C` places for stage replicas, and every place an F, an I (what
precedes the gradient) and a W (the rest of the backward pass) of `M` microbatches: `Y = 3 C M` actions per device,
numbered (place, kind, microbatch). A place without a stage has actions without duration, which change nothing.
docs/proofs/refutations.md says why each rule is sound. Links are free but for what one device sends over one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy
from numpy.typing import NDArray

from planner.bounds.cases.case_memory_limit import FAR, are_too_idle, most_in_cases
from planner.bounds.minimum_costs import Integers

Bits = NDArray[numpy.bool_]

NEVER = -(1 << 61)
"""Less than any time, also with a time added to it."""

FIRST, RETURN, LAST = range(3)
"""Kinds of actions: F, I and W, as far as they are distinguished here."""

MAX_PASSES = 40
"""Passes over the rules; each leaves valid windows. A node that begins again has as many once more."""

_PART_CELLS, _PART_ROWS = 250_000, 64
"""Products of a part of a table of pairs, for which no threads begin that wait for each other beside a search; its rows
where that would leave fewer than three."""


CHANGING = ("start", "end", "time", "is_open", "before")
"""What is learnt of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """`K` cases of `D` devices with `C` places; place (d, c) is the replica d C + c of `L = D C`."""

    time: Integers
    """[K, D, Y] duration of every action, while it is open whether a backward pass is one piece."""
    returning: Integers
    """[K, L] duration of I where I and W run apart."""
    rest: Integers
    """[K, L] duration of W there."""
    fused: Integers
    """[K, L] duration of B if that is less than both; 0 where it is not, so that nothing is open."""
    forward: Integers
    """[K, L, L] time of a transfer from stage replica to stage replica, of one activation; `NEVER` where nothing
    flows."""
    backward: Integers
    """[K, L, L] the same for gradients."""
    sent: Integers
    """[K, D, L, 2] ticks that an F or I of a stage replica occupies the link to a device; 0 where it has none alone."""
    tail: Integers
    """[K, L] synchronisation after the last action of a stage replica."""
    held: Integers
    """[K, D, C] bytes of a microbatch from F to I."""
    kept: Integers
    """[K, D, C] bytes of a microbatch from I to W."""
    room: Integers
    """[K, D, C] bytes left for them while F runs."""
    count: int
    """M"""

    def by_replica(self, values: Integers) -> Integers:
        """[N, L, 3, M] a view of figures per action, [N, D, Y]."""
        return values.reshape(len(values), self.tail.shape[1], 3, self.count)

    def take(self, rows: Integers) -> "Cases":
        """The cases of these numbers."""
        arrays = {each.name: getattr(self, each.name)[rows] for each in fields(self) if each.name != "count"}
        return Cases(**arrays, count=self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderNodes:
    """What is known of the orders of `N` nodes, each of a case."""

    case: Integers
    """[N] number of its case."""
    node: Integers
    """[N] number of the node itself."""
    start: Integers
    """[N, D, Y] no action starts sooner."""
    end: Integers
    """[N, D, Y] none ends later."""
    time: Integers
    """[N, D, Y] its duration at the least."""
    is_open: Bits
    """[N, L, M] whether a backward pass may be one piece or two."""
    before: Bits
    """[N, D, Y, Y] whether the first action is known to precede the second."""
    most: Integers
    """[N, D, 6] what fits into a device at a time (`held_in_cases`); the same for all nodes of a case."""

    def take(self, rows: Integers) -> "OrderNodes":
        """These rows of every table."""
        return OrderNodes(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def begin(cases: Cases, rows: Integers, *, deadline: int) -> OrderNodes:
    """All orders of these cases that end by `deadline`: microbatches in order, F before I before W, what feeds what."""
    shape = (len(rows), *cases.time.shape[1:])
    places, count = cases.held.shape[2], cases.count
    chain = numpy.zeros((places, 3, count, places, 3, count), dtype=bool)
    rank = numpy.arange(count)
    for place in range(places):
        for kind in range(3):
            for later in range(kind, 3):
                chain[place, kind, :, place, later, :] = rank[:, None] < rank[None, :] + (later > kind)
    size = shape[2]
    tail = numpy.repeat(cases.tail[rows].reshape(*shape[:2], places), 3 * count, axis=2)
    is_open = cases.fused[rows] > 0
    before = numpy.broadcast_to(chain.reshape(size, size), (*shape, size)).copy()
    rests = before.reshape(len(rows), shape[1], places, 3, count, places, 3, count)
    for place in range(places):  # a B may overtake a W: where there is one, W are in no order
        rests[:, :, place, LAST, :, place, LAST] &= ~is_open.reshape(*shape[:2], places)[:, :, place, None, None]
    feeds = [_reach(transfers[rows]) for transfers in (cases.forward, cases.backward)]
    _feed(before, feeds, cases=cases)
    return OrderNodes(
        case=rows,
        node=rows.copy(),
        start=numpy.zeros(shape, dtype=numpy.int64),
        end=deadline - tail,
        time=cases.time[rows].copy(),
        is_open=numpy.repeat(is_open[..., None], count, axis=2),
        before=before,
        most=_count_together(cases.take(rows), feeds),
    )


def _reach(transfers: Integers) -> Bits:
    """[N, L, L] whether something flows from stage replica to stage replica, maybe by way of others."""
    feeds: Bits = transfers >= 0
    for replica in range(feeds.shape[1]):
        feeds |= feeds[:, :, replica, None] & feeds[:, replica, None, :]
    return feeds


def _feed(before: Bits, feeds: Sequence[Bits], *, cases: Cases) -> None:
    """What a microbatch needs on the same device, maybe by way of others, comes first there."""
    num, devices, places = len(before), *cases.held.shape[1:]
    shape = num, devices, places, 3, cases.count, places, 3, cases.count
    pairs, microbatch = before.reshape(shape), numpy.arange(cases.count)
    for kind, reached in zip((FIRST, RETURN), feeds, strict=True):
        for device in range(devices):
            own = slice(device * places, (device + 1) * places)
            inside = reached[:, own, own, None]
            pairs[:, device, :, kind, microbatch, :, kind, microbatch] |= inside.transpose(3, 0, 1, 2)


def _count_together(cases: Cases, feeds: Sequence[Bits]) -> Integers:
    """[N, D, 6] what fits into the devices of these cases at a time."""
    num, devices, places = cases.held.shape
    outer = numpy.full((num, devices), -1, dtype=numpy.int64)
    times = cases.time.reshape(num, devices, places, 3, cases.count)[..., 0]
    if places > 1:
        for device in range(devices):
            first = device * places
            for own, other in ((0, 1), (1, 0)):  # what it feeds with activations feeds it with gradients
                holds = feeds[0][:, first + own, first + other] & feeds[1][:, first + other, first + own]
                outer[holds & times[:, device, own].any(axis=1), device] = own  # what takes no time is not counted
    return most_in_cases(times, (cases.held, cases.kept), room=cases.room, outer=outer, count=cases.count)


def screen(cases: Cases, rows: Integers, *, deadline: int) -> Integers:
    """Those of these cases that the quick rules leave: arcs, microbatches in order, and how much a device can run."""
    own = cases.take(rows)
    start = numpy.zeros(own.time.shape, dtype=numpy.int64)
    tail = numpy.repeat(own.tail.reshape(*own.held.shape), 3 * own.count, axis=2)
    end = deadline - tail
    for _ in range(2):
        _follow(start, own.time, cases=own)
        _follow_back(end, own.time, cases=own)
        _keep_sequence(start, end, cases=own)
    dead = (start + own.time > end).any(axis=(1, 2))
    rows, start, end, time = (values[~dead] for values in (rows, start, end, own.time))
    *_, due, _, done = _sets(start, end, time=time)
    return rows[~(done > due).any(axis=(1, 2, 3))]  # actions between two moments take longer than that


def _keep_sequence(start: Integers, end: Integers, *, cases: Cases) -> None:
    """Actions of a kind run one after the other, microbatch by microbatch."""
    begin, due, time = cases.by_replica(start), cases.by_replica(end), cases.by_replica(cases.time)
    before = numpy.cumsum(time, axis=3) - time
    begin[...] = numpy.maximum.accumulate(begin - before, axis=3) + before
    after = before + time
    due[...] = numpy.minimum.accumulate((due - after)[..., ::-1], axis=3)[..., ::-1] + after


_Settle = Callable[[OrderNodes, Cases], None]
"""Decides what is left of open backward passes."""


def narrow(orders: OrderNodes, cases: Cases, *, settle: _Settle, passes: int = MAX_PASSES) -> OrderNodes:
    """The nodes that the rules leave, with all that they entail; the arrays given may be overwritten.

    The dear rule, edges, waits for passes in which the others tell nothing new, where no backward pass is open. That
    leaves the same: of what is known better no rule tells less, so passes of all rules would have come as far in as
    many. Nodes for which the passes do not suffice begin again with all rules in each.
    """
    waits = numpy.asarray(~orders.is_open.any(axis=(1, 2)))
    given, number = orders.take(numpy.flatnonzero(waits)), numpy.cumsum(waits) - 1
    alive, active = _apply(orders, cases, settle=settle, passes=passes, waits=waits)
    again = active[waits[active]]
    if len(again):
        rest = given.take(number[again])
        alive[again], _ = _apply(rest, cases, settle=settle, passes=passes, waits=numpy.zeros(len(again), bool))
        _write(orders, rest, rows=again)
    return orders.take(numpy.flatnonzero(alive))


def _write(orders: OrderNodes, part: OrderNodes, *, rows: Integers) -> Bits:
    """Take over what was learnt of these nodes; which of them are known better."""
    is_new = numpy.zeros(len(rows), dtype=bool)
    for each in CHANGING:
        old, new = getattr(orders, each), getattr(part, each)
        is_new |= (old[rows] != new).any(axis=tuple(range(1, new.ndim)))
        old[rows] = new
    return is_new


def _apply(orders: OrderNodes, cases: Cases, *, settle: _Settle, passes: int, waits: Bits) -> tuple[Bits, Integers]:
    """So many passes at most; which nodes are left, and those that may not be done. `waits`: where edges do."""
    alive, active = numpy.ones(len(orders.case), dtype=bool), numpy.arange(len(orders.case))
    for _ in range(passes):
        if not len(active):
            break
        part = orders.take(active)
        own = cases.take(part.case)
        is_dead = _pass(part, own)
        is_new = _write(orders, part, rows=active)
        due = numpy.flatnonzero(~is_dead & ~(is_new & waits[active]))
        if len(due):
            part = part.take(due)
            is_dead[due] = _find_edges(part) | _is_crossed(part)
            settle(part, own.take(due))
            is_new[due] |= _write(orders, part, rows=active[due])
        alive[active[is_dead]] = False
        active = active[is_new & ~is_dead]
    return alive, active


def _pass(orders: OrderNodes, cases: Cases) -> Bits:
    """Every rule but edges once; [N] whether a node has no order left."""
    _follow(orders.start, orders.time, cases=cases)
    _follow_back(orders.end, orders.time, cases=cases)
    _queue(orders, cases)
    dead = _is_crossed(orders)
    dead |= _is_left_idle(orders, cases)
    dead |= _order_pairs(orders)
    dead |= _make_room(orders, cases)
    _close(orders.before)
    _wait(orders.start, orders.before, time=orders.time)
    _precede(orders.end, orders.before, time=orders.time)
    both = orders.before & orders.before.swapaxes(2, 3)
    return numpy.asarray(dead | both.any(axis=(1, 2, 3)))


def _is_crossed(orders: OrderNodes) -> Bits:
    """Whether an action has no room between its start and its end."""
    return numpy.asarray((orders.start + orders.time > orders.end).any(axis=(1, 2)))


def _follow(start: Integers, duration: Integers, *, cases: Cases) -> None:
    """Arcs: an action starts once what it waits for has ended and has come over."""
    begin, time = cases.by_replica(start), cases.by_replica(duration)
    forward, backward = cases.forward[..., None], cases.backward[..., None]
    for _ in range(begin.shape[1] + 1):
        old = begin.copy()
        arrival = ((begin[:, :, 0] + time[:, :, 0])[:, :, None] + forward).max(axis=1)
        numpy.maximum(begin[:, :, 0], arrival, out=begin[:, :, 0])
        arrival = ((begin[:, :, 1] + time[:, :, 1])[:, :, None] + backward).max(axis=1)
        numpy.maximum(begin[:, :, 1], arrival, out=begin[:, :, 1])
        for kind in (1, 2):
            ready = begin[:, :, kind - 1] + time[:, :, kind - 1]
            numpy.maximum(begin[:, :, kind], ready, out=begin[:, :, kind])
        if (old == begin).all():
            return


def _follow_back(end: Integers, duration: Integers, *, cases: Cases) -> None:
    """Arcs: an action ends before the latest start of what waits for it."""
    due, time = cases.by_replica(end), cases.by_replica(duration)
    forward, backward = cases.forward[..., None], cases.backward[..., None]
    for _ in range(due.shape[1] + 1):
        old = due.copy()
        for kind in (1, 0):
            numpy.minimum(due[:, :, kind], due[:, :, kind + 1] - time[:, :, kind + 1], out=due[:, :, kind])
        for kind, lag in ((1, backward), (0, forward)):
            latest = ((due[:, :, kind] - time[:, :, kind])[:, None] - lag).min(axis=2)
            numpy.minimum(due[:, :, kind], latest, out=due[:, :, kind])
        if (old == due).all():
            return


def _queue(orders: OrderNodes, cases: Cases) -> None:
    """Queues: a link takes what a device sends in the order of its actions that take time, one by one."""
    num, devices, places = cases.held.shape
    time = cases.by_replica(cases.time)[:, :, :LAST, 0]
    for device in range(devices):
        sent = cases.sent[:, device]
        count = (sent > 0).reshape(num, devices, 2 * places).sum(axis=2).max(axis=1)
        rows = numpy.flatnonzero((count > 1) | (sent > time).any(axis=(1, 2)))
        if len(rows):
            part = orders.take(rows)
            _serve(part, cases.take(rows), target=device)
            for name in ("start", "end", "before"):
                getattr(orders, name)[rows] = getattr(part, name)


def _serve(orders: OrderNodes, cases: Cases, *, target: int) -> None:
    """The links to one device."""
    begin, due, time = (cases.by_replica(values) for values in (orders.start, orders.end, orders.time))
    sent = numpy.zeros_like(time)
    sent[:, :, :LAST] = cases.sent[:, target, :, :, None]
    places = cases.held.shape[2]
    own = slice(target * places, (target + 1) * places)
    latest = numpy.full_like(time, FAR)
    lags = [numpy.where(each > 0, each, NEVER)[:, :, own, None] for each in (cases.forward, cases.backward)]
    for kind, lag in enumerate(lags):
        latest[:, :, kind] = ((due - time)[:, own, kind][:, None] - lag).min(axis=2)
    ready, shape = orders.start + orders.time, orders.start.shape
    busy, last = sent.reshape(shape), numpy.where(sent > 0, latest, FAR).reshape(shape)
    are_both = (busy > 0)[..., :, None] & (busy > 0)[..., None, :] & ~numpy.eye(shape[2], dtype=bool)
    is_late = are_both & ((ready + busy)[..., :, None] > last[..., None, :])
    orders.before[...] |= is_late.swapaxes(2, 3)
    leaves, gone = ready.copy(), last + busy
    _wait(leaves, orders.before, time=busy)
    _precede(gone, orders.before, time=busy)
    numpy.minimum(orders.end, numpy.where(busy > 0, gone - busy, FAR), out=orders.end)
    soonest = cases.by_replica(numpy.where(busy > 0, leaves, ready))
    for kind, lag in enumerate(lags):
        arrival = (soonest[:, :, kind][:, :, None] + lag).max(axis=1)
        numpy.maximum(begin[:, own, kind], arrival, out=begin[:, own, kind])


def due_gradients(orders: OrderNodes, cases: Cases) -> Integers:
    """[N, L, M] when the gradient of a pass has to leave at the latest."""
    due, time = cases.by_replica(orders.end), cases.by_replica(orders.time)
    latest = (due[:, :, 1] - time[:, :, 1])[:, None] - cases.backward[..., None]
    return numpy.asarray(latest.min(axis=2))


def _is_left_idle(orders: OrderNodes, cases: Cases) -> Bits:
    """Held together: [N] whether what fits into a device leaves it idle for too long before an I or after an F."""
    num, devices, places = cases.held.shape
    shape = num, devices, places, 3, cases.count
    is_used = (cases.time.reshape(shape) > 0).any(axis=(3, 4), keepdims=True)
    start = numpy.where(is_used, orders.start.reshape(shape), FAR)
    end = numpy.where(is_used, orders.end.reshape(shape), -FAR)
    replicas = num, devices, places * cases.count
    span = start.min(axis=(2, 3, 4)), end.max(axis=(2, 3, 4))
    starts, ends = start[:, :, :, RETURN].reshape(replicas), end[:, :, :, FIRST].reshape(replicas)
    return are_too_idle(starts, ends, span=span, most=orders.most)


def _order_pairs(orders: OrderNodes) -> Bits:
    """Pairs: where an action cannot precede another one of its device, it follows it."""
    is_late = (orders.start + orders.time)[..., :, None] > (orders.end - orders.time)[..., None, :]
    is_late &= ~numpy.eye(is_late.shape[-1], dtype=bool)
    orders.before[...] |= is_late.swapaxes(2, 3)
    return numpy.asarray((is_late & is_late.swapaxes(2, 3)).any(axis=(1, 2, 3)))


def _close(before: Bits) -> None:
    """What precedes an action precedes what follows it."""
    size = before.shape[2]
    flat = before.reshape(-1, size, size).astype(numpy.float32)
    rows = _PART_CELLS // size**2 if 3 * size**2 <= _PART_CELLS else _PART_ROWS
    for part in (slice(first, first + rows) for first in range(0, size, rows)):
        before.reshape(flat.shape)[:, part] |= flat[:, part] @ flat > 0


def _wait(start: Integers, before: Bits, *, time: Integers) -> None:
    """Sums: an action starts after all that precedes it has run one by one, by release.

    Figures that fit into 32 bits are summed there, which takes a fifth of the time.
    """
    size = start.shape[2]
    begin, work, known = start.reshape(-1, size), time.reshape(-1, size), before.reshape(-1, size, size)
    row, order = numpy.arange(len(begin))[:, None], numpy.argsort(-begin, axis=1, kind="stable")
    is_short = numpy.abs(begin).max() + work.sum(axis=1).max() < 1 << 31
    begin, work = (values[row, order].astype("i4" if is_short else "i8")[..., None] for values in (begin, work))
    precedes = known[row, order]
    ready = (numpy.cumsum(precedes * work, axis=1, dtype=work.dtype) + begin) * precedes
    numpy.maximum(start, ready.max(axis=1).reshape(start.shape), out=start)


def _precede(end: Integers, before: Bits, *, time: Integers) -> None:
    """Sums: an action ends early enough for all that follows it to run one by one, by due time."""
    mirrored = end.max() - end
    _wait(mirrored, before.swapaxes(2, 3), time=time)
    numpy.subtract(end.max(), mirrored, out=end)


def _sets(start: Integers, end: Integers, *, time: Integers) -> tuple[Integers, ...]:
    """Per action (by start, [N, D, Y, 1]) and action ([N, D, 1, Y]), all that start no sooner than the one and end no
    later than the other: actions by start [N, D, Y], their least starts, work and last ends, [N, D, Y, Y] what the sets
    take, and when they have run if they begin with the least start; NEVER where an action ends later than the other.
    """
    order = numpy.argsort(start, axis=2, kind="stable")
    first, last, work = (numpy.take_along_axis(values, order, axis=2)[..., None] for values in (start, end, time))
    due = last.swapaxes(2, 3)
    total = numpy.cumsum(numpy.where(last <= due, work, 0)[:, :, ::-1], axis=2)[:, :, ::-1]
    return order, first, work, due, total, numpy.where(last <= due, first + total, NEVER)


def _after_sets(start: Integers, end: Integers, *, time: Integers) -> tuple[Bits, Integers]:
    """Edges: [N] whether a set of actions does not fit between two moments; [N, D, Y] starts behind sets.

    A set is all actions that start no sooner than one of them and end no later than another. If it does not fit
    together with one more, between the least start and the set's last end, that one comes after the whole set.
    """
    order, first, work, due, total, done = _sets(start, end, time=time)
    dead = numpy.asarray((done > due).any(axis=(1, 2, 3)))
    behind = numpy.maximum.accumulate(done[:, :, ::-1], axis=2)[:, :, ::-1]
    ahead = numpy.maximum.accumulate(done, axis=2)
    soonest = numpy.where(first + total + work > due, behind, NEVER)
    numpy.maximum(soonest, numpy.where(ahead + work > due, behind[:, :, :1], NEVER), out=soonest)
    soonest[done > NEVER] = NEVER
    found = numpy.empty_like(start)
    numpy.put_along_axis(found, order, numpy.maximum(first[..., 0], soonest.max(axis=3)), axis=2)
    return dead, found


def _find_edges(orders: OrderNodes) -> Bits:
    """Sets of actions that come before one action, and in the mirror, behind one."""
    dead, start = _after_sets(orders.start, orders.end, time=orders.time)
    mirrored, end = _after_sets(-orders.end, -orders.start, time=orders.time)
    orders.start[...], orders.end[...] = start, -end
    return dead | mirrored


def _make_room(orders: OrderNodes, cases: Cases) -> Bits:
    """Room: stashes that are known to be held when an F starts fit; what has to end before, to that end, does."""
    num, devices, places = cases.held.shape
    count = cases.count
    before = orders.before.reshape(num, devices, places, 3, count, places, 3, count)
    dead = numpy.zeros(num, dtype=bool)
    for place in range(places):
        forwards = before[..., place, 0, :].sum(axis=4)[:, :, :, 0].copy()  # [N, D, C, M] F known to precede
        forwards[:, :, place] += 1
        later = before[:, :, place, 0].sum(axis=-1)  # [N, D, M, C, 3] known to follow
        returns, rests = (count - later[..., kind].swapaxes(2, 3) for kind in (1, 2))
        least = _least_held(cases, forwards, returns=returns, rests=rests)
        total, room = least.sum(axis=2), cases.room[:, :, place, None]
        dead |= (total > room).any(axis=(1, 2))
        fewer = numpy.arange(count)  # as many I, or W, and no more
        for kind in (RETURN, LAST):
            ended = numpy.minimum(returns[..., None], fewer) if kind == RETURN else returns[..., None]
            rested = numpy.minimum(rests[..., None], fewer) if kind == LAST else rests[..., None]
            more = (total[:, :, None] - least)[..., None] + _least_held(
                cases, forwards[..., None], returns=ended, rests=rested
            )
            is_forced = more > room[:, :, None, :, None]
            if kind == LAST:  # which W comes last is known only where they are in order
                is_forced &= ~(cases.fused > 0).reshape(num, devices, places, 1, 1)
            before[..., kind, :, place, FIRST, :] |= is_forced.swapaxes(3, 4)
    return dead


def _least_held(cases: Cases, forwards: Integers, *, returns: Integers, rests: Integers) -> Integers:
    """[N, D, C, M, ...] bytes that are held after so many F, and at most so many I and W."""
    shape = *cases.held.shape, *[1] * (forwards.ndim - 3)
    held, kept = cases.held.reshape(shape), cases.kept.reshape(shape)
    ended = numpy.minimum(returns, forwards)
    ended = numpy.where(kept > held, numpy.minimum(ended, rests), ended)
    return numpy.asarray(held * (forwards - ended) + kept * (ended - numpy.minimum(rests, ended)))
