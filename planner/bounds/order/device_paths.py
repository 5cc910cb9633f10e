"""What a stage replica alone on its devices can do: paths from one state of its memory to the next, and their prices.

Proof. Play a plan as `cell_rows` does. At most one action of a stage replica that has its devices to itself runs at a
time, so that its starts are a sequence. Between two of them it has so many kept microbatches whose I has not ended,
recomputing ones whose I has not, and W to run. A start changes one number after its duration, and the row of memory at
that moment says whether it is allowed. In the end none is left. So the counts are those of one path, and what they add
up to at any prices of starts is at least the price of the cheapest path.

Windows. An action begins after what its microbatch needs elsewhere, and so that what follows is done in time. So paths
whose starts lie outside of such windows are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from planner.bounds.minimum_costs import Integers

F_KEPT, F_RECOMPUTED, I_KEPT, I_RECOMPUTED, W = range(5)
"""Kinds of starts, as columns of the time-indexed bound are numbered."""

MOST_STATES = 2_000
"""Of a graph, at most; certificates rely on it."""
_LARGEST = 1 << 62
"""Half of it stands for no path; no price comes near a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """What a stage replica holds of a microbatch, in units; pairs are of what is kept and of what recomputes."""

    room: int
    held: tuple[int, int]
    """From F to the end of I."""
    during: tuple[int, int]
    """More of it while I runs."""
    waiting: int
    """From I to the end of W."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMove:
    """Starts of one kind: from which states to which, after so many cells."""

    kind: int
    cells: int
    source: Integers
    target: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStates:
    """States of a stage replica, of which the first has nothing in flight, and moves between them."""

    num_states: int
    moves: tuple[StateMove, ...]

    def least_price(
        self, prices: Sequence[Sequence[int]], *, cells: int, windows: Sequence[tuple[int, int]]
    ) -> int | None:
        """The cheapest path from cell 0 to the last, in integers; None if sums may exceed 64 bits.

        `prices`: [kind][cell] of a start. `windows`: the first and the last cell at which each kind may start.
        """
        largest = max((abs(price) for own in prices for price in own), default=0)
        if (largest + 1) * (cells + 2) >= _LARGEST // 4:
            return None
        table = np.array(prices, dtype=np.int64)
        least = np.full((cells + 1, self.num_states), _LARGEST // 2)
        least[0, 0] = 0
        for t in range(cells):
            here = least[t]
            np.minimum(least[t + 1], here, out=least[t + 1])
            for move in self.moves:
                end, (first, last) = t + move.cells, windows[move.kind]
                if end <= cells and first <= t <= last:
                    row = least[end]
                    row[move.target] = np.minimum(row[move.target], here[move.source] + table[move.kind, t])
        return int(least[cells, 0])


def make_graph(
    memory: ReplicaMemory, durations: Sequence[int], *, count: int, is_joined: bool = False
) -> MemoryStates | None:
    """States of at most `count` microbatches. `durations`: of each kind, in cells; no W if that of W is 0.

    What takes no memory is not counted. `is_joined`: states that take as much memory are one. None if an F or an I
    takes no time, or there are too many states.
    """
    if min(durations[:W]) < 1 or memory.room < 0:
        return None
    waiting = memory.waiting if durations[W] else 0
    sizes = (*memory.held, waiting)
    limits = [min(count, memory.room // size) if size else 0 for size in sizes]
    if (limits[0] + 1) * (limits[1] + 1) * (limits[2] + 1) > 8 * MOST_STATES:
        return None

    def used(state: tuple[int, ...]) -> int:
        return sum(number * size for number, size in zip(state, sizes, strict=True))

    states = [state for state in product(*(range(most + 1) for most in limits)) if used(state) <= memory.room]
    names = {level: place for place, level in enumerate(sorted({used(state) for state in states}))}
    numbers = {state: names[used(state)] if is_joined else number for number, state in enumerate(states)}
    num_states = len(names) if is_joined else len(states)
    if num_states > MOST_STATES:
        return None
    moves = []
    for kind in range(5 if durations[W] else 4):
        change, more = _change(kind), memory.during[kind - I_KEPT] if kind in (I_KEPT, I_RECOMPUTED) else 0
        by = tuple(each if size else 0 for each, size in zip(change, sizes, strict=True))
        after = {state: tuple(a + b for a, b in zip(state, by, strict=True)) for state in states}
        begun = [state for state in states if after[state] in numbers and used(state) + more <= memory.room]
        arcs = sorted({(numbers[state], numbers[after[state]]) for state in begun})
        if arcs:
            source, target = np.array(arcs).T
            moves.append(StateMove(kind=kind, cells=durations[kind], source=source, target=target))
    return MemoryStates(num_states=num_states, moves=tuple(moves))


def _change(kind: int) -> tuple[int, int, int]:
    """What an action of a kind adds to the kept ones in flight, to those that recompute, and to the W to run."""
    return ((1, 0, 0), (0, 1, 0), (-1, 0, 1), (0, -1, 1), (0, 0, -1))[kind]
