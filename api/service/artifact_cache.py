"""What is made of finished plans: made once, by one process, however many ask, and kept with the job."""

import asyncio
from asyncio import to_thread
from collections.abc import Awaitable, Callable

from api.jobs.stores.sql_store import SqlStore
from planner.release import RELEASE

_MOST_KEPT_BYTES = 32 * 2**20
"""What is larger is made anew each time."""


class Gallery:
    """Views, traces, reports and exports."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._running: dict[tuple[str, str], asyncio.Task[str]] = {}
        self.num_made = 0

    async def get(self, job_id: str, what: str, *, make: Callable[[], Awaitable[str]]) -> str:
        """The drawing of that name: the one that is kept, the one that somebody is making, or what `make` makes.

        A new release makes all of them anew. The one that goes away before it is there does not take it from the
        others.
        """
        name = f"{what}@{RELEASE}"
        task = self._running.get((job_id, name))
        if task is None:
            task = asyncio.create_task(self._find_or_make(job_id, name, make=make))
            self._running[job_id, name] = task
            task.add_done_callback(lambda _: self._running.pop((job_id, name), None))
        return await asyncio.shield(task)

    async def _find_or_make(self, job_id: str, name: str, *, make: Callable[[], Awaitable[str]]) -> str:
        kept = await to_thread(self._store.drawing, job_id, name)
        if kept is not None:
            return kept
        text = await make()
        self.num_made += 1
        if len(text) <= _MOST_KEPT_BYTES:
            await to_thread(self._store.keep_drawing, job_id, name, text=text)
        return text
