"""Jobs as clients see them, with their addresses and their tags."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

from fastapi import Request
from fastapi.responses import Response

from api.jobs.job import Job
from api.jobs.moments import moment
from api.jobs.plan_forms import Export
from api.jobs.request_fields import shared_fields
from api.jobs.workers.runner import error_of
from api.service.handlers import answers
from planner.plan import ProvedBy

_ARTEFACTS = ("plan", "trace", "view", "report")
_LEFT_OUT = ("start_from", "what_if", "doubts")
"""What a job says only where it is known."""
IMMUTABLE = "private, max-age=31536000, immutable"


def job_document(job: Job, *, doubts: Sequence[str] = ()) -> dict[str, Any]:
    """What `GET /v1/plans/{id}` says, and the answer to a submission with `doubts` about its figures."""
    has_plan = job.plan_sha256 is not None
    told: dict[str, Any] = shared_fields(job, answers.Job)
    told |= {
        "solution_status": job.solution_status or ("feasible" if has_plan else "unknown"),
        "proved_by": proof_of(job),
        "pinned": job.is_pinned,
        "tags": job.tags.split(),
        "created_at": moment(job.created_at),
        "started_at": moment(job.started_at),
        "finished_at": moment(job.finished_at),
        "verdict": answers.Passed(passed=True) if has_plan else None,
        "plan_sha256": job.plan_sha256 if job.is_finished else None,
        "error": error_of(job),
        "links": _links(job),
        "start_from": job.base_id if job.change is None else None,
        "what_if": _what_if(job),
        "doubts": list(doubts) or None,
    }
    document = asdict(answers.Job(**told))
    return {name: value for name, value in document.items() if value is not None or name not in _LEFT_OUT}


def _what_if(job: Job) -> dict[str, Any] | None:
    """What was asked about the base, and by how much the objective moved."""
    if job.base_id is None or job.change is None:
        return None
    told = json.loads(job.change)
    before = told["base_objective_ns"]
    moved = None if job.incumbent_ns is None or before is None else job.incumbent_ns - before
    return {"base": job.base_id, **told, "moved_ns": moved}


def proof_of(job: Job) -> ProvedBy | None:
    """How the plan of a job is known to be optimal, if it is."""
    if job.solution_status != "optimal":
        return None
    return "complete search" if job.stopped_by == "complete_search" else "certificate"


def _links(job: Job) -> dict[str, str]:
    here = f"/v1/plans/{job.id}"
    links = {"self": here, "events": f"{here}/events", "stop": f"{here}:stop"}
    if job.state == "succeeded":
        links |= {name: f"{here}/{name}" for name in _ARTEFACTS}
        links |= {f"export_{name}": f"{here}/export/{name}" for name in get_args(Export)}
    return links


def render_json(document: Any) -> bytes:
    """UTF-8, one line."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def answer(document: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(render_json(document), status_code=status, headers=headers, media_type="application/json")


def job_answer(
    job: Job, *, status: int = 200, headers: dict[str, str] | None = None, doubts: Sequence[str] = ()
) -> Response:
    """A job with its tag."""
    tagged = {"ETag": tag_of(job), "Cache-Control": "private, no-cache"} | (headers or {})
    return answer(job_document(job, doubts=doubts), status=status, headers=tagged)


def tag_of(job: Job) -> str:
    """Changes with every change of the job."""
    return f'"{job.id[:8]}-{job.version}"'


def is_known(request: Request, tag: str) -> bool:
    """Whether the client has it already."""
    known = request.headers.get("if-none-match", "")
    return known.strip() == "*" or tag in [part.strip().removeprefix("W/") for part in known.split(",")]


def not_modified(tag: str, *, cache_control: str) -> Response:
    """The answer 304: what the client has is current."""
    return Response(status_code=304, headers={"ETag": tag, "Cache-Control": cache_control})
