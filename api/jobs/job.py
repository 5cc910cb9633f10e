"""The words of a job: its states, what a row of the store says, and what its solver reports."""

import re
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
"""`queued`: waits for a worker; `running`: a worker holds its lease; `succeeded`: there is a verified plan;
`failed`: there is none, and `error` says why; `cancelled`: it was stopped before there was a plan."""

FINISHED = ("succeeded", "failed", "cancelled")
"""States that a job never leaves."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", re.ASCII)
"""A project's name, or a tag."""

MAX_TAGS = 16

MAX_PRIORITY = 10
"""Priorities go from -10 to 10; they order the jobs of one tenant, never those of two."""


class LeaseLostError(Exception):
    """A worker spoke about a job that is no longer its own: it was frozen, or the job was stopped or taken over."""


class DamagedError(Exception):
    """What the store holds is not what was written: cut off, not text, or of another hash; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What is stored when a request is accepted."""

    id: str
    """32 hexadecimal digits."""
    tenant: str
    """Name of the tenant that owns the job."""
    name: str
    """Name of the profile, for lists."""
    request: str
    """Canonical JSON of the validated workload and limits (`api.jobs.request`)."""
    problem_key: str
    """SHA-256 of the question and of the versions that answer it."""
    request_key: str
    """SHA-256 of question, limits, seed and versions."""
    is_deterministic: bool
    """Whether the same request always gives the same plan, byte for byte."""
    priority: int = 0
    """Larger first, within the tenant."""
    is_pinned: bool = False
    """Whether retention leaves it alone."""
    base_id: str | None = None
    """The job that a what-if started from."""
    change: str | None = None
    """The what-if's change, as JSON."""
    key_id: str | None = None
    """The API key that asked."""
    request_id: str | None = None
    """The HTTP request that asked, as it stands in the logs."""
    project: str = ""
    """What the tenant files it under."""
    tags: str = ""
    """Words between spaces, one at either end as well; empty: none."""
    profile_sha256: str | None = None
    """SHA-256 of the profile that it plans for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which of a tenant's jobs are meant; what is None does not matter."""

    project: str | None = None
    tag: str | None = None
    name: str | None = None
    """Part of the profile's name, in any case."""
    model: str | None = None
    """The profile's whole name, letter by letter."""
    sha256: str | None = None
    """What the plan's, or the profile's, SHA-256 begins with."""
    state: str | None = None
    since: float | None = None
    """Submitted then or later, in seconds since 1970."""
    until: float | None = None
    """Submitted before then."""
    after: str | None = None
    """The last job of the page before; behind `@` when it was submitted, which it needs if it is deleted meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a tenant may have in the store; it is counted in the transaction that stores."""

    unfinished_jobs: int
    """Jobs of the tenant that may be queued or running."""
    hourly_jobs: int
    """Jobs that may be submitted within an hour with the key (by the tenant, without one), deleted ones included."""
    stored_bytes: int
    """Bytes of requests, plans and what was made of them that the tenant's jobs may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the store knows it; times are seconds since 1970, durations nanoseconds."""

    id: str
    tenant: str
    name: str
    state: State
    problem_key: str
    request_key: str
    is_deterministic: bool
    priority: int
    is_pinned: bool
    base_id: str | None
    change: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    attempt: int
    """How often it was claimed: the fencing token of the one that holds it."""
    crashes: int
    """How often its solver died; a worker or a service that died with it is no fault of the job's."""
    worker: str | None
    is_stopped: bool
    """Whether someone asked to finish now."""
    spent_s: float
    """Seconds of solving in claims that ended in good order before the job was done."""
    version: int
    """Grows with every change of the row."""
    phase: str | None
    incumbent_ns: int | None
    lower_bound_ns: int | None
    gap: float | None
    source: str | None
    solution_status: str | None
    stopped_by: str | None
    error: str | None
    """JSON of what went wrong."""
    plan_sha256: str | None
    """SHA-256 of the plan document's bytes, once there is one."""
    request_id: str | None
    """The HTTP request that asked for it."""
    project: str
    """What its tenant files it under; empty: nothing."""
    tags: str
    """Words between spaces, one at either end as well; empty: none."""
    profile_sha256: str | None
    """SHA-256 of the profile; None where an earlier release stored the job."""
    solver_bound_ns: int | None
    """What a complete search or a solver claims that no plan is below, once the job has ended."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressUpdate:
    """A step of a solver: whatever is None did not change."""

    phase: str
    incumbent_ns: int | None
    lower_bound_ns: int | None
    gap: float | None
    source: str
    plan: str | None = None
    """The verified incumbent's document, if it is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End of a job: its last plan, or the reason why there is none."""

    state: State
    stopped_by: str | None = None
    solution_status: str = "unknown"
    plan: str | None = None
    """The plan's document; None keeps the incumbent that is stored."""
    incumbent_ns: int | None = None
    lower_bound_ns: int | None = None
    gap: float | None = None
    source: str | None = None
    solver_bound_ns: int | None = None
    error: dict[str, Any] | None = None
    """`code` and `detail` of what went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of a job's story."""

    seq: int
    """1, 2, 3 ... within the job."""
    kind: str
    """queued, started, incumbent, bound, log or done."""
    at: float
    data: str
    """JSON."""
