"""What a task knows is a matter of counting, not of which thread was quicker."""

import time
from collections.abc import Callable
from random import Random
from threading import Event

import pytest

from solver_models.local_search.task_window import TaskWindow


def knowledge(num_threads: int, *, rounds: int, seed: int) -> list[tuple[int, ...]]:
    """For every task, the tasks whose results it knew, in the order in which they came; tasks take random times."""
    window, rng = TaskWindow(num_threads, first=2, tasks_per_width=4, most=6), Random(seed)
    known, at_start = list[int](), list[tuple[int, ...]]()

    def make_task(number: int, seconds: float) -> Callable[[], int]:
        def task() -> int:
            time.sleep(seconds)
            return number

        return task

    for _ in range(rounds):
        window.make_room(2)
        at_start += [tuple(known)] * 2
        tasks = [make_task(len(at_start) - 2 + k, rng.random() / 500) for k in range(2)]
        window.start(tasks, lambda number, _: known.append(number))
    window.drain()
    assert known == list(range(2 * rounds))
    window.close()
    return at_start


def test_knowledge_does_not_depend_on_threads():
    """Tests that tasks know the same results, in the same order, on 1, 2, 3 and 16 threads, however long they take."""
    found = [knowledge(num_threads, rounds=20, seed=num_threads) for num_threads in (1, 2, 3, 16)]
    assert all(each == found[0] for each in found)


def test_knowledge_is_what_the_width_says():
    """Tests that rounds are one after the other at first, and that six tasks are under way in the end."""
    found = knowledge(2, rounds=20, seed=0)
    assert [len(known) for known in found[::2]][:6] == [0, 2, 3, 5, 6, 8]
    assert all(known == tuple(range(len(known))) for known in found)
    assert {2 * number + 2 - len(known) for number, known in enumerate(found[::2])} == {2, 3, 4, 5, 6}


def test_a_long_task_keeps_no_thread_waiting():
    """Tests that what ends first is taken in first, where as many tasks are under way from first to last."""
    window, taken, may_end = TaskWindow(2, first=2, most=2), list[int](), Event()
    window.start([lambda: [0, may_end.wait()][0], lambda: 1], lambda number, _: taken.append(number))
    window.make_room(1)
    assert taken == [1]
    may_end.set()
    window.drain()
    assert taken == [1, 0]


def test_tasks_without_time_are_left_out():
    """Tests that a task which would end too late does not run, and that what ran before it is taken in."""
    times, taken = iter([True, False, True]), list[int]()
    window = TaskWindow(1, first=9, has_time=lambda _: next(times))
    window.start([lambda: 0, lambda: 1, lambda: 2], lambda number, _: taken.append(number))
    window.drain()
    assert taken == [0, 2]


def test_seconds_are_those_of_the_owner():
    """Tests that seconds are counted for whoever started a task, and that its errors reach the caller."""
    window = TaskWindow(2)
    for owner in ("one", "other"):
        window.owner = owner
        window.start([lambda: time.sleep(0.01)], lambda _, seconds: None)
    window.owner = ""
    assert window.map(lambda x: x + 1, [1, 2]) == [2, 3]
    window.drain()
    assert min(window.seconds["one"], window.seconds["other"]) >= 0.01
    window.start([lambda: 1 // 0], lambda _, seconds: None)
    with pytest.raises(ZeroDivisionError):
        window.drain()
