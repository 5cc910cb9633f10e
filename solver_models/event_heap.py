r"""The events of a game, in order: a binary heap of (time, key) rows.

The parent of row x is row (x - 1) // 2, and no row comes before its parent: the first event is always row 0.

            row 0               pushed: a free row at the end rises until its parent comes before it
           /     \
       row 1     row 2          popped: the last row sinks from row 0 below whichever child comes first
      /     \    /
   row 3  row 4 row 5

A key is one integer, so that between equal times one comparison decides:

    order 2 | stage 11 | microbatch + 1: 21 | direction 1 | index 23 | code 3     bits, 61 in all

`order` is 0 for ends and arrivals, 1 for transfers that want their links, 2 for devices that waited for those.
"""

from solver_models.compiled import kernel
from solver_models.instance import Integers

TIME, KEY = 0, 1
"""Columns of the heap."""

ARRIVAL, SEND, RESUME = 4, 5, 6
"""Codes of the events that are not the end of an action (whose code is its kind)."""

FIRST_SEND = 1 << 59
"""Keys from here on are not of order 0: they come after every end and arrival of the same time."""

MOST_STAGES, MOST_MICROBATCHES, MOST_FLOWS = (1 << 11) - 1, (1 << 21) - 2, (1 << 23) - 1
"""What a key has room for: stages, microbatches, and lanes or flows."""


@kernel
def event_key(order: int, stage: int, microbatch: int, way: int, index: int, code: int) -> int:
    """Everything that decides between events of the same time, and what the event is; microbatches from -1 on."""
    return (((((order << 11 | stage) << 21 | (microbatch + 1)) << 1 | way) << 23 | index) << 3) | code


@kernel
def event_of(key: int) -> tuple[int, int, int, int]:
    """(code, index, direction, microbatch) of a key."""
    return key & 7, (key >> 3) & 0x7FFFFF, (key >> 26) & 1, ((key >> 27) & 0x1FFFFF) - 1


@kernel
def heap_push(heap: Integers, size: int, time: int, key: int) -> None:
    """Insert (time, key) into the binary heap `heap` [capacity, 2] of `size` events."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent, TIME] < time or (heap[parent, TIME] == time and heap[parent, KEY] <= key):
            break
        heap[at, TIME], heap[at, KEY] = heap[parent, TIME], heap[parent, KEY]
        at = parent
    heap[at, TIME], heap[at, KEY] = time, key


@kernel
def heap_pop(heap: Integers, size: int) -> None:
    """Remove the first of `size` events; the caller has read it at heap[0]."""
    time, key = heap[size - 1, TIME], heap[size - 1, KEY]
    last = size - 1
    at = 0
    while True:
        child = 2 * at + 1
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
