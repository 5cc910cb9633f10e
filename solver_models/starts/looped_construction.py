"""Cuts for pipelines whose order of actions is fixed: stages in a loop over the ranks, 1F1B, interleaved or not.

With p ranks and v chunks, stage s is on rank s mod p. A cut is an array of v p + 1 bounds; the makespan of the fixed
order is one longest path, played in order. Transfers have their links to themselves here.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import Integers, ShortIntegers
from solver_models.moves.annealing import Cooling, temperature
from solver_models.simulation.evaluator import FAR
from solver_models.simulation.in_order import OrderedSteps, run_in_order

_ROAMING_UNITS = 1 << 60
"""Units of memory that a temperature of 1 lets a step add while a cut does not fit: nearly every step is taken."""

FORWARD, BACKWARD, SYNCHRONISATION, SEND_FORWARD, SEND_BACKWARD = range(5)
"""Rows of a table of stages; `Loop.times` has the first three, `Loop.crossing` the first two."""

*_, RECOMPUTATION = range(4)
"""The last row of `Loop.times`."""

STASH, STATIC, SAVED, SHARED = 0, 1, 2, 3
"""Rows of `Loop.sizes`."""


class Loop(NamedTuple):
    """L layers for p ranks of r replicas, as sums of the first 0, 1, 2 ... layers."""

    times: Integers
    """[4, p, L + 1] ticks of F and of B for all replicas, of the synchronisation, and what recomputation adds to B."""
    fixed: Integers
    """[3, p] ticks that every F, B and synchronisation of a stage takes beside."""
    sizes: Integers
    """[4, L + 1] units of stash for all replicas, resident, of what recomputation leaves out of the stash until B, and
    resident ones that replicas share."""
    replicas: int
    """r, which share microbatches in equal parts."""
    sharers: int
    """Replicas that share what of the state they can, in equal parts."""
    until: Integers
    """[L + 1] up to which layer a stage recomputes that begins at a boundary, or all of it if it ends before."""
    crossing: Integers
    """[2, p, L + 1] ticks from a rank to the next of an activation at every boundary, and of a gradient back."""
    buffers: Integers
    """[L + 1] units of receive buffers at every boundary, on either side."""
    budget: Integers
    """[p] units of memory, less workspace."""
    microbatches: int


@kernel
def num_ahead(ranks: int, chunks: int, rank: int, num_forwards: int) -> int:
    """Forwards that a rank runs before it alternates."""
    ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
    return min(ahead, num_forwards)


@kernel
def slot_of(number: int, ranks: int, chunks: int) -> tuple[int, int]:
    """(chunk, microbatch) of the number-th forward of a rank; of backwards the chunks are counted from the last."""
    if chunks == 1:
        return 0, number
    group, rest = number // (ranks * chunks), number % (ranks * chunks)
    return rest // ranks, group * ranks + rest % ranks


@kernel
def action(place: int, ahead: int, num_forwards: int) -> tuple[bool, int]:
    """(is backward, its number) of the action at a place of a rank's order."""
    if place < ahead:
        return False, place
    rest, pairs = place - ahead, num_forwards - ahead
    if rest < 2 * pairs:
        return (True, rest // 2) if rest % 2 else (False, ahead + rest // 2)
    return True, pairs + rest - 2 * pairs


@kernel
def stage_times(loop: Loop, cut: Integers, ranks: int) -> Integers:
    """[5, S] ticks of F, B, synchronisation, and of the transfers of F to the next and of B to the one before."""
    stages = cut.shape[0] - 1
    table = np.zeros((5, stages), np.int64)
    for s in range(stages):
        rank = s % ranks
        for k in range(3):
            table[k, s] = loop.times[k, rank, cut[s + 1]] - loop.times[k, rank, cut[s]]
        last = min(cut[s + 1], loop.until[cut[s]])
        table[BACKWARD, s] += loop.times[RECOMPUTATION, rank, last] - loop.times[RECOMPUTATION, rank, cut[s]]
        table[FORWARD, s] = loop.fixed[FORWARD, rank] - -table[FORWARD, s] // loop.replicas
        table[BACKWARD, s] = loop.fixed[BACKWARD, rank] - -table[BACKWARD, s] // loop.replicas
        table[SYNCHRONISATION, s] += loop.fixed[SYNCHRONISATION, rank] * (table[SYNCHRONISATION, s] > 0)
        if s + 1 < stages:
            table[SEND_FORWARD, s] = loop.crossing[FORWARD, s % ranks, cut[s + 1]]
            table[SEND_BACKWARD, s + 1] = loop.crossing[BACKWARD, s % ranks, cut[s + 1]]
    return table


@kernel
def lower_bound_of(table: Integers, ranks: int, count: int) -> int:
    """The busiest rank, with what must come before its first action and after its last one."""
    stages, best = table.shape[1], int64(0)
    before, after = int64(0), int64(0)
    for rank in range(ranks):
        load, sync = int64(0), int64(0)
        for s in range(rank, stages, ranks):
            load += count * (table[FORWARD, s] + table[BACKWARD, s])
        sync = max(table[SYNCHRONISATION, rank], after)
        best = max(best, before + load + sync)
        before += table[FORWARD, rank] + table[SEND_FORWARD, rank]
        if rank + 1 < ranks:
            after = max(after + table[BACKWARD, rank], table[SYNCHRONISATION, rank]) + table[SEND_BACKWARD, rank + 1]
    return best


@kernel
def _missing_memory(loop: Loop, cut: Integers, ranks: int) -> int:
    """Units by which ranks exceed their budgets, added up; the order alone decides that."""
    stages = cut.shape[0] - 1
    chunks, missing = stages // ranks, int64(0)
    num_forwards = loop.microbatches * chunks
    for rank in range(ranks):
        static, ahead = int64(0), num_ahead(ranks, chunks, rank, num_forwards)
        for s in range(rank, stages, ranks):
            static += loop.sizes[STATIC, cut[s + 1]] - loop.sizes[STATIC, cut[s]]
            static -= (loop.sizes[SHARED, cut[s]] - loop.sizes[SHARED, cut[s + 1]]) // loop.sharers
            if ranks > 1:
                static += loop.buffers[cut[s]] * (s > 0) + loop.buffers[cut[s + 1]] * (s + 1 < stages)
        held, peak = static, static
        for place in range(2 * num_forwards):
            is_backward, number = action(place, ahead, num_forwards)
            chunk, _ = slot_of(number, ranks, chunks)
            s = (chunks - 1 - chunk if is_backward else chunk) * ranks + rank
            whole = loop.sizes[STASH, cut[s + 1]] - loop.sizes[STASH, cut[s]]
            saved = loop.sizes[SAVED, min(cut[s + 1], loop.until[cut[s]])] - loop.sizes[SAVED, cut[s]]
            size = -((saved - whole) // loop.replicas)
            if is_backward:
                peak = max(peak, held - size - -whole // loop.replicas)
                held -= size
            else:
                held += size
                peak = max(peak, held)
        missing += max(peak - loop.budget[rank], 0)
    return missing


@kernel
def has_room(loop: Loop, cut: Integers, ranks: int) -> bool:
    """Whether every rank holds all microbatches that may be in flight at once, in the given order, without counting.

    A rank has at most its forwards ahead and one more in flight, in whichever of its stages.
    """
    stages = cut.shape[0] - 1
    chunks = stages // ranks
    for rank in range(ranks):
        need, largest = int64(0), int64(0)
        for s in range(rank, stages, ranks):
            need += loop.sizes[STATIC, cut[s + 1]] - loop.sizes[STATIC, cut[s]]
            need -= (loop.sizes[SHARED, cut[s]] - loop.sizes[SHARED, cut[s + 1]]) // loop.sharers
            need += loop.buffers[cut[s]] + loop.buffers[cut[s + 1]]
            largest = max(largest, -((loop.sizes[STASH, cut[s]] - loop.sizes[STASH, cut[s + 1]]) // loop.replicas))
        if need + largest * (num_ahead(ranks, chunks, rank, loop.microbatches * chunks) + 1) > loop.budget[rank]:
            return False
    return True


class _LoopOrder(NamedTuple):
    """The A actions of all ranks, each after those that it waits for, and room for when they end."""

    steps: OrderedSteps
    """Who runs them, and what they wait for."""
    lag: Integers
    """[A] that of the steps, for a cut."""
    code: ShortIntegers
    """[A] `FORWARD` or `BACKWARD` x S + stage."""
    last: Integers
    """[S] the last backward of every stage."""
    ticks: Integers
    """[A] of a cut."""
    ends: Integers
    """[A] of a cut."""


@kernel
def _order_loop(ranks: int, stages: int, count: int) -> _LoopOrder:
    chunks, size = stages // ranks, 2 * stages * count
    number, place = np.full((2, stages, count), -1, np.int32), np.zeros(ranks, np.int64)
    rank_of, source, code = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    done = 0
    while done < size:
        for rank in range(ranks):
            ahead = num_ahead(ranks, chunks, rank, count * chunks)
            while place[rank] < 2 * count * chunks:
                is_backward, k = action(place[rank], ahead, count * chunks)
                chunk, m = slot_of(k, ranks, chunks)
                direction = BACKWARD if is_backward else FORWARD
                s = (chunks - 1 - chunk if is_backward else chunk) * ranks + rank
                before, needed = s + 1 if is_backward else s - 1, int64(-1)
                if 0 <= before < stages:
                    needed = int64(number[direction, before, m])
                    if needed < 0:
                        break
                number[direction, s, m] = done
                rank_of[done], source[done], code[done] = rank, needed, direction * stages + s
                place[rank] += 1
                done += 1
    last, lag = number[BACKWARD, :, count - 1].astype(np.int64), np.zeros(size, np.int64)
    steps = OrderedSteps(rank_of, source, lag, np.zeros(size, np.int64))
    return _LoopOrder(steps, lag, code, last, np.zeros(size, np.int64), np.zeros(size, np.int64))


@kernel
def _play_loop(order: _LoopOrder, table: Integers, ranks: int) -> int:
    """The makespan of the fixed order."""
    stages, flat = table.shape[1], table.reshape(-1)
    for k in range(order.code.shape[0]):
        code = order.code[k]
        order.ticks[k] = flat[code]
        if order.steps.source[k] >= 0:
            order.lag[k] = flat[SEND_FORWARD * stages + code + (1 if code >= stages else -1)]
    run_in_order(order.steps, order.ticks, np.zeros(ranks, np.int64), order.ends)
    return int64(np.max(order.ends[order.last] + table[SYNCHRONISATION]))


@kernel
def promise_cut(loop: Loop, cut: Integers, ranks: int) -> tuple[int, int]:
    """(units of memory that are missing, lower bound of the makespan, or 0 where memory is missing)."""
    if not has_room(loop, cut, ranks):
        missing = _missing_memory(loop, cut, ranks)
        if missing > 0:
            return missing, int64(0)
    return int64(0), lower_bound_of(stage_times(loop, cut, ranks), ranks, loop.microbatches)


@kernel
def _rate(loop: Loop, cut: Integers, ranks: int, order: _LoopOrder, threshold: int) -> tuple[int, int]:
    """(units of memory that are missing, makespan, or 0 where memory is missing); from `threshold` on maybe FAR."""
    missing, least = promise_cut(loop, cut, ranks)
    if missing > 0:
        return missing, least
    return missing, _play_loop(order, stage_times(loop, cut, ranks), ranks) if least < threshold else int64(FAR)


@kernel
def _vary_cut(cut: Integers, new: Integers) -> bool:
    """Copy `cut` to `new` with a random range of bounds moved by one layer; whether no stage became empty."""
    stages = cut.shape[0] - 1
    new[:] = cut
    moves = 2 if np.random.random() < 0.3 else 1
    for _ in range(moves):
        first = np.random.randint(1, stages)
        last = first if np.random.random() < 0.3 else np.random.randint(first, stages)
        step = -1 if np.random.random() < 0.5 else 1
        for k in range(first, last + 1):
            new[k] += step
        if new[first] <= new[first - 1] or new[last + 1] <= new[last]:
            return False
    return True


@kernel
def anneal_cut(loop: Loop, cut: Integers, ranks: int, cooling: Cooling) -> tuple[int, int]:
    """Anneal from `cut`, which then holds the best one found; returns what is missing, and its makespan."""
    np.random.seed(cooling.seed)
    new, current, order = cut.copy(), cut.copy(), _order_loop(ranks, cut.shape[0] - 1, loop.microbatches)
    missing, value = _rate(loop, cut, ranks, order, FAR)
    least, best = missing, value
    if cut.shape[0] < 3:
        return least, best
    for step in range(cooling.steps):
        if not _vary_cut(current, new):
            continue
        whole = int64(_ROAMING_UNITS) if missing > 0 else value
        slack = int64(-np.log(1 - np.random.random()) * temperature(cooling, step) * whole)
        lacks, found = _rate(loop, new, ranks, order, FAR if missing > 0 else value + slack + 1)
        if lacks <= missing + slack if missing > 0 else lacks == 0 and found <= value + slack:
            current[:] = new
            missing, value = lacks, found
            if missing < least or (missing == least and value < best):
                least, best = missing, value
                cut[:] = new
    return least, best
