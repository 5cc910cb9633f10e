"""Tasks of a search on any number of threads, such that their number changes nothing but the time.

A task knows the results of all tasks that were started long enough before it, and of no others, whether they have
ended or not. How long is a matter of counting: `width` tasks are under way at most. Where the answer must not depend on
the number of threads, that is more the more there have been, so that what a task does not know stays a small part of
all that was found; where only time counts, it is what keeps the threads busy (`planner.planning.search_state`).

    task    0   1   2   3   4   5
            `- known -' `way'   ^ starts      width 3: it knows what 0, 1 and 2 found, whether 3 and 4 have ended or not
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from solver_models.local_search.portable_tasks import PortableTask, Workers

MOST = 64
"""Most tasks under way."""
FIRST = 2
"""Tasks under way at first; a task knows nothing of those that are."""
TASKS_PER_WIDTH = 64
"""Started tasks that make room for one more under way."""

Given = TypeVar("Given")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A task under way."""

    future: "Future[tuple[Any, float] | None]"
    """What it found and the seconds it took; None if it was left out for want of time."""
    take: Callable[[Any, float], None]
    """Who takes in its result and the seconds it took."""
    owner: str
    """On whose behalf it runs."""


class TaskWindow:
    """Tasks under way, and their results: in the order in which they were started, or where only time counts, ended."""

    def __init__(
        self,
        num_threads: int = 1,
        *,
        first: int = FIRST,
        most: int = MOST,
        tasks_per_width: int = TASKS_PER_WIDTH,
        has_time: Callable[[float], bool] | None = None,
        workers: Workers | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_time` is asked, with the seconds that a task is expected to take, just before it runs.

        `workers`: who does portable tasks, if not the threads; what they do is left once `is_over`. With as many tasks
        under way from `first` to last only time counts, and their results are taken in as they come.
        """
        self._first, self._most, self._tasks_per_width = first, most, tasks_per_width
        self.num_started = 0
        self.owner = ""
        """On whose behalf tasks are started."""
        self.seconds: dict[str, float] = {}
        """Seconds of all threads, by owner."""
        self.waited_s = 0.0
        """Seconds in which the caller waited for results."""
        self._has_time, self._is_over = has_time, is_over
        self._is_ordered = first != most
        self._workers = workers
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="search")
        self._running: deque[_Started] = deque()

    @property
    def width(self) -> int:
        """Tasks that may be under way once the next ones are started."""
        return min(self._most, self._first + self.num_started // self._tasks_per_width)

    def start(
        self, tasks: Sequence[Callable[[], Found]], take: Callable[[Found, float], None], *, expected_s: float = 0.0
    ) -> None:
        """Start the tasks of one round; `take` gets their results and seconds when later tasks need to know them.

        Call `make_room` first, and then decide what the tasks begin with: so it does not depend on threads.
        """
        for task in tasks:
            future = self._submit(task, expected_s)
            self._running.append(_Started(future=future, take=take, owner=self.owner))
        self.num_started += len(tasks)

    def _submit(self, task: Callable[[], Found], expected_s: float) -> "Future[tuple[Any, float] | None]":
        if self._workers is None or not isinstance(task, PortableTask):
            return self._executor.submit(self._run, task, expected_s)
        return self._workers.submit(task, may_start=partial(self._may_start, expected_s), is_over=self._is_over)

    def make_room(self, num_tasks: int) -> None:
        """Take in the oldest results until so many tasks may be started."""
        while self._running and len(self._running) + num_tasks > self.width:
            self._take_oldest()

    def drain(self) -> None:
        """Take in all results."""
        while self._running:
            self._take_oldest()

    def do_all(self, tasks: Sequence[Callable[[], Found]]) -> list[Found | None]:
        """What all tasks find, side by side; None where there was no time for one."""
        found: list[Found | None] = [None] * len(tasks)
        futures = [self._submit(task, 0.0) for task in tasks]
        for number, future in enumerate(futures):
            ended = self._result_of(future)
            if ended is not None:
                found[number] = ended[0]
                self._count(self.owner, ended[1])
        return found

    def map(self, call: Callable[[Given], Found], items: Iterable[Given]) -> list[Found]:
        """`call` on every item, side by side; behind the tasks that are under way."""
        futures = [self._executor.submit(_timed, call, item) for item in items]
        begin = time.monotonic()
        ended = [future.result() for future in futures]
        self.waited_s += time.monotonic() - begin
        self._count(self.owner, sum(seconds for _, seconds in ended))
        return [found for found, _ in ended]

    def close(self) -> None:
        """Forget what has not begun, and release the threads."""
        self._running.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _take_oldest(self) -> None:
        """Where results are taken in as they come: the first that has ended."""
        number, begin = 0, time.monotonic()
        if not self._is_ordered:
            number = _first_of([each.future for each in self._running])
            self.waited_s += time.monotonic() - begin
        oldest = self._running[number]
        del self._running[number]
        ended = self._result_of(oldest.future)
        if ended is not None:
            self._count(oldest.owner, ended[1])
            oldest.take(*ended)

    def _result_of(self, future: "Future[tuple[Any, float] | None]") -> tuple[Any, float] | None:
        begin = time.monotonic()
        ended = future.result()
        self.waited_s += time.monotonic() - begin
        return ended

    def _may_start(self, expected_s: float) -> bool:
        return self._has_time is None or self._has_time(expected_s)

    def _run(self, task: Callable[[], Found], expected_s: float) -> tuple[Found, float] | None:
        return _timed(lambda _: task(), None) if self._may_start(expected_s) else None

    def _count(self, owner: str, seconds: float) -> None:
        self.seconds[owner] = self.seconds.get(owner, 0.0) + seconds


def _first_of(futures: "Sequence[Future[Any]]") -> int:
    wait(futures, return_when=FIRST_COMPLETED)
    return next(number for number, future in enumerate(futures) if future.done())


def _timed(call: Callable[[Given], Found], item: Given) -> tuple[Found, float]:
    begin = time.monotonic()
    found = call(item)
    return found, time.monotonic() - begin
