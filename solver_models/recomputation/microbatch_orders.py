"""Orders in which every microbatch of a stage recomputes or keeps everything, improved by annealing.

Stages and devices are given. An order alone says what its device holds, so which microbatches recompute follows from
it: whenever what is held does not fit, the one whose backward comes last recomputes. That leaves the most that keep
everything. Which of them do decides how long the critical path is, so a table is annealed beside the orders that says
which recompute in any case, and which only if no other is left.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Flags, Integers, ShortIntegers
from solver_models.simulation.columns import ACTIVATIONS, GRADIENTS

FAR = 1 << 60
"""The end of what does not fit, deadlocks, or is no order."""

KEPT, RECOMPUTED = 0, 1
"""Variants of a microbatch."""

_DURING, _AFTER = 0, 1
"""Columns of `OrderTables.steps`."""

_DRIFT = 0.1
"""Ticks of the makespan that a tick of the devices' mean end is worth: of equal plans the one with more room."""
_WANTED_SHARE = 0.2
"""Share of moves that change how a microbatch is wanted to recompute."""
_MEAN_SHIFT = 3.0
"""Mean of how many places an action is moved by, beyond one."""


class OrderTables(NamedTuple):
    """N stage replicas of S stages on D devices, with P transfers between them; M microbatches come in order."""

    stage: Integers
    """[N] stage."""
    device: Integers
    """[N] device."""
    has_weight: Integers
    """[N] 1 if there is a W."""
    ticks: Integers
    """[N, 2, 4] ticks of F, I, W and B, by variant."""
    steps: Integers
    """[N, 2, 4, 2] units that an action adds while it runs, and from its end on, by variant."""
    budget: Integers
    """[D] units."""
    first: Integers
    """[2 * N + 1] where the transfers of a stage replica begin: its activations, then its gradients."""
    receiver: Integers
    """[P] stage replica that waits."""
    moving: Integers
    """[P] ticks of a transfer; links are not modelled."""
    waits: Integers
    """[N, 2] activations and gradients that a microbatch waits for."""
    closing: Integers
    """[S] ticks after the last action of a stage."""


class OrderState(NamedTuple):
    """Orders, which microbatches recompute, and room for what is counted on the side."""

    orders: ShortIntegers
    """[D, longest] stage replica * 4 + kind."""
    lengths: Integers
    """[D] actions."""
    wanted: Integers
    """[S, M] 1: the microbatch recomputes in any case; -1: only if no other is left; 0: neither."""
    recomputed: Flags
    """[S, M] whether it does."""
    back: Integers
    """[N, M] the place of every I or B in its order."""
    arrived: Integers
    """[N, 2, M] when the last input or gradient came."""
    missing: Integers
    """[N, 2, M] how many are awaited."""
    ended: Integers
    """[N, 4, M] when actions of each kind ended."""


@kernel
def place_of(kind: int) -> int:
    """Column of the counters: B counts as I."""
    return INPUT_GRAD if kind == BACKWARD else kind


@kernel
def choose_recomputed(tables: OrderTables, state: OrderState, first: int, last: int) -> bool:
    """Let those recompute on devices `first` to `last` - 1 that have to, beside those that do in any case.

    False if even that does not fit, or is no order.
    """
    count = np.zeros((tables.stage.shape[0], WEIGHT_GRAD + 1), np.int64)
    for n in range(tables.stage.shape[0]):
        if first <= tables.device[n] < last:
            state.recomputed[tables.stage[n]] = state.wanted[tables.stage[n]] == 1
    for d in range(first, last):
        for x in range(state.lengths[d]):
            code = int64(state.orders[d, x])
            n = code >> 2
            if place_of(code & 3) == INPUT_GRAD:
                state.back[n, count[n, INPUT_GRAD]] = x
                count[n, INPUT_GRAD] += 1
    count[:] = 0
    for d in range(first, last):
        held = int64(0)
        for x in range(state.lengths[d]):
            code = int64(state.orders[d, x])
            m = _count_begun(count, code)
            if m < 0:
                return False
            n, kind, s = code >> 2, code & 3, tables.stage[code >> 2]
            while True:
                v = RECOMPUTED if state.recomputed[s, m] else KEPT
                after = tables.steps[n, v, kind, _AFTER]
                if held + max(tables.steps[n, v, kind, _DURING], after) <= tables.budget[d]:
                    break
                freed = _recompute_last(tables, state, count, d, code, m)
                if freed < 0:
                    return False
                held -= freed
            held += after
    return True


@kernel
def _count_begun(count: Integers, code: int) -> int:
    """Count an action that begins; its microbatch, or -1 if it stands before what it needs."""
    n, kind = code >> 2, code & 3
    m = int64(count[n, place_of(kind)])
    if kind != FORWARD and m >= count[n, INPUT_GRAD if kind == WEIGHT_GRAD else FORWARD]:
        return -1
    if kind == BACKWARD:
        if count[n, WEIGHT_GRAD] != m:
            return -1
        count[n, WEIGHT_GRAD] += 1
    count[n, place_of(kind)] += 1
    return m


@kernel
def _recompute_last(tables: OrderTables, state: OrderState, count: Integers, d: int, code: int, m: int) -> int:
    """Let that microbatch of a device recompute whose backward comes last; the units that frees beside those of `code`.

    `count` [N, 3] are F, I and W begun, `code` and `m` what begins; -1 if none is kept.
    """
    worst, chosen, last = -1, -1, -1
    for k in range(tables.stage.shape[0]):
        if (
            tables.device[k] != d
            or tables.steps[k, KEPT, FORWARD, _AFTER] == tables.steps[k, RECOMPUTED, FORWARD, _AFTER]
        ):
            continue
        for j in range(count[k, INPUT_GRAD], count[k, FORWARD]):
            place = state.back[k, j] + (FAR if state.wanted[tables.stage[k], j] == 0 else 0)
            if not state.recomputed[tables.stage[k], j] and place > last:
                worst, chosen, last = k, j, place
    if worst < 0:
        return -1
    state.recomputed[tables.stage[worst], chosen] = True
    if code == 4 * worst + FORWARD and chosen == m:
        return 0
    return int64(tables.steps[worst, KEPT, FORWARD, _AFTER] - tables.steps[worst, RECOMPUTED, FORWARD, _AFTER])


@kernel
def play_orders(tables: OrderTables, state: OrderState, limit: float) -> tuple[int, int]:
    """(end of the iteration, sum of the devices' ends); FAR if the orders deadlock or end after `limit`."""
    num_devices, num_replicas = state.lengths.shape[0], tables.stage.shape[0]
    position, free = np.zeros(num_devices, np.int64), np.zeros(num_devices, np.int64)
    count = np.zeros((num_replicas, WEIGHT_GRAD + 1), np.int64)
    state.arrived[:] = 0
    for n in range(num_replicas):
        for side in (ACTIVATIONS, GRADIENTS):
            state.missing[n, side] = tables.waits[n, side]
    is_dirty, dirty, num_dirty = np.ones(num_devices, np.bool_), np.arange(num_devices), int64(num_devices)
    makespan = int64(0)
    while num_dirty > 0:
        num_dirty -= 1
        d = dirty[num_dirty]
        is_dirty[d] = False
        while position[d] < state.lengths[d]:
            code = int64(state.orders[d, position[d]])
            n, kind = code >> 2, code & 3
            m, side = int64(count[n, place_of(kind)]), ACTIVATIONS if kind == FORWARD else GRADIENTS
            if kind != WEIGHT_GRAD:
                if state.missing[n, side, m] > 0:
                    break
                free[d] = max(free[d], state.arrived[n, side, m])
            free[d] += tables.ticks[n, RECOMPUTED if state.recomputed[tables.stage[n], m] else KEPT, kind]
            state.ended[n, kind, m] = free[d]
            makespan = max(makespan, free[d] + tables.closing[tables.stage[n]])
            if makespan > limit:
                return FAR, FAR
            position[d] += 1
            count[n, place_of(kind)] += 1
            if kind != WEIGHT_GRAD:
                for f in range(tables.first[2 * n + side], tables.first[2 * n + side + 1]):
                    e = _arrive(tables, state, f, side, m, int64(free[d]))
                    if e != d and not is_dirty[e]:
                        is_dirty[e], dirty[num_dirty] = True, e
                        num_dirty += 1
    for d in range(num_devices):
        if position[d] < state.lengths[d]:
            return FAR, FAR
    return makespan, int64(np.sum(free))


@kernel
def _arrive(tables: OrderTables, state: OrderState, f: int, side: int, m: int, end: int) -> int:
    """Count transfer f, which leaves at `end`, as one that comes; gives the device of its receiver."""
    n = tables.receiver[f]
    state.missing[n, side, m] -= 1
    state.arrived[n, side, m] = max(state.arrived[n, side, m], end + tables.moving[f])
    return int64(tables.device[n])


@kernel
def anneal_orders(
    tables: OrderTables, state: OrderState, iterations: int, seed: int, temperatures: tuple[float, float]
) -> int:
    """Improve the orders, and which microbatches are wanted to recompute, in place; gives their end.

    `temperatures`: the first and the last, in ticks. Only the device of a move has to be looked at again, unless stages
    have several.
    """
    np.random.seed(seed)
    num_devices, is_single = state.lengths.shape[0], tables.stage.shape[0] == state.wanted.shape[0]
    energy, best, least = np.inf, int64(FAR), np.inf
    best_orders, best_wanted, before = state.orders.copy(), state.wanted.copy(), state.recomputed.copy()
    for step in range(iterations + 1):
        temperature = temperatures[0] + (temperatures[1] - temperatures[0]) * step / (iterations + 1)
        move = _draw_move(state) if step > 0 else (-1, 0, 0, 0)
        limit = energy - temperature * np.log(1.0 - np.random.random())
        _apply(state, move)
        end, ends, d = int64(FAR), int64(FAR), move[0] if move[0] >= 0 else int64(tables.device[move[1]])
        is_one = is_single and step > 0
        if choose_recomputed(tables, state, d if is_one else 0, d + 1 if is_one else num_devices):
            end, ends = play_orders(tables, state, limit)
        found = end + _DRIFT * ends / num_devices
        if end < FAR and found <= limit:
            energy = found
            before[:] = state.recomputed
            if found < least:
                best, least = end, found
                best_orders[:], best_wanted[:] = state.orders, state.wanted
        elif step == 0:
            break
        else:
            _apply(state, (move[0], move[2], move[1], 0) if move[0] >= 0 else (move[0], move[1], move[2], -move[3]))
            state.recomputed[:] = before
    state.orders[:], state.wanted[:] = best_orders, best_wanted
    choose_recomputed(tables, state, 0, num_devices)
    return best


@kernel
def _draw_move(state: OrderState) -> tuple[int, int, int, int]:
    """(device, place, new place, 0) of an action; or (-2, stage, microbatch, what is added to how it is wanted)."""
    if np.random.random() < _WANTED_SHARE:
        s, m = np.random.randint(state.wanted.shape[0]), np.random.randint(state.wanted.shape[1])
        to = (state.wanted[s, m] + 1 + np.random.randint(1, 3)) % 3 - 1
        return -2, s, m, to - state.wanted[s, m]
    d = np.random.randint(state.lengths.shape[0])
    if state.lengths[d] < 2:
        return -1, 0, 0, 0
    x = np.random.randint(state.lengths[d])
    by = 1 + int(np.random.exponential(_MEAN_SHIFT))
    y = min(max(x + (by if np.random.random() < 0.5 else -by), 0), state.lengths[d] - 1)
    return d, x, y, 0


@kernel
def _apply(state: OrderState, move: tuple[int, int, int, int]) -> None:
    """Make a move; for those of an action, with its places exchanged, undo it."""
    d, x, y, more = move
    if d == -2:
        state.wanted[x, y] += more
    if d < 0:
        return
    order = state.orders[d]
    code = order[x]
    while x < y:
        order[x] = order[x + 1]
        x += 1
    while x > y:
        order[x] = order[x - 1]
        x -= 1
    order[y] = code
