"""Puts W into given orders of F and I while these are played (`planner.baselines.zero_bubble.weight_grads` says by
which habits).

Every position is played as far as what it waits for is known, in turn:

    position 0   F0 F1 F2 . . |        waits for a gradient: the turn goes to whom it has sent something
    position 1   . F0 F1 I0 I1 F2 I2   its I send gradients back: position 0 continues, and puts W where it has waited
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import free_from
from solver_models.instance import FORWARD, WEIGHT_GRAD, Integers
from solver_models.simulation.columns import ACTIVATIONS, GRADIENTS
from solver_models.simulation.evaluator import FAR, MICROBATCHES, Net

MISSING, READY = range(2)
"""Columns of what a pass waits for: things that are still to come, when the latest of the others comes."""

CLOCK, BEGAN, WAITED, IN_USE, NEXT, FORWARDS_LEFT, FIRST_PENDING, NUM_PENDING, LENGTH = range(9)
"""Columns of a position: its last end, its first start (-1 before), ticks it has waited, units it holds, the next of
its orders, F that are left, the ends of its queue of W, actions played."""

UNLIMITED = FAR
"""Ticks that no filling reaches."""

_LONGEST_WAIT = 0
"""Index of the scalars."""


class FillHabit(NamedTuple):
    """When a W is run although an F or an I could come next."""

    quarters: int
    """It is run where the wait for the next F or I is at least this many quarters of it."""
    evens_out: bool
    """It is also run in shorter waits if the position would otherwise become the one that has waited longest."""
    at_once: bool
    """It is also run directly after its I as long as the position has F to run."""


class FilledOrders(NamedTuple):
    """Complete orders and their times."""

    device_orders: Integers
    """[P, longest] actions of every position."""
    positions: Integers
    """[P, 9] by the columns above; `LENGTH` says how many of the actions count."""
    makespan: int
    """Ticks."""
    span: int
    """Ticks from first to last action, of the position where that takes longest."""


class Filling(NamedTuple):
    """State of a schedule that is being made; of the net only what is read, since arrays of arguments are counted."""

    num_microbatches: int
    """How many microbatches an iteration has."""
    duration: Integers
    """[S, 4] as in `Net`, and so the next three."""
    held: Integers
    weight_stash: Integers
    has_weight: Integers
    habit: FillHabit
    limits: Integers
    """[P] units that a position may hold when an F begins."""
    arrivals: Integers
    """[2, S, M, 2] what F (0) and I or B (1) wait for, by the columns above."""
    positions: Integers
    """[P, 9] by the columns above."""
    pending: Integers
    """[P, longest] W in the order of their I."""
    device_orders: Integers
    """[P, longest]"""
    scalars: Integers
    """[1] by the index above."""


class _Transfers(NamedTuple):
    """Those of the net, as there."""

    start: Integers
    target: Integers
    direction: Integers
    duration: Integers
    device: Integers
    """Of every stage."""


@kernel
def fill_orders(
    net: Net, orders: Integers, order_start: Integers, habit: FillHabit, limits: Integers, most: int
) -> FilledOrders:
    """Play `orders`, F and I of one position after the other, which must be free of deadlock, with W in between.

    A W in `orders` means: the oldest W that is due, if there is one. It breaks off where it is sure to take longer than
    `most` ticks, and states one more.
    """
    filling = _begin(net, orders, order_start, habit, limits)
    positions, num_positions = filling.positions, order_start.shape[0] - 1
    work = _work(net, orders, order_start)
    transfers = _Transfers(
        net.transfer_start, net.transfer_target, net.transfer_direction, net.transfer_duration, net.replica_device
    )
    queue = np.empty(num_positions + net.transfer_target.shape[0] * net.scalars[MICROBATCHES], np.int64)
    for p in range(num_positions):
        queue[p] = p
    done, queued, reached = 0, num_positions, np.zeros(num_positions, np.int64)
    while done < queued:
        p = queue[done]
        done += 1
        reached[:] = 0
        _play_on(filling, transfers, orders[order_start[p] : order_start[p + 1]], p, reached)
        if positions[p, BEGAN] + positions[p, WAITED] + work[p] > most:
            return FilledOrders(filling.device_orders, positions, most + 1, most + 1)
        reached[p] = 0
        for other in range(num_positions):
            if reached[other]:
                queue[queued] = other
                queued += 1
    makespan, span = int64(0), int64(0)
    for p in range(num_positions):
        while positions[p, NUM_PENDING]:
            _run_weight_grad(filling, positions[p], p)
        makespan = max(makespan, positions[p, CLOCK])
        if positions[p, BEGAN] >= 0:
            span = max(span, positions[p, CLOCK] - positions[p, BEGAN])
    return FilledOrders(filling.device_orders, positions, makespan, span)


@kernel
def _work(net: Net, orders: Integers, order_start: Integers) -> Integers:
    """[P] ticks of all actions of a position."""
    work = np.zeros(order_start.shape[0] - 1, np.int64)
    for p in range(work.shape[0]):
        for at in range(order_start[p], order_start[p + 1]):
            kind, stage = orders[at] & 3, (orders[at] >> 2) // net.scalars[MICROBATCHES]
            if kind != WEIGHT_GRAD:
                work[p] += net.duration[stage, kind]
                if kind != FORWARD and net.has_weight[stage]:
                    work[p] += net.duration[stage, WEIGHT_GRAD]
    return work


@kernel
def _begin(net: Net, orders: Integers, order_start: Integers, habit: FillHabit, limits: Integers) -> Filling:
    num_positions, longest = order_start.shape[0] - 1, 1
    arrivals = np.zeros((2, net.replica_stage.shape[0], net.scalars[MICROBATCHES], READY + 1), np.int64)
    for s in range(net.replica_stage.shape[0]):
        arrivals[ACTIVATIONS, s, :, MISSING] = net.num_inputs[s]
        arrivals[GRADIENTS, s, :, MISSING] = net.num_gradients[s]
    positions = np.zeros((num_positions, LENGTH + 1), np.int64)
    positions[:, CLOCK] = free_from(net.devices)
    for p in range(num_positions):
        positions[p, BEGAN] = -1
        longest = max(longest, 3 * net.scalars[MICROBATCHES] * (net.device_start[p + 1] - net.device_start[p]))
        for at in range(order_start[p], order_start[p + 1]):
            positions[p, FORWARDS_LEFT] += orders[at] & 3 == FORWARD
    pending = np.empty((num_positions, longest), np.int64)
    device_orders = np.empty((num_positions, longest), np.int64)
    return Filling(
        net.scalars[MICROBATCHES], net.duration, net.held, net.weight_stash, net.has_weight,
        habit, limits, arrivals, positions, pending, device_orders, np.zeros(1, np.int64),
    )  # fmt: skip


@kernel
def _play_on(filling: Filling, transfers: _Transfers, order: Integers, p: int, reached: Integers) -> None:
    """Play a position until something it needs is unknown; whom it has sent something to is marked as reached."""
    mine, count, arrivals = filling.positions[p], filling.num_microbatches, filling.arrivals
    duration, held, limit = filling.duration, filling.held, filling.limits[p]
    while mine[NEXT] < order.shape[0]:
        action = order[mine[NEXT]]
        kind, number = action & 3, action >> 2
        if kind == WEIGHT_GRAD:
            if mine[NUM_PENDING]:
                _run_weight_grad(filling, mine, p)
            mine[NEXT] += 1
            continue
        stage, microbatch = number // count, number % count
        direction = ACTIVATIONS if kind == FORWARD else GRADIENTS
        if arrivals[direction, stage, microbatch, MISSING]:
            break
        ready = arrivals[direction, stage, microbatch, READY]
        if mine[NUM_PENDING] and ready > mine[CLOCK]:
            _use_wait(filling, mine, p, ready)
        if kind == FORWARD:
            while mine[NUM_PENDING] and mine[IN_USE] + held[stage] > limit:
                _run_weight_grad(filling, mine, p)
        start = max(mine[CLOCK], ready)
        _note_wait(mine, filling.scalars, start)
        mine[CLOCK] = start + duration[stage, kind]
        filling.device_orders[p, mine[LENGTH]] = action
        mine[LENGTH] += 1
        _send(transfers, arrivals, 2 * stage + direction, microbatch, mine[CLOCK], reached)
        if kind == FORWARD:
            mine[IN_USE] += held[stage]
            mine[FORWARDS_LEFT] -= 1
        else:
            _keep_weight_grad(filling, mine, p, stage, microbatch)
        mine[NEXT] += 1


@kernel
def _keep_weight_grad(filling: Filling, mine: Integers, p: int, stage: int, microbatch: int) -> None:
    """What an I leaves behind: the stash of its W, and that W to run."""
    mine[IN_USE] += filling.weight_stash[stage] - filling.held[stage]
    if filling.has_weight[stage]:
        weight_grad = (stage * filling.num_microbatches + microbatch) << 2 | WEIGHT_GRAD
        filling.pending[p, mine[FIRST_PENDING] + mine[NUM_PENDING]] = weight_grad
        mine[NUM_PENDING] += 1
        if filling.habit.at_once and mine[FORWARDS_LEFT]:
            _run_weight_grad(filling, mine, p)


@kernel
def _use_wait(filling: Filling, mine: Integers, p: int, ready: int) -> None:
    """Run W before something that is ready at a time, as the habit says."""
    habit = filling.habit
    while mine[NUM_PENDING]:
        wait = ready - mine[CLOCK]
        stage = (filling.pending[p, mine[FIRST_PENDING]] >> 2) // filling.num_microbatches
        evens_out = habit.evens_out and mine[WAITED] + wait > filling.scalars[_LONGEST_WAIT]
        is_short = 4 * wait < habit.quarters * filling.duration[stage, WEIGHT_GRAD]
        if wait <= 0 or (is_short and not evens_out):
            return
        _run_weight_grad(filling, mine, p)


@kernel
def _run_weight_grad(filling: Filling, mine: Integers, p: int) -> None:
    action = filling.pending[p, mine[FIRST_PENDING]]
    stage = (action >> 2) // filling.num_microbatches
    mine[FIRST_PENDING] += 1
    mine[NUM_PENDING] -= 1
    mine[CLOCK] += filling.duration[stage, WEIGHT_GRAD]
    mine[IN_USE] -= filling.weight_stash[stage]
    filling.device_orders[p, mine[LENGTH]] = action
    mine[LENGTH] += 1


@kernel
def _note_wait(mine: Integers, scalars: Integers, start: int) -> None:
    if mine[BEGAN] < 0:
        mine[BEGAN] = start
    else:
        mine[WAITED] += start - mine[CLOCK]
        scalars[_LONGEST_WAIT] = max(scalars[_LONGEST_WAIT], mine[WAITED])


@kernel
def _send(
    transfers: _Transfers,
    arrivals: Integers,
    outlet: int,
    microbatch: int,
    end: int,
    reached: Integers,
) -> None:
    for transfer in range(transfers.start[outlet], transfers.start[outlet + 1]):
        target, direction = transfers.target[transfer], transfers.direction[transfer]
        ready = end + transfers.duration[transfer]
        arrivals[direction, target, microbatch, MISSING] -= 1
        arrivals[direction, target, microbatch, READY] = max(arrivals[direction, target, microbatch, READY], ready)
        reached[transfers.device[target]] = 1
