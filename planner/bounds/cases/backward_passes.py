"""Backward passes that are shorter in one piece: B, or I and W, where B is less than both.

While it is open what a pass is, its first action takes i = min(I, B) and its second the rest of B, which both ways are
at least. It is split where one piece would not fit, or where something comes between; it is one piece where I and W do
not fit; otherwise both are tried (docs/proofs/refutations.md, `refutation`).
"""

import numpy

from planner.bounds.cases.order_windows import LAST, RETURN, Bits, Cases, OrderNodes, due_gradients
from planner.bounds.minimum_costs import Integers

ONE, SPLIT = 0, 1
"""What a pass turns out to be."""


def settle_passes(orders: OrderNodes, cases: Cases) -> None:
    """Open passes that can be one thing only are that."""
    rows = numpy.nonzero(orders.is_open)
    if not len(rows[0]):
        return
    cannot = ~_may_be_one(orders, cases), ~_may_be_split(orders, cases)
    for what, other in ((SPLIT, cannot[0]), (ONE, cannot[1] & ~cannot[0])):
        settle(orders, cases, rows=numpy.nonzero(orders.is_open & other), what=what)


def _may_be_one(orders: OrderNodes, cases: Cases) -> Bits:
    """[N, L, M] whether a B fits, and nothing is known to come between its parts."""
    start, end, time = (cases.by_replica(values) for values in (orders.start, orders.end, orders.time))
    first = numpy.maximum(start[:, :, RETURN], start[:, :, LAST] - time[:, :, RETURN])
    last = numpy.minimum(end[:, :, LAST], due_gradients(orders, cases))
    fits = first + cases.fused[..., None] <= last
    num, devices, actions = orders.start.shape
    places, count = cases.held.shape[2], cases.count
    shape = num, devices, places, 3, count, actions
    after = orders.before.reshape(shape)[:, :, :, RETURN]
    ahead = orders.before.swapaxes(2, 3).reshape(shape)[:, :, :, LAST]
    between = (after & ahead & (orders.time > 0)[:, :, None, None]).any(axis=4)
    return numpy.asarray(fits & ~between.reshape(num, -1, count))


def _may_be_split(orders: OrderNodes, cases: Cases) -> Bits:
    """[N, L, M] whether an I and a W fit."""
    start, end, time = (cases.by_replica(values) for values in (orders.start, orders.end, orders.time))
    returning, rest = cases.returning[..., None], cases.rest[..., None]
    due = numpy.minimum(end[:, :, RETURN] + returning - time[:, :, RETURN], due_gradients(orders, cases))
    fits = start[:, :, RETURN] + returning <= due
    soonest = numpy.maximum(start[:, :, RETURN] + returning, start[:, :, LAST] + time[:, :, LAST] - rest)
    return numpy.asarray(fits & (soonest + rest <= end[:, :, LAST]))


def settle(orders: OrderNodes, cases: Cases, *, rows: tuple[Integers, ...], what: int) -> None:
    """These passes (node, stage replica, microbatch) are one piece, or split: actions take what they take then."""
    node, replica, microbatch = rows
    if not len(node):
        return
    start, end, time = (cases.by_replica(values) for values in (orders.start, orders.end, orders.time))
    due = due_gradients(orders, cases)[rows]
    first, second = (node, replica, RETURN, microbatch), (node, replica, LAST, microbatch)
    if what == SPLIT:
        returning, rest = cases.returning[node, replica], cases.rest[node, replica]
        end[first] = numpy.minimum(end[first] + returning - time[first], due)
        start[second] -= rest - time[second]
        time[first], time[second] = returning, rest
    else:
        start[first] = numpy.maximum(start[first], start[second] - time[first])
        end[first] = numpy.minimum(end[second], due)
        time[first], time[second] = cases.fused[node, replica], 0
        _join(orders, cases, rows=rows)
    orders.is_open[rows] = False


def _join(orders: OrderNodes, cases: Cases, *, rows: tuple[Integers, ...]) -> None:
    """What precedes the end of a B precedes its beginning, and what follows its beginning follows its end."""
    places, count = cases.held.shape[2], cases.count
    for node, replica, microbatch in zip(*(row.tolist() for row in rows), strict=True):
        before = orders.before[node, replica // places]
        first = (replica % places * 3 + 1) * count + microbatch
        second = first + count
        before[:, first] |= before[:, second]
        before[first, first] = False
        before[second] |= before[first]
        before[second, second] = False
