"""Greedy orders under caps and memory, in order of time (`planner.baselines.greedy.capped_orders` says by which rules).

Whenever something happens to a position that is idle, it runs I (or B) if one is ready and has room, else F while few
enough are in flight and there is room, else W. Microbatches are taken in order everywhere.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Integers
from solver_models.simulation.columns import ACTIVATIONS, GRADIENTS
from solver_models.simulation.event_heap import AHEAD, CLOCK, KEY, NEXT, TIME, heap_pop, heap_push, make_heap
from solver_models.simulation.placed_stages import (
    DELAY,
    HAS_WEIGHT,
    HELD,
    MISSING,
    POSITION,
    READY,
    STASH,
    TARGET,
    WEIGHT_STASH,
    PlacedStages,
    longest_order,
    make_arrivals,
)

DEEPEST, OLDEST, ROUND_ROBIN = range(3)
"""Which chunk of a position comes first: the one nearest to the loss, the one whose microbatch is the oldest, or, of so
many microbatches as there are positions, first all in one chunk, then all in the next."""

FREE, BEGAN, IN_USE, FIRST_PENDING, NUM_PENDING, LENGTH = range(6)
"""Columns of a position: its last end, its first start (-1 before), units it holds, the ends of its queue of W,
actions played."""

FORWARDS, RETURNS = range(2)
"""Columns of a stage: how many F and how many I or B it has begun."""


class CapRule(NamedTuple):
    """How every position chooses."""

    caps: Integers
    """[S] most microbatches of a stage between F and I."""
    chunks: int
    """`DEEPEST` ... `ROUND_ROBIN`."""
    splits: bool
    """I and W apart; otherwise B."""
    most_pending: int
    """So many W may wait before one is run in place of an F."""


class CappedOrders(NamedTuple):
    """Orders and their times; they end early where nothing that is left has room."""

    device_orders: Integers
    """[P, longest] actions of every position."""
    positions: Integers
    """[P, 6] by the columns above; `LENGTH` says how many of the actions count."""
    num_left: int
    """Backward passes that have no room, or nothing to begin with: 0 if the orders are complete."""
    makespan: int
    """Ticks."""
    span: int
    """Ticks from first to last action, of the position where that takes longest."""


class _Greed(NamedTuple):
    """How far everything is."""

    placed: PlacedStages
    rule: CapRule
    arrivals: Integers
    """[2, S, M, 2]; see `make_arrivals`."""
    done: Integers
    """[S, 2] by the columns of a stage."""
    positions: Integers
    """[P, 6] by the columns of a position."""
    pending: Integers
    """[P, longest] W in the order of their I."""
    device_orders: Integers
    """[P, longest]"""
    channel: Integers
    """[L] when a transfer has taken what was last sent on it: one thing at a time."""
    events: Integers
    """The heap of times at which something happens to a position."""


@kernel
def play_capped(placed: PlacedStages, rule: CapRule) -> CappedOrders:
    """All events, in order of time."""
    greed = _begin(placed, rule)
    num_positions, events = placed.budget.shape[0], greed.events
    is_touched = np.zeros(num_positions, np.int64)
    for p in range(num_positions):
        is_touched[p] = 1
    now = int64(0)
    while True:
        for p in range(num_positions):
            if is_touched[p] and greed.positions[p, FREE] <= now:
                _start(greed, now, p)
        if not events[CLOCK, AHEAD]:
            break
        now = events[NEXT, TIME]
        is_touched = np.zeros(num_positions, np.int64)
        while events[CLOCK, AHEAD] and events[NEXT, TIME] == now:
            is_touched[events[NEXT, KEY]] = 1
            heap_pop(events)
    positions, makespan, span, num_left = greed.positions, int64(0), int64(0), int64(0)
    for p in range(num_positions):
        makespan = max(makespan, positions[p, FREE])
        num_left += positions[p, NUM_PENDING]
        if positions[p, BEGAN] >= 0:
            span = max(span, positions[p, FREE] - positions[p, BEGAN])
    for s in range(placed.table.shape[0]):
        num_left += placed.num_microbatches - greed.done[s, RETURNS]
    return CappedOrders(greed.device_orders, positions, num_left, makespan, span)


@kernel
def _begin(placed: PlacedStages, rule: CapRule) -> _Greed:
    """Every backward pass waits for its own F as well."""
    num_positions, longest = placed.budget.shape[0], longest_order(placed)
    arrivals = make_arrivals(placed)
    for s in range(placed.table.shape[0]):
        for microbatch in range(placed.num_microbatches):
            arrivals[GRADIENTS, s, microbatch, MISSING] += 1
    positions = np.zeros((num_positions, LENGTH + 1), np.int64)
    for p in range(num_positions):
        positions[p, BEGAN] = -1
    return _Greed(
        placed,
        rule,
        arrivals,
        np.zeros((placed.table.shape[0], 2), np.int64),
        positions,
        np.empty((num_positions, longest), np.int64),
        np.empty((num_positions, longest), np.int64),
        np.zeros(placed.transfers.shape[0], np.int64),
        make_heap((4 * placed.table.shape[0] + placed.transfers.shape[0]) * placed.num_microbatches),
    )


@kernel
def _start(greed: _Greed, now: int, p: int) -> None:
    """The action that the rule prefers, if any can start."""
    rule, mine = greed.rule, greed.positions[p]
    stage = _choose_backward(greed, now, p)
    if stage >= 0:
        _run_backward(greed, now, p, stage)
        return
    if mine[NUM_PENDING] <= rule.most_pending:
        stage = _choose_forward(greed, now, p)
    if stage >= 0:
        _run_forward(greed, now, p, stage)
    elif mine[NUM_PENDING]:
        action = greed.pending[p, mine[FIRST_PENDING]]
        stage = (action >> 2) // greed.placed.num_microbatches
        mine[FIRST_PENDING] += 1
        mine[NUM_PENDING] -= 1
        _run(greed, now, p, action)
        mine[IN_USE] -= greed.placed.table[stage, WEIGHT_STASH]


@kernel
def _choose_backward(greed: _Greed, now: int, p: int) -> int:
    """The stage whose I or B comes next, if one is ready and has room; else -1."""
    placed, best, best_rank = greed.placed, -1, int64(0)
    for at in range(placed.first[p], placed.first[p + 1]):
        s = placed.stages[at]
        number = greed.done[s, RETURNS]
        if number >= greed.done[s, FORWARDS] or not _is_there(greed, GRADIENTS, s, number, now):
            continue
        if greed.positions[p, IN_USE] + placed.table[s, STASH] - placed.table[s, HELD] > placed.budget[p]:
            continue
        rank = _rank(greed, s, number, GRADIENTS)
        if best < 0 or rank < best_rank:
            best, best_rank = s, rank
    return best


@kernel
def _choose_forward(greed: _Greed, now: int, p: int) -> int:
    """The stage whose F comes next, if one is ready, below its cap and leaves room for one F of the later; or -1."""
    placed, best, best_rank, reserved = greed.placed, -1, int64(0), int64(0)
    for at in range(placed.first[p + 1] - 1, placed.first[p] - 1, -1):
        s = placed.stages[at]
        number, held = greed.done[s, FORWARDS], placed.table[s, HELD]
        flight, is_left = number - greed.done[s, RETURNS], number < placed.num_microbatches
        fits = greed.positions[p, IN_USE] + held + reserved <= placed.budget[p]
        if is_left and fits and flight < greed.rule.caps[s] and _is_there(greed, ACTIVATIONS, s, number, now):
            rank = _rank(greed, s, number, ACTIVATIONS)
            if best < 0 or rank < best_rank:
                best, best_rank = s, rank
        if flight == 0 and is_left:
            reserved += held
    return best


@kernel
def _rank(greed: _Greed, stage: int, number: int, direction: int) -> int:
    """The least comes first; no two stages have the same."""
    num_stages, chunks = greed.placed.table.shape[0], greed.rule.chunks
    from_loss = num_stages - 1 - stage
    if chunks == DEEPEST:
        return from_loss
    if chunks == OLDEST:
        return number * num_stages + from_loss
    round_number = number // greed.placed.budget.shape[0]
    return round_number * num_stages + (from_loss if direction == GRADIENTS else stage)


@kernel
def _is_there(greed: _Greed, direction: int, stage: int, number: int, now: int) -> bool:
    awaited = greed.arrivals[direction, stage, number]
    return not awaited[MISSING] and awaited[READY] <= now


@kernel
def _run_forward(greed: _Greed, now: int, p: int, stage: int) -> None:
    placed, microbatch = greed.placed, greed.done[stage, FORWARDS]
    end = _run(greed, now, p, (stage * placed.num_microbatches + microbatch) << 2 | FORWARD)
    greed.done[stage, FORWARDS] += 1
    greed.positions[p, IN_USE] += placed.table[stage, HELD]
    _arrive(greed, GRADIENTS, stage, microbatch, end)
    _send(greed, stage, microbatch, ACTIVATIONS, end)


@kernel
def _run_backward(greed: _Greed, now: int, p: int, stage: int) -> None:
    placed, microbatch, mine = greed.placed, greed.done[stage, RETURNS], greed.positions[p]
    number = (stage * placed.num_microbatches + microbatch) << 2
    fuses = placed.table[stage, HAS_WEIGHT] and not greed.rule.splits
    end = _run(greed, now, p, number | (BACKWARD if fuses else INPUT_GRAD))
    greed.done[stage, RETURNS] += 1
    mine[IN_USE] -= placed.table[stage, HELD]
    if placed.table[stage, HAS_WEIGHT] and not fuses:
        mine[IN_USE] += placed.table[stage, WEIGHT_STASH]
        greed.pending[p, mine[FIRST_PENDING] + mine[NUM_PENDING]] = number | WEIGHT_GRAD
        mine[NUM_PENDING] += 1
    _send(greed, stage, microbatch, GRADIENTS, end)


@kernel
def _run(greed: _Greed, now: int, p: int, action: int) -> int:
    """Put an action down; returns its end."""
    mine = greed.positions[p]
    greed.device_orders[p, mine[LENGTH]] = action
    mine[LENGTH] += 1
    if mine[BEGAN] < 0:
        mine[BEGAN] = now
    end = now + greed.placed.table[(action >> 2) // greed.placed.num_microbatches, action & 3]
    mine[FREE] = end
    heap_push(greed.events, end, p)
    return end


@kernel
def _send(greed: _Greed, stage: int, microbatch: int, direction: int, end: int) -> None:
    """Between two stages one thing is sent at a time in each direction."""
    placed, channel = greed.placed, greed.channel
    for transfer in range(
        placed.transfer_start[2 * stage + direction], placed.transfer_start[2 * stage + direction + 1]
    ):
        arrival = end + placed.transfers[transfer, DELAY]
        if placed.transfers[transfer, DELAY]:
            arrival = max(end, channel[transfer]) + placed.transfers[transfer, DELAY]
            channel[transfer] = arrival
        _arrive(greed, direction, placed.transfers[transfer, TARGET], microbatch, arrival)


@kernel
def _arrive(greed: _Greed, direction: int, stage: int, microbatch: int, time: int) -> None:
    awaited = greed.arrivals[direction, stage, microbatch]
    awaited[MISSING] -= 1
    awaited[READY] = max(awaited[READY], time)
    if not awaited[MISSING]:
        heap_push(greed.events, awaited[READY], greed.placed.table[stage, POSITION])
