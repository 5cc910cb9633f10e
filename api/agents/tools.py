"""The tools: what each takes and answers, and how the service is asked for it."""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from pydantic import TypeAdapter

from api.agents.service_calls import Session
from api.agents.tool_calls import DocumentCall, JobCall, NoArguments, PlanCall, VerifyCall
from api.agents.tool_problem import ToolProblem
from api.auditing.audit_request import AuditRequest
from api.jobs.plan_forms import Export
from api.service.handlers.playback import WhatIf
from api.service.http.problem_json import complaints_of
from api.service.openapi import make_document
from profiles.documents.canonical_json import to_plain
from profiles.documents.class_schema import linked, references
from profiles.documents.validation import validate

Schema = dict[str, Any]

_PLAN_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)

_OBJECT: Schema = {"type": "object"}
_COUNT: Schema = {"type": ["integer", "null"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What an agent may call: its name, arguments, answer, and the request behind it."""

    name: str
    description: str
    arguments: type
    """The dataclass that reads them."""
    answer: Schema
    """JSON schema of the result."""
    call: Callable[[Session, Any], Awaitable[dict[str, Any]]]
    searches: bool = False
    """Whether it stores a plan."""

    def input_schema(self) -> Schema:
        """JSON schema of the arguments."""
        return dict(linked(TypeAdapter(self.arguments).json_schema(), None))

    def read(self, arguments: dict[str, Any]) -> Any:
        """The arguments; raises ToolProblem with every field that is not as it should be."""
        try:
            return validate(self.arguments, arguments, source="arguments")
        except ValueError as error:
            errors = [asdict(complaint) for complaint in complaints_of(error, source="arguments")]
            raise ToolProblem("invalid", detail="the arguments are not allowed; see errors", errors=errors) from None


async def _audit(session: Session, asked: AuditRequest) -> dict[str, Any]:
    body = {name: value for name, value in to_plain(replace(asked, files=True)).items() if value is not None}
    found: dict[str, Any] = await session.ask("POST", "/v1/audits", body=body)
    texts = found.pop("files")
    found["workload_id"] = session.workloads.keep(texts["workload.json"])
    return found | ({"files": texts} if asked.files else {})


async def _plan(session: Session, asked: PlanCall) -> dict[str, Any]:
    named = {name: getattr(asked, name) for name in ("workload_id", "demo", "workload", "start_from")}
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) != 1:
        errors = [{"pointer": f"/{name}", "detail": f"give one of {', '.join(named)}"} for name in given or named]
        raise ToolProblem("invalid", detail=f"{len(given)} questions are given; give one", errors=errors)
    if asked.demo is not None:
        listed = await session.ask("GET", "/v1/demo-profiles")
        names = [each["name"] for each in listed["demo_profiles"]]
        if asked.demo not in names:
            error = {"pointer": "/demo", "detail": f"give one of {', '.join(names)}"}
            raise ToolProblem("invalid", detail="there is no such demo; give one of those listed", errors=[error])
        given = await session.ask("GET", f"/v1/demo-profiles/{asked.demo}")
    elif asked.workload_id is not None:
        given = {"workload": session.workloads.find(asked.workload_id)}
    counts = {name: getattr(asked, name) for name in ("num_microbatches", "global_batch_size")}
    body = given | {name: value for name, value in counts.items() if value is not None}
    body["limits"] = to_plain(asked.limits)
    return await session.search("/v1/plans", body | ({"options": dict(asked.options)} if asked.options else {}))


async def _plan_status(session: Session, asked: JobCall) -> dict[str, Any]:
    return dict(await session.ask("GET", _address(asked.plan_id)))


async def _get_document(session: Session, asked: DocumentCall) -> dict[str, Any]:
    part = f"export/{asked.form}" if asked.form in get_args(Export) else asked.form
    return {"form": asked.form, "document": await session.ask("GET", f"{_address(asked.plan_id)}/{part}")}


async def _verify(session: Session, asked: VerifyCall) -> dict[str, Any]:
    if (asked.plan_id is None) == (asked.plan is None):
        errors = [{"pointer": f"/{name}", "detail": "give one of plan_id, plan"} for name in ("plan_id", "plan")]
        raise ToolProblem("invalid", detail="give one plan", errors=errors)
    plan = asked.plan
    if asked.plan_id is not None:
        plan = await session.ask("GET", f"{_address(asked.plan_id)}/plan")
    body: dict[str, Any] = {"plan": plan, "certificate": asked.certificate}
    if asked.workload_id is not None:
        body["workload"] = session.workloads.find(asked.workload_id)
    return dict(await session.ask("POST", "/v1/verifications", body=body))


async def _explain(session: Session, asked: JobCall) -> dict[str, Any]:
    plan = await session.ask("GET", f"{_address(asked.plan_id)}/plan")
    found = await session.ask("POST", "/v1/playbacks", body={"plan": plan, "what": "explanation"})
    names = ("lower_bound_ns", "bound_kind", "gap", "schedule_bound_ns")
    return dict(found) | {name: plan["evidence"].get(name) for name in names}


async def _what_if(session: Session, asked: WhatIf) -> dict[str, Any]:
    return await session.search("/v1/what-if", to_plain(asked))


async def _list_demos(session: Session, asked: NoArguments) -> dict[str, Any]:
    del asked
    return dict(await session.ask("GET", "/v1/demo-profiles"))


def _address(plan_id: str) -> str:
    """The plan's path; raises ToolProblem for what is no id."""
    if not _PLAN_ID.fullmatch(plan_id):
        error = {"pointer": "/plan_id", "detail": "give the id that plan answered"}
        raise ToolProblem("invalid", detail="this is no plan's id; give the one that plan answered", errors=[error])
    return f"/v1/plans/{plan_id}"


def _schema(name: str, **more: Schema) -> Schema:
    """One of the service's answers, and what a tool adds to it."""
    schemas = make_document()["components"]["schemas"]
    known, parts = schemas[name], {part: schemas[part] for part in references(schemas[name])}
    whole = {**known, "properties": {**known["properties"], **more}} | ({"$defs": parts} if parts else {})
    return dict(json.loads(json.dumps(whole).replace("#/components/schemas/", "#/$defs/")))


_TEXT: Schema = {"type": "string"}


def _explanation() -> Schema:
    """What `explain` answers."""
    return {
        "type": "object",
        "properties": {
            **dict.fromkeys(("makespan_ns", "lower_bound_ns", "schedule_bound_ns"), _COUNT),
            "bound_kind": {"type": ["string", "null"]},
            "gap": {"type": ["number", "null"]},
            **{name: {"type": "array", "items": _OBJECT} for name in ("devices", "path", "binds")},
        },
        "required": ["makespan_ns", "lower_bound_ns", "gap", "devices", "path", "binds"],
    }


def make_tools() -> tuple[Tool, ...]:
    """The tools of the server, in the order in which clients list them."""
    return (*_asking_tools(), *_looking_tools())


def _asking_tools() -> tuple[Tool, ...]:
    """Tools that start a search."""
    return (
        Tool(
            name="audit",
            description="Read a configuration of Megatron-LM, torchtitan or DeepSpeed (give its text and file name, or "
            "options alone) and say whether it runs, how fast, and how far from the best possible. No GPU is needed. "
            "The answer's workload_id is the estimated profile and cluster, for plan.",
            arguments=AuditRequest,
            answer=_schema("Audit", workload_id=_TEXT),
            call=_audit,
        ),
        Tool(
            name="plan",
            description="Search for the best pipeline-parallel plan and wait for it. The answer is a verified plan's "
            "time, proven lower bound and gap; its id is for the other tools. Cancelling keeps the best plan found.",
            arguments=PlanCall,
            answer=_schema("Job"),
            call=_plan,
            searches=True,
        ),
        Tool(
            name="what_if",
            description="The same question with more or fewer devices, memory, bandwidth or another batch, planned.",
            arguments=WhatIf,
            answer=_schema("Job"),
            call=_what_if,
            searches=True,
        ),
    )


def _looking_tools() -> tuple[Tool, ...]:
    return (
        Tool(
            name="plan_status",
            description="State, best time, lower bound and gap of a plan that plan or what_if began.",
            arguments=JobCall,
            answer=_schema("Job"),
            call=_plan_status,
        ),
        Tool(
            name="get_document",
            description="A finished plan as a document, a report, a table for torch, or a trace.",
            arguments=DocumentCall,
            answer={"type": "object", "properties": {"form": _TEXT, "document": {}}, "required": ["form", "document"]},
            call=_get_document,
        ),
        Tool(
            name="verify",
            description="Check a plan against every rule; with certificate also derive its lower bound and gap anew.",
            arguments=VerifyCall,
            answer=_schema("Verdict"),
            call=_verify,
        ),
        Tool(
            name="explain",
            description="Where a finished plan's time goes, per device and on the critical path, what binds, and what "
            "its gap is measured against.",
            arguments=JobCall,
            answer=_explanation(),
            call=_explain,
        ),
        Tool(
            name="list_demos",
            description="Workloads that come along, to try plan with.",
            arguments=NoArguments,
            answer={"type": "object", "properties": {"demo_profiles": {"type": "array", "items": _OBJECT}}},
            call=_list_demos,
        ),
    )
