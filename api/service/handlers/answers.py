"""What the service says of plans, as classes of which the OpenAPI document is made."""

from dataclasses import dataclass
from typing import Annotated, Any

from api.jobs.job import State
from api.jobs.request_fields import EventKind, PlanId, Priority, SolutionStatus
from planner.plan import ProvedBy
from profiles.documents.schema_rules import Stated
from profiles.documents.strict_record import StrictRecord

Moment = Annotated[str, Stated(format="date-time")]
_Sha256 = Annotated[str, Stated(pattern="^[0-9a-f]{64}$")]
_Count = Annotated[int, Stated(minimum=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The verdict on a stored plan: no other one is stored."""

    passed: Annotated[bool, Stated(const=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Why a job has no plan."""

    code: str
    """For programs."""
    detail: str
    """For people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(StrictRecord):
    """A question and how far its answer is."""

    id: PlanId
    name: str
    """Of the profile."""
    state: State
    solution_status: SolutionStatus
    proved_by: ProvedBy | None
    solver_bound_ns: _Count | None
    stopped_by: str | None
    phase: str | None
    priority: Priority
    pinned: bool
    project: str
    tags: list[str]
    created_at: Moment | None
    started_at: Moment | None
    finished_at: Moment | None
    attempt: _Count
    incumbent_ns: _Count | None
    lower_bound_ns: _Count | None
    gap: float | None
    source: str | None
    verdict: Passed | None
    plan_sha256: _Sha256 | None
    profile_sha256: _Sha256 | None
    error: JobError | None
    links: dict[str, str]
    start_from: Annotated[str | None, Stated({"type": "string", "pattern": "^[0-9a-f]{32}$"})] = None
    """The plan that the search began with; left out where none was named."""
    what_if: Annotated[dict[str, Any] | None, Stated({"type": "object"})] = None
    """Base and change of a what-if; left out of other questions."""
    doubts: Annotated[list[str] | None, Stated({"type": "array", "items": {"type": "string"}})] = None
    """Figures of the cluster whose unit may be wrong; only where it is submitted, and left out where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """A page of plans, latest first."""

    plans: list[Job]
    next: Annotated[str | None, Stated({"type": "string"})] = None
    """The next page; left out where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEvent:
    """An event; its id goes into Last-Event-ID to continue after it."""

    id: Annotated[str, Stated(pattern="^[0-9]+$")]
    event: EventKind
    data: str
    """A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """An event of the job with what it says."""

    seq: Annotated[int, Stated(minimum=1)]
    kind: str
    at_s: Annotated[float, Stated(minimum=0)]
    """Seconds from the start."""
    has_plan: bool
    """Whether `picture?incumbent=SEQ` shows the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The events of a job from its submission on, in order."""

    events: list[PastEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the verifier says; beside it stand the rules that are broken, or the figures."""

    passed: bool
