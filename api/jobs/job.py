"""The words of a job: its states, what a row of the store says, and what its solver reports."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from profiles.documents.schema_rules import Stated
from profiles.field_rules import MAX_NAME_LENGTH

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
class _KnownJob:
    """What a job is from its request on."""

    id: str
    """32 hexadecimal digits."""
    tenant: str
    """Name of the tenant that owns the job."""
    name: str
    """Name of the profile, for lists."""
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
    request_id: str | None = None
    """The HTTP request that asked, as it stands in the logs."""
    project: str = ""
    """What the tenant files it under; empty: nothing."""
    tags: str = ""
    """Words between spaces, one at either end as well; empty: none."""
    profile_sha256: str | None = None
    """SHA-256 of the profile that it plans for; None where an earlier release stored the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob(_KnownJob):
    """What is stored when a request is accepted."""

    request: str
    """Canonical JSON of the validated workload and limits (`api.jobs.request`)."""
    key_id: str | None = None
    """The API key that asked."""


def _moment(stated: str | float) -> float:
    """Seconds since 1970; of a text without a zone it is UTC."""
    if not isinstance(stated, str):
        return stated
    try:
        moment = datetime.fromisoformat(stated)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except OverflowError as error:
        raise ValueError(stated) from error


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(text)
    return text


_DAY = {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"}
_Moment = Annotated[float | None, BeforeValidator(_moment), Stated(_DAY)]
_Name = Annotated[str | None, AfterValidator(_printable), Stated(pattern="^[ -~]+$")]
"""Letters that are not ASCII are read, too, but not promised."""


class Search(BaseModel):
    """Which of a tenant's jobs are meant, as it is asked over HTTP, too; what is None does not matter."""

    project: str | None = Field(None, pattern=f"^{LABEL.pattern}$", description="a project's name")
    tag: str | None = Field(None, pattern=f"^{LABEL.pattern}$", description="a tag")
    name: _Name = Field(None, min_length=1, max_length=100, description="part of a name, at most 100 letters")
    model: _Name = Field(
        None, min_length=1, max_length=MAX_NAME_LENGTH, description="a model's whole name, at most 300 letters"
    )
    sha256: str | None = Field(
        None,
        pattern="^[0-9a-f]{6,64}$",
        description="at least 6 hexadecimal digits that a plan's or a profile's SHA-256 begins with",
    )
    state: State | None = Field(None, description=f"one of {', '.join(get_args(State))}")
    since: _Moment = Field(None, description="a date or moment, e.g. 2026-01-31 or 2026-01-31T12:00:00Z")
    until: _Moment = Field(None, description="a date or moment, e.g. 2026-01-31 or 2026-01-31T12:00:00Z")
    after: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{32}(@[0-9]{1,10}(\.[0-9]{1,9})?)?$",
        description="what stands in `next`, or the id of a plan that is there: the last of the page before",
    )


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
class Job(_KnownJob):
    """A job as the store knows it; times are seconds since 1970, durations nanoseconds."""

    state: State
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
