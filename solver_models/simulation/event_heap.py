r"""The events of a schedule, in order: a binary heap of (time, key) rows.

Row 0 is the clock: the present time, and how many events lie ahead. They are the rows from 1 on; the parent of row x is
row x // 2, and no row comes before its parent: the first event is always row 1.

            row 1               pushed: a free row at the end rises until its parent comes before it
           /     \
       row 2     row 3          popped: the last row sinks from row 1 below whichever child comes first
      /     \    /
   row 4  row 5 row 6

A key is one integer, so that between equal times one comparison decides:

    order 2 | stage 11 | microbatch + 1: 21 | direction 1 | index 23 | code 3     bits, 61 in all

`order` is 0 for ends and arrivals, 1 for transfers that want their links, 2 for devices that waited for those.
"""

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import Integers

TIME, KEY = 0, 1
"""Columns of the events."""

CLOCK, NEXT = 0, 1
"""Rows of the heap: what is now, and the first event."""

NOW, AHEAD = 0, 1
"""Columns of the clock: the present time, and the number of events."""

ARRIVAL, SEND, RESUME = 4, 5, 6
"""Codes of the events that are not the end of an action (whose code is its kind)."""

FIRST_SEND = 1 << 59
"""Keys from here on are not of order 0: they come after every end and arrival of the same time."""

MOST_STAGES, MOST_MICROBATCHES, MOST_TRANSFERS = (1 << 11) - 1, (1 << 21) - 2, (1 << 23) - 1
"""What a key has room for: stages, microbatches, and stage replicas or transfers."""


@kernel
def event_key(order: int, stage: int, microbatch: int, direction: int, index: int, code: int) -> int:
    """Everything that decides between events of the same time, and what the event is; microbatches from -1 on."""
    return (((((order << 11 | stage) << 21 | (microbatch + 1)) << 1 | direction) << 23 | index) << 3) | code


@kernel
def event_of(key: int) -> tuple[int, int, int, int]:
    """(code, index, direction, microbatch) of a key."""
    return key & 7, (key >> 3) & 0x7FFFFF, (key >> 26) & 1, ((key >> 27) & 0x1FFFFF) - 1


@kernel
def make_heap(capacity: int) -> Integers:
    """[capacity + 1, 2] at time 0, with room for so many events."""
    heap = np.empty((capacity + 1, 2), np.int64)
    heap[CLOCK, NOW], heap[CLOCK, AHEAD] = 0, 0
    return heap


@kernel
def heap_push(heap: Integers, time: int, key: int) -> None:
    """Insert an event."""
    heap[CLOCK, AHEAD] += 1
    at = heap[CLOCK, AHEAD]
    while at > NEXT:
        parent = at >> 1
        if heap[parent, TIME] < time or (heap[parent, TIME] == time and heap[parent, KEY] <= key):
            break
        heap[at, TIME], heap[at, KEY] = heap[parent, TIME], heap[parent, KEY]
        at = parent
    heap[at, TIME], heap[at, KEY] = time, key


@kernel
def heap_pop(heap: Integers) -> int:
    """Remove the first event, which the caller has read at `heap[NEXT]`; gives its key."""
    last, first = heap[CLOCK, AHEAD], heap[NEXT, KEY]
    heap[CLOCK, AHEAD] = last - 1
    time, key = heap[last, TIME], heap[last, KEY]
    at = NEXT
    while True:
        child = 2 * at
        if child >= last:
            break
        right = child + 1
        if right < last and (
            heap[right, TIME] < heap[child, TIME]
            or (heap[right, TIME] == heap[child, TIME] and heap[right, KEY] < heap[child, KEY])
        ):
            child = right
        if time < heap[child, TIME] or (time == heap[child, TIME] and key <= heap[child, KEY]):
            break
        heap[at, TIME], heap[at, KEY] = heap[child, TIME], heap[child, KEY]
        at = child
    heap[at, TIME], heap[at, KEY] = time, key
    return first
