"""Paths of a stage replica alone on its devices: tests of planner/bounds/order/device_paths.py."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from planner.bounds.order.device_paths import (
    F_KEPT,
    F_RECOMPUTED,
    I_KEPT,
    I_RECOMPUTED,
    MOST_STATES,
    ReplicaMemory,
    W,
    make_graph,
)
from tests.long_runs import shortened

State = tuple[int, int, int]


def every_schedule(
    memory: ReplicaMemory, durations: Sequence[int], *, cells: int, state: State = (0, 0, 0), at: int = 0
) -> Iterator[tuple[tuple[int, int], ...]]:
    """All sequences of (kind, cell) that fit and leave nothing, by trying what can start and waiting."""
    if at == cells:
        if state == (0, 0, 0):
            yield ()
        return
    for rest in every_schedule(memory, durations, cells=cells, state=state, at=at + 1):
        yield rest
    kept, recomputed, waiting = state
    used = kept * memory.held[0] + recomputed * memory.held[1] + waiting * memory.waiting
    room = memory.room - used
    allowed = {
        F_KEPT: (room >= memory.held[0], (kept + 1, recomputed, waiting)),
        F_RECOMPUTED: (room >= memory.held[1], (kept, recomputed + 1, waiting)),
        I_KEPT: (kept > 0 and room >= memory.during[0], (kept - 1, recomputed, waiting + 1)),
        I_RECOMPUTED: (recomputed > 0 and room >= memory.during[1], (kept, recomputed - 1, waiting + 1)),
        W: (waiting > 0, (kept, recomputed, waiting - 1)),
    }
    for kind, (is_allowed, after) in allowed.items():
        end, (a, b, c) = at + durations[kind], after
        fits = a * memory.held[0] + b * memory.held[1] + c * memory.waiting <= memory.room
        if is_allowed and fits and end <= cells:
            for rest in every_schedule(memory, durations, cells=cells, state=after, at=end):
                yield ((kind, at), *rest)


def test_the_cheapest_path_is_the_cheapest_schedule():
    """Tests that where everything takes memory, the least price is that of all schedules that fit in their windows."""
    for seed in range(shortened(40, whole=1_000)):
        rng = Random(seed)
        sizes = [rng.randint(1, 4) for _ in range(3)]
        memory = ReplicaMemory(
            room=rng.randint(2, 9), held=(sizes[0], sizes[1]), during=(rng.randint(0, 2), rng.randint(0, 4)),
            waiting=sizes[2],
        )  # fmt: skip
        durations, cells = [rng.randint(1, 2) for _ in range(5)], rng.randint(3, 7)
        prices = [[rng.randint(-9, 5) for _ in range(cells + 1)] for _ in range(5)]
        graph = make_graph(memory, durations, count=cells)
        assert graph is not None
        windows = [(rng.randint(-1, 1), cells - rng.randint(0, 2)) for _ in range(5)]
        schedules = every_schedule(memory, durations, cells=cells)
        timely = (each for each in schedules if all(windows[kind][0] <= t <= windows[kind][1] for kind, t in each))
        least = min(sum(prices[kind][t] for kind, t in schedule) for schedule in timely)
        assert graph.least_price(prices, cells=cells, windows=windows) == least, f"seed {seed}"


def test_what_takes_no_memory_is_not_counted():
    """Tests that a checkpoint of no bytes makes no states, so that its I costs what it costs anywhere."""
    memory = ReplicaMemory(room=4, held=(2, 0), during=(0, 2), waiting=1)
    graph = make_graph(memory, (1, 1, 1, 2, 1), count=8)
    assert graph is not None
    assert graph.num_states == 9
    prices = [[0] * 4 for _ in range(5)]
    prices[I_RECOMPUTED] = [-5, -7, 0, 0]
    assert graph.least_price(prices, cells=4, windows=[(0, 4)] * 5) == -7


def test_what_has_no_graph():
    """Tests that actions of no time, no room and too many states make none, and sums beyond 64 bits no price."""
    memory = ReplicaMemory(room=4, held=(2, 0), during=(0, 2), waiting=1)
    assert make_graph(memory, (1, 1, 0, 1, 1), count=8) is None
    assert make_graph(ReplicaMemory(room=-1, held=(1, 1), during=(0, 0), waiting=1), (1,) * 5, count=8) is None
    large = ReplicaMemory(room=10 * MOST_STATES, held=(1, 0), during=(0, 0), waiting=1)
    assert make_graph(large, (1,) * 5, count=MOST_STATES) is None
    graph = make_graph(memory, (1, 1, 1, 1, 0), count=8)
    assert graph is not None
    assert {move.kind for move in graph.moves} == {F_KEPT, F_RECOMPUTED, I_KEPT, I_RECOMPUTED}
    assert graph.least_price([[1 << 60] * 3] * 5, cells=2, windows=[(0, 2)] * 5) is None


@pytest.mark.parametrize("count", [1, 2])
def test_no_more_are_in_flight_than_there_are(count: int):
    """Tests that states stop at the number of microbatches."""
    graph = make_graph(ReplicaMemory(room=100, held=(1, 1), during=(0, 0), waiting=1), (1,) * 5, count=count)
    assert graph is not None
    assert graph.num_states == (count + 1) ** 3
