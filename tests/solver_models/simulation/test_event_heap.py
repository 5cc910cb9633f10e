"""The events of a schedule, in order: tests of solver_models/simulation/event_heap.py."""

from hypothesis import given
from hypothesis import strategies as st

from solver_models.simulation.event_heap import AHEAD, CLOCK, NEXT, heap_pop, heap_push, make_heap


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**62)), max_size=40))
def test_events_come_in_order(events: list[tuple[int, int]]):
    """Tests that the heap gives back what was put in, by time, then by key."""
    heap = make_heap(len(events))
    for time, key in events:
        heap_push(heap, time, key)
    found = []
    while heap[CLOCK, AHEAD] > 0:
        found.append(tuple(heap[NEXT].tolist()))
        heap_pop(heap)
    assert found == sorted(events)
