"""Tells waiting requests that a job has changed: one look at the store for all of them together."""

import asyncio
from asyncio import to_thread
from collections.abc import Callable, Sequence

LOOK_S = 0.25
"""How often the store is looked at while anybody waits."""

Look = Callable[[Sequence[str]], dict[str, int]]
"""Versions of jobs by their ids."""


class Hub:
    """Waiters by job; `run` is a task of the event loop."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._seen: dict[str, int] = {}
        self._is_closed = False

    async def wait(self, job_id: str, version: int, *, timeout_s: float) -> None:
        """Returns when the job is no longer at `version`, at the latest after `timeout_s`."""
        if self._is_closed or self._seen.get(job_id, version) > version:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, set()).add(future)
        self._seen[job_id] = min(self._seen.get(job_id, version), version)
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            pass
        finally:
            self._leave(job_id, future)

    def _leave(self, job_id: str, future: "asyncio.Future[None]") -> None:
        waiting = self._waiters.get(job_id, set())
        waiting.discard(future)
        if not waiting:
            self._waiters.pop(job_id, None)
            self._seen.pop(job_id, None)

    async def run(self) -> None:
        """Looks for as long as the service lives."""
        while not self._is_closed:
            await asyncio.sleep(LOOK_S)
            if self._waiters:
                watched = list(self._waiters)
                try:
                    versions = await to_thread(self._look, watched)
                except Exception:  # the store is away for a moment; those who wait look for themselves in the end
                    continue
                for job_id in watched:
                    if versions.get(job_id, 2**62) > self._seen.get(job_id, 2**62):
                        self.wake(job_id)

    def wake(self, job_id: str) -> None:
        """Let those who wait for the job look for themselves."""
        for future in list(self._waiters.get(job_id, ())):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Wake and release everybody who waits."""
        self._is_closed = True
        for job_id in list(self._waiters):
            self.wake(job_id)
