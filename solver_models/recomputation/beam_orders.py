"""Orders of a chain of stages of which every microbatch may recompute, by beam search over time.

Times are whole cells. At every cell the stages decide in turn, the last one first: begin something, or wait. Of all
that they could have done by then as many as the beam is wide are kept. Microbatches come in order everywhere, so what a
stage has done is how many of each kind have begun, and which of those in flight recompute.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import Floats, Integers, ShortIntegers

F_KEPT, F_RECOMPUTED, RETURN, REST = range(4)
"""What may begin: F, I as the F of its microbatch was, and W."""
_STAYS, _WAITS = 4, 5
"""A stage that is busy or done, and one that waits a cell."""

MOST_MICROBATCHES = 60
"""Which of those in flight recompute are bits of an integer."""

_FORWARDS, _RETURNED, _FINISHED, _FREE, _ENDS, _SENT, _RETURNS, _HELD, _FLAGS = range(9)
"""Columns of a stage in a node: F, I and W begun; until when it works or waits, and when its last action ends; when its
last activation and gradient arrive; units held once what runs has ended; and a bit per microbatch in flight that
recomputes, the oldest first."""
_COLUMNS = 9

_KEPT, _RECOMPUTED = range(2)
_F, _I, _W = range(3)
_TICKS, _DURING, _AFTER = range(3)
_BUDGET, _HAS_WEIGHT, _FORWARD_LAG, _RETURN_LAG = range(4)


class BeamChain(NamedTuple):
    """P stages in the order of the chain, each alone on its device, and M microbatches."""

    table: Integers
    """[P, 2, 3, 3] by variant and kind (F, I, W): cells, units that it adds while it runs, and from its end on."""
    limits: Integers
    """[P, 4] units of memory, whether there is a W, and cells until its activation and its gradient arrive."""
    num_microbatches: int
    """M."""


class BeamGuide(NamedTuple):
    """Which nodes are kept: those with the least sum over stages of how late they end at least."""

    width: int
    """Nodes."""
    scale: float
    """Cells that a plan takes, about."""
    power: float
    """Of ends in parts of `scale`: the larger, the more the latest stage counts."""
    progress: float
    """Cells by which an F or I that has begun makes a node better."""
    noise: float
    """Random cells that are added."""


@kernel
def _estimate(chain: BeamChain, node: Integers, s: int, guide: BeamGuide) -> float:
    """What a stage adds to the score of a node: when it ends at the earliest, less its progress."""
    table, own, count = chain.table[s], node[s], chain.num_microbatches
    end = own[_FREE] + (count - own[_FORWARDS]) * table[_KEPT, _F, _TICKS]
    end += (count - own[_RETURNED]) * table[_KEPT, _I, _TICKS] + (count - own[_FINISHED]) * table[_KEPT, _W, _TICKS]
    flags = own[_FLAGS]
    while flags:
        end += (flags & 1) * (table[_RECOMPUTED, _I, _TICKS] - table[_KEPT, _I, _TICKS])
        flags >>= 1
    gain = guide.progress * guide.power / guide.scale
    return float((end / guide.scale) ** guide.power - gain * (own[_FORWARDS] + own[_RETURNED]))


@kernel
def _leaves_room(chain: BeamChain, own: Integers, s: int) -> bool:
    """Whether another kept microbatch leaves room for the oldest one that recomputes to do so, behind which it is."""
    table, flags, is_behind = chain.table[s], own[_FLAGS], False
    held = table[_KEPT, _F, _AFTER] + table[_RECOMPUTED, _F, _AFTER] + table[_RECOMPUTED, _I, _DURING]
    for _ in range(own[_FORWARDS] - own[_RETURNED]):
        held += table[flags & 1, _F, _AFTER] if is_behind else 0
        is_behind = is_behind or flags & 1 == 1
        flags >>= 1
    return bool(not is_behind or held <= chain.limits[s, _BUDGET])


@kernel
def _list_options(chain: BeamChain, node: Integers, s: int, t: int) -> int:
    """Bits of what a stage may do at t."""
    own, table, limits = node[s], chain.table[s], chain.limits[s]
    done = own[_FINISHED] if limits[_HAS_WEIGHT] else own[_RETURNED]
    if own[_FREE] > t or done == chain.num_microbatches:
        return 1 << _STAYS
    options, room = 1 << _WAITS, limits[_BUDGET] - own[_HELD]
    forwards, returned, flags = own[_FORWARDS], own[_RETURNED], own[_FLAGS]
    has_gradient = s == len(node) - 1 or node[s + 1, _RETURNED] - (node[s + 1, _RETURNS] > t) > returned
    if returned < forwards and has_gradient and table[flags & 1, _I, _DURING] <= room:
        options |= 1 << RETURN
    has_input = s == 0 or node[s - 1, _FORWARDS] - (node[s - 1, _SENT] > t) > forwards
    if forwards < chain.num_microbatches and has_input:
        if table[_RECOMPUTED, _F, _DURING] <= room:
            options |= 1 << F_RECOMPUTED
        if table[_KEPT, _F, _DURING] <= room and _leaves_room(chain, own, s):
            options |= 1 << F_KEPT
    if limits[_HAS_WEIGHT] and own[_FINISHED] < returned and table[_KEPT, _W, _DURING] <= room:
        options |= 1 << REST
    return int64(options)


@kernel
def _apply(chain: BeamChain, node: Integers, place: tuple[int, int], kind: int) -> None:
    """Begin something at (stage, cell)."""
    s, t = place
    own, table, limits = node[s], chain.table[s], chain.limits[s]
    if kind == _STAYS:
        return
    if kind == _WAITS:
        own[_FREE] = t + 1
        return
    variant, column = int64(0), int64(kind - 1)
    if kind <= F_RECOMPUTED:
        variant, column = int64(kind), int64(0)
        own[_FLAGS] |= variant << (own[_FORWARDS] - own[_RETURNED])
        own[_FORWARDS] += 1
    elif kind == RETURN:
        variant = own[_FLAGS] & 1
        own[_FLAGS] >>= 1
        own[_RETURNED] += 1
    else:
        own[_FINISHED] += 1
    end = t + table[variant, column, _TICKS]
    own[_FREE] = own[_ENDS] = end
    own[_HELD] += table[variant, column, _AFTER]
    if kind <= F_RECOMPUTED:
        own[_SENT] = end + limits[_FORWARD_LAG]
    elif kind == RETURN:
        own[_RETURNS] = end + limits[_RETURN_LAG]


@kernel
def _hash(node: Integers, t: int) -> int:
    """Alike for nodes from which the same can follow."""
    value = int64(1)
    for s in range(node.shape[0]):
        for column in range(_COLUMNS):
            what = node[s, column]
            if _FREE <= column <= _RETURNS:
                what = max(what - t, 0)
            value = value * 1_000_003 + what
        value ^= value >> 29
    return value


@kernel
def _choose(scores: Floats, hashes: Integers, width: int) -> Integers:
    """Numbers of the best candidates, of each that are alike the first."""
    chosen, seen, found = np.empty(width, np.int64), {int64(0)}, 0
    for x in np.argsort(scores):
        if hashes[x] not in seen:
            seen.add(hashes[x])
            chosen[found] = x
            found += 1
            if found == width:
                break
    return chosen[:found]


@kernel
def _is_done(chain: BeamChain, node: Integers, t: int) -> int:
    """1 if all has begun, -1 if nothing runs and nothing ever will, 0 otherwise."""
    done, runs = True, False
    for s in range(node.shape[0]):
        ended = node[s, _FINISHED] if chain.limits[s, _HAS_WEIGHT] else node[s, _RETURNED]
        done = done and ended == chain.num_microbatches
        runs = runs or max(node[s, _ENDS], node[s, _SENT], node[s, _RETURNS]) > t
    return 1 if done else 0 if runs else -1


@kernel
def _orders_of(history: Integers, step: int, node: int, shape: tuple[int, int]) -> ShortIntegers:
    """[P, 3 * M] what each stage begins, in order; -1 beyond the last."""
    stages, longest = shape
    orders, lengths = np.full((stages, longest), -1, np.int32), np.zeros(stages, np.int64)
    for at in range(step - 1, -1, -1):
        code = history[at, node]
        kind, s = code & 7, (code >> 3) & 4095
        if kind < _STAYS:
            orders[s, lengths[s]] = kind
            lengths[s] += 1
        node = code >> 15
    for s in range(stages):
        orders[s, : lengths[s]] = orders[s, : lengths[s]][::-1].copy()
    return orders


@kernel
def search_beam(chain: BeamChain, guide: BeamGuide, seed: int) -> ShortIntegers:
    """[P, 3 * M] what each stage begins, in order (-1: nothing more); [0, 0] where no node comes to the end."""
    np.random.seed(seed)
    stages, most = chain.limits.shape[0], int(2 * guide.scale)
    width, size = guide.width, 1
    nodes = np.zeros((width, stages, _COLUMNS), np.int64)
    estimates = np.zeros((width, stages))
    for s in range(stages):
        estimates[0, s] = _estimate(chain, nodes[0], s, guide)
    history = np.zeros((most * (stages + 1), width), np.int64)
    parents, kinds = np.empty(5 * width, np.int64), np.empty(5 * width, np.int64)
    scores, parts, hashes = np.empty(5 * width), np.empty(5 * width), np.empty(5 * width, np.int64)
    before, step = nodes[0, 0].copy(), 0
    spread = guide.noise * guide.power / guide.scale
    for t in range(most):
        for s in range(stages - 1, -1, -1):
            found, moves = 0, False
            for x in range(size):
                options = _list_options(chain, nodes[x], s, t)
                base = estimates[x].sum() - estimates[x, s]
                for kind in range(6):
                    if options >> kind & 1:
                        moves = moves or kind != _STAYS
                        before[:] = nodes[x, s]
                        _apply(chain, nodes[x], (s, t), kind)
                        parts[found] = _estimate(chain, nodes[x], s, guide)
                        hashes[found] = _hash(nodes[x], t)
                        nodes[x, s] = before
                        parents[found], kinds[found] = x, kind
                        scores[found] = base + parts[found] + spread * np.random.random()
                        found += 1
            if not moves:
                continue
            chosen = _choose(scores[:found], hashes[:found], width)
            size = len(chosen)
            nodes[:size], estimates[:size] = nodes[parents[chosen]], estimates[parents[chosen]]
            for x in range(size):
                _apply(chain, nodes[x], (s, t), kinds[chosen[x]])
                estimates[x, s] = parts[chosen[x]]
                history[step, x] = parents[chosen[x]] << 15 | s << 3 | kinds[chosen[x]]
            step += 1
        alive = np.zeros(size, np.bool_)
        for x in range(size):
            state = _is_done(chain, nodes[x], t)
            if state == 1:
                return _orders_of(history, step, x, (stages, 3 * chain.num_microbatches))
            alive[x] = state == 0
        left = np.flatnonzero(alive)
        if len(left) < size:
            size = len(left)
            nodes[:size], estimates[:size] = nodes[left], estimates[left]
            history[step, :size] = left << 15 | _STAYS
            step += 1
        if not size:
            break
    return np.zeros((0, 0), np.int32)
