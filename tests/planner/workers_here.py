"""Workers whose tasks are pickled and done at once, in this process."""

import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from solver_models.local_search.portable_tasks import PortableTask


class WorkersHere:
    """`change` makes of what a task found what comes back; None where the task is left out."""

    def __init__(self, num_workers: int = 2, *, change: Callable[[Any], Any] = lambda found: found) -> None:
        self.num_workers, self.num_tasks, self.change = num_workers, 0, change

    def submit(
        self, task: PortableTask, *, may_start: Callable[[], bool], is_over: Callable[[], bool]
    ) -> "Future[tuple[Any, float] | None]":
        future: Future[tuple[Any, float] | None] = Future()
        if is_over() or not may_start():
            future.set_result(None)
            return future
        found = self.change(pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task))())))
        self.num_tasks += 1
        future.set_result((found, 0.0))
        return future
