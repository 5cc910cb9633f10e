"""The seam: what the doors and the workers ask of whatever keeps the jobs."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from api.jobs.job import DamagedError, Event, Island, Job, NewJob, Outcome, ProgressUpdate, Quota, Search
from api.jobs.stores.islands import Islands


class IdempotencyConflictError(Exception):
    """The same idempotency key came with another body."""


class QuotaError(Exception):
    """The tenant has as much as it may; `code` names the limit and `most` says how much that is."""

    def __init__(self, code: str, most: int) -> None:
        super().__init__(f"{code}: {most:,}")
        self.code, self.most = code, most


class StoreFullError(Exception):
    """There is no room to write what was asked for."""


class GivenUpError(Exception):
    """Housekeeping took longer than others may wait for it; nothing of the transaction was done."""


def _failures() -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = [sqlite3.Error, StoreFullError, DamagedError, GivenUpError]
    try:
        import psycopg
    except ImportError:  # the extra `postgres` is not installed
        return tuple(found)
    return (*found, psycopg.Error)


STORE_FAILURES = _failures()
"""What a store raises that is full, damaged or cannot be reached: not our mistake, and perhaps over in a moment."""


OPENING_S = 60.0
"""How long a store is waited for that goes away while a process starts, after it was there."""

_T = TypeVar("_T")


def persistently(act: Callable[[], _T], *, seconds: float) -> _T:
    """Do it, again and again for so long while the store is away; what was done all the same is not done twice."""
    until = time.monotonic() + seconds
    while True:
        try:
            return act()
        except DamagedError:
            raise
        except STORE_FAILURES:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


class JobStore(Protocol):
    """Keeps jobs, their best plans and their stories; every method is one transaction, safe from any thread."""

    def submit(
        self, job: NewJob, *, idempotency_key: str | None = None, body_sha256: str = "", quota: Quota | None = None
    ) -> tuple[Job, bool]:
        """Store a job and say whether it is new; the same key and body give the first job again.

        Raises IdempotencyConflictError if the key came with another body, QuotaError beyond the quota.
        """

    def remember(self, tenant: str, *, idempotency_key: str, body_sha256: str, job_id: str) -> None:
        """Let the key stand for a job that is there already; raises IdempotencyConflictError as `submit` does."""

    def recall(self, tenant: str, *, idempotency_key: str, body_sha256: str) -> Job | None:
        """The job that the key was first used for; raises IdempotencyConflictError for another body."""

    def find_answer(self, tenant: str, *, problem_key: str, request_key: str, gap: float, is_exact: bool) -> Job | None:
        """A finished job that answers the same request: the same deterministic one, else one proved to `gap`."""

    def find_plan_like(self, tenant: str, problem_key: str) -> str | None:
        """The best plan of the tenant for the same question, to start from."""

    def claim(self, worker: str, *, lease_s: float) -> Job | None:
        """The next job for `worker`, fair between tenants, or None; expired leases are put back first."""

    def extend(self, job: Job, *, lease_s: float) -> Job:
        """Hold the job for longer; raises LeaseLostError if it is no longer the caller's, as all that follow do."""

    @property
    def islands(self) -> Islands:
        """The searches beside the first one of jobs that want several."""

    def report(self, job: Job, update: ProgressUpdate, *, island: Island | None = None) -> None:
        """Write down a step of the solver, with its plan; `island`: who it is, if it is not who holds the job."""

    def finish(self, job: Job, outcome: Outcome) -> None:
        """End the job."""

    def release(self, job: Job, *, spent_s: float, is_crash: bool) -> None:
        """Give the job back to the queue, with what was found."""

    def put_back(self, *, all_running: bool = False) -> int:
        """Queue jobs whose lease has run out again (or all that run); the answer is how many."""

    def get(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        """A job, or None if there is none or it is another tenant's."""

    def recent(self, tenant: str, *, limit: int) -> Sequence[Job]:
        """The tenant's jobs, latest first."""

    def search(self, tenant: str, query: Search, *, limit: int) -> Sequence[Job]:
        """Those of the tenant's jobs that are meant, latest first."""

    def projects(self, tenant: str) -> Sequence[tuple[str, int, float]]:
        """The tenant's projects: name, number of jobs, when the last one was submitted; latest first."""

    def file(self, job_id: str, tenant: str, *, project: str, tags: str) -> Job | None:
        """File a job under a project and tags."""

    def request_text(self, job_id: str) -> str:
        """The request of a job; raises LeaseLostError if there is no such job any more."""

    def plan_text(self, job_id: str) -> str | None:
        """The best verified plan of a job, final or not."""

    def incumbent_text(self, job_id: str, seq: int) -> str | None:
        """The plan that incumbent event `seq` told of, if it is kept."""

    def incumbents(self, job_id: str) -> Sequence[int]:
        """Numbers of the incumbent events whose plans are kept, ascending."""

    def drawing(self, job_id: str, what: str) -> str | None:
        """What was made of a job's plan before, by its name, or None."""

    def keep_drawing(self, job_id: str, what: str, *, text: str) -> None:
        """Keep what was made of a job's plan, with the job."""

    def events(self, job_id: str, *, after: int) -> Sequence[Event]:
        """The story from `after` on."""

    def versions(self, job_ids: Sequence[str]) -> dict[str, int]:
        """The present version of each job that exists."""

    def stop(self, job_id: str, tenant: str) -> Job | None:
        """Ask to finish now; a job that waits is cancelled, or succeeds with the plan it has."""

    def pin(self, job_id: str, tenant: str, *, is_pinned: bool) -> Job | None:
        """Keep a job from retention, or no longer."""

    def forget(self, job_id: str, tenant: str) -> bool:
        """Remove the job and everything known about it but its idempotency key; the one that runs it loses its
        lease.
        """

    def count_unfinished(self, tenant: str) -> int:
        """Jobs of the tenant that are queued or running."""

    def count_since(self, key_id: str | None, tenant: str, *, seconds: float) -> int:
        """Jobs submitted with the key (or by the tenant, without one) in the last seconds."""

    def count_states(self) -> dict[str, int]:
        """Number of stored jobs per state, of all tenants."""

    def queue_age_s(self) -> float:
        """Seconds since the oldest job that waits was submitted; 0 without one."""

    def expire(self, *, older_than_s: float, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Remove finished jobs that nobody pinned, until it should stop; the answer is how many."""

    def ping(self) -> None:
        """Raise unless the store answers."""

    def close(self) -> None:
        """Release the calling thread's connection."""
