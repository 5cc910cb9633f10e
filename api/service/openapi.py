"""The OpenAPI 3.1 document: paths from the routes, with what they take and answer; `docs/openapi.json` is a copy."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any, get_args

from fastapi import Request
from fastapi.routing import APIRoute

from api.auditing.audit_request import AuditRequest
from api.jobs.plan_forms import Export, Form, media_of
from api.jobs.request import Submission
from api.service.handlers import answers
from api.service.handlers.notice_handlers import Notice, Told
from api.service.handlers.picture_handlers import RangeOrder, Ranges
from api.service.handlers.plan_handlers import Filing
from api.service.handlers.playback import Audit, Playback, Verification, WhatIf
from api.service.handlers.searching import PARAMETERS
from api.service.handlers.webhook_handlers import MadeWebhook, NewWebhook, WebhookList
from api.service.http.problem_json import Complaint, ProblemDetails, ServiceError
from api.service.routes import ROUTERS
from planner.documents.schema import definitions
from planner.release import RELEASE
from profiles.documents.class_schema import definitions_of
from profiles.documents.schema_rules import NO_NUL

Schema = dict[str, Any]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_schema() -> Schema:
    """Whatever is read as JSON."""
    members = {"propertyNames": {"pattern": NO_NUL}, "additionalProperties": _ref("Json")}
    return {
        "anyOf": [
            {"type": ["number", "boolean", "null", "string"]},
            {"type": "array", "items": _ref("Json")},
            {"type": "object", **members},
        ]
    }


def _without_nul(schema: Any) -> Any:
    """The schema, none of whose free texts may hold a NUL."""
    if isinstance(schema, list):
        return [_without_nul(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {name: _without_nul(each) for name, each in schema.items()}
    kinds = copied.get("type")
    is_text = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    is_free = is_text and not {"pattern", "format", "enum", "const"} & set(copied)
    return copied | {"pattern": NO_NUL} if is_free else copied


_COMPONENT = "#/components/schemas/{model}"


_BODIES = (AuditRequest, Filing, NewWebhook, Notice, Playback, RangeOrder, Submission, Verification, WhatIf)
_ANSWERS = (
    *(answers.Job, answers.Jobs, answers.StoryEvent, answers.History, Audit, Ranges),
    *(answers.Verdict, MadeWebhook, WebhookList, Told, ProblemDetails),
)


def _schemas() -> Schema:
    """What travels: documents and their parts as `pipeplan schema` prints them, and what classes read and write."""
    documents = {name: schema for name, schema in definitions(_COMPONENT).items() if name != "ProfileDocument"}
    more = definitions_of((*_BODIES, *_ANSWERS), ref_template=_COMPONENT)
    named = {"Problem": more.pop("ProblemDetails"), "Json": _json_schema()}
    return {**documents, **more, **named}


def _json(schema: Schema, description: str, **headers: str) -> Schema:
    response: Schema = {"description": description, "content": {"application/json": {"schema": schema}}}
    if headers:
        response["headers"] = {
            name.replace("_", "-"): {"schema": {"type": "string"}, "description": text}
            for name, text in headers.items()
        }
    return response


def _text(media_type: str, description: str) -> Schema:
    schema: Schema = {} if media_type == "application/json" else {"type": "string"}
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _media(forms: Iterable[str]) -> Schema:
    """What any of these forms of a plan is sent as."""
    content: Schema = {}
    for form in forms:
        content |= _text(media_of(form), "")["content"]
    return content


def _problems(*statuses: int) -> Schema:
    return {str(status): {"$ref": "#/components/responses/Problem"} for status in statuses}


_ALWAYS = (401, 403, 429, 500, 503)
_BODY = (400, 408, 413, 415, 422, 507)


def _operation(ok: Schema | None, *, problems: tuple[int, ...] = (), **more: Any) -> Schema:
    """What a route does not say itself (`_described`): what it takes and answers; `ok`: with status 200, if ever."""
    answered = {} if ok is None else {"200": ok}
    more["responses"] = {**_problems(*_ALWAYS, *problems), **answered, **more.pop("responses", {})}
    return more


def _body(name: str, **examples: Any) -> Schema:
    content: Schema = {"schema": _ref(name)}
    if examples:
        content["examples"] = {key: {"value": value} for key, value in examples.items()}
    return {"required": True, "content": {"application/json": content}}


def _header(name: str, description: str, *, schema: Schema) -> Schema:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


_ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_IN_PATHS: Schema = {
    "plan_id": _ID,
    "webhook_id": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    "form": {"enum": sorted(get_args(Export))},
    "name": {"type": "string"},
}
_PREFER = _header(
    "Prefer",
    "wait=N: wait up to N seconds for the end; other preferences are ignored (RFC 7240)",
    schema={"type": "string", "examples": ["wait=30"]},
)
_KEY = _header(
    "Idempotency-Key",
    "The same key and body give the first answer again",
    schema={"type": "string", "pattern": "^[!-~]{1,200}$"},
)
_NOT_MODIFIED: Schema = {"304": {"description": "Not modified"}}


def example_submission() -> Schema:
    """A body that works as it stands: three layers on two devices."""
    devices = [{"name": name, "type": "toy", "memory_bytes": 2**30} for name in ("gpu0", "gpu1")]
    cost = {"device_type": "toy", "forward_ns": 1000000, "input_grad_ns": 1000000, "weight_grad_ns": 1000000}
    names = ("embed", "block", "head")
    layers = [{"name": name, "costs": [cost], "parameter_bytes": 1024, "state_bytes": 4096} for name in names]
    edges = [{"producer": a, "consumer": b, "bytes": 1024} for a, b in (("embed", "block"), ("block", "head"))]
    return {
        "workload": {
            "format": "pipeline-workload/2",
            "profile": {"name": "toy", "microbatch_size": 8, "layers": layers, "edges": edges},
            "cluster": {
                "name": "desk",
                "devices": devices,
                "links": [{"a": "gpu0", "b": "gpu1", "bandwidth_bytes_per_s": 1000000000}],
            },
            "num_microbatches": 4,
        },
        "limits": {"time_limit_s": 5, "max_rounds": 1},
    }


def _links() -> Schema:
    """What can be done next with a plan that was submitted."""
    looks = ("get_plan", "follow_plan", "get_plan_document", "get_trace", "get_report", "get_view")
    verbs = ("stop_plan", "pin_plan", "unpin_plan", "delete_plan")
    this = {"plan_id": "$response.body#/id"}
    what_if = {"base": "$response.body#/id", "change": {"devices": 1}}
    return {name: {"operationId": name, "parameters": this} for name in (*looks, *verbs)} | {
        "export_plan": {"operationId": "export_plan", "parameters": {**this, "form": "trace"}},
        "ask_what_if": {"operationId": "ask_what_if", "requestBody": what_if},
    }


def _plan_operations() -> Schema:
    done = _json(_ref("Job"), "Done, or known already", Location="The plan", X_Cache="HIT or MISS")
    going = _json(_ref("Job"), "Accepted", Location="The plan", Retry_After="Seconds", X_Cache="MISS")
    job = _json(_ref("Job"), "The plan", ETag="Changes with the plan")
    done["links"] = going["links"] = _links()
    story = {"description": "The story", "content": {"text/event-stream": {"schema": _ref("StoryEvent")}}}
    return {
        "list_plans": _operation(
            _json(_ref("Jobs"), "Latest first"),
            problems=(422,),
            parameters=[_query(name, schema) for name, (schema, _) in PARAMETERS.items()],
        ),
        "submit_plan": _operation(
            done,
            responses={"202": going},
            problems=(409, 404),
            parameters=[_PREFER, _KEY],
            requestBody=_body("Submission", toy=example_submission()),
        ),
        "get_plan": _operation(job, responses=_NOT_MODIFIED, parameters=[_PREFER]),
        "delete_plan": _without_answer("Forgotten"),
        "follow_plan": _operation(story),
        "stop_plan": _operation(job, responses={"202": job}, problems=(507,)),
        "file_plan": _operation(job, requestBody=_body("Filing")),
        "pin_plan": _operation(job, problems=(507,)),
        "unpin_plan": _operation(job, problems=(507,)),
    }


def _without_answer(description: str) -> Schema:
    """Of what is deleted."""
    return _operation(None, responses={"204": {"description": description}}, problems=(507,))


def _artefact(ok: Schema, *parameters: Schema) -> Schema:
    """Something made of a plan, which a client may keep."""
    more = {"parameters": [*parameters]} if parameters else {}
    return _operation(ok, responses=_NOT_MODIFIED, problems=(409, 422), **more)


def _query(name: str, schema: Schema, **more: Any) -> Schema:
    return {"name": name, "in": "query", "schema": schema, **more}


def _artefact_operations() -> Schema:
    export = _media(sorted(get_args(Export)))
    number: Schema = {"type": "integer", "minimum": 1, "maximum": 10**9 - 1}
    media = "application/json"
    return {
        "get_plan_document": _artefact(_json(_ref("PlanDocument"), "The plan document")),
        "get_trace": _artefact(_text(media, "A Chrome trace")),
        "get_view": _artefact(
            _text("text/html", "The timeline picture"),
            _query("against", _ID, description="A second plan of this service, drawn below"),
        ),
        "get_report": _artefact(_text(media, "Stages, devices, memory, baselines")),
        "get_difference": _artefact(_text(media, "The difference"), _query("to", _ID, required=True)),
        "export_plan": _artefact({"description": "The export", "content": export}),
        "get_history": _operation(_json(_ref("History"), "The story so far")),
        "get_picture": _artefact(
            _text(media, "What a picture shows"),
            _query("incumbent", number, description="The plan of this event of the history"),
            _query("against", _ID, description="A second plan of this service"),
            _query(
                "baseline", {"type": "string", "maxLength": 200}, description="A second plan: a baseline, by its name"
            ),
        ),
    }


def _instant_operations() -> Schema:
    """What is answered at once, and not stored; but for a question with a change."""
    trace = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {
        "look_at_trace": _operation(
            _json({"type": "object"}, "Advice, and the median step as the page draws it"),
            requestBody={"required": True, "content": trace},
        ),
        "find_ranges": _operation(
            _json(_ref("Ranges"), "The ranges"), problems=(404, 409), requestBody=_body("RangeOrder")
        ),
        "verify_plan": _operation(_json(_ref("Verdict"), "The verdict"), requestBody=_body("Verification")),
        "audit_configuration": _operation(
            _json(_ref("Audit"), "As pipeplan audit --json says it"), requestBody=_body("AuditRequest")
        ),
        "play_plan": _operation(
            {"description": "The request", "content": _media(get_args(Form))}, requestBody=_body("Playback")
        ),
        "ask_what_if": _operation(
            _json(_ref("Job"), "Done"),
            responses={"202": _json(_ref("Job"), "Accepted", Location="The plan")},
            problems=(404, 409),
            parameters=[_PREFER, _KEY],
            requestBody=_body("WhatIf"),
        ),
    }


def _webhook_operations() -> Schema:
    return {
        "list_webhooks": _operation(_json(_ref("WebhookList"), "Without secrets")),
        "create_webhook": _operation(
            None,
            responses={"201": _json(_ref("MadeWebhook"), "The secret is shown once", Location="The webhook")},
            problems=(409,),
            requestBody=_body("NewWebhook"),
        ),
        "delete_webhook": _without_answer("Gone"),
        "notify": _operation(
            None, responses={"202": _json(_ref("Told"), "How many will hear")}, requestBody=_body("Notice")
        ),
    }


def _about_operations() -> Schema:
    anything: Schema = {"type": "object"}
    names = _operation(_json(anything, "Names and addresses"))
    return {
        "list_projects": names,
        "list_demos": names,
        "get_demo": _operation(_json(_ref("Submission"), "The body")),
        "capabilities": _operation(_json(anything, "Limits")),
        "openapi_document": _operation(_json(anything, "OpenAPI 3.1")),
        "live": _operation(_json(anything, "Alive"), security=[]),
        "ready": _operation(_json(anything, "Ready"), security=[]),
        "metrics": _operation(_text("text/plain", "Metrics")),
    }


def _paths() -> Schema:
    """Every route that is part of the interface, as FastAPI knows it, with what is said of it."""
    said = _plan_operations() | _artefact_operations() | _instant_operations()
    said |= _webhook_operations() | _about_operations()
    paths: Schema = {}
    for route in (each for router in ROUTERS for each in router.routes if isinstance(each, APIRoute)):
        if route.include_in_schema:
            (method,) = sorted(route.methods or ())
            paths.setdefault(route.path, {})[method.lower()] = _described(route, said.pop(route.name))
    assert not said, f"nobody answers {', '.join(said)}"
    return paths


def _described(route: APIRoute, said: Schema) -> Schema:
    """The operation of a route: what it is for and its name, the parameters of its path, and the problems that those
    and a body bring.
    """
    names = re.findall(r"{(\w+)}", route.path)
    place = [{"name": name, "in": "path", "required": True, "schema": _IN_PATHS[name]} for name in names]
    parameters = [*place, *said.get("parameters", ())]
    problems = _problems(*(_BODY if "requestBody" in said else ()), *((404,) if names else ()))
    summary = route.description.partition("\n")[0].removesuffix(".")
    responses = {**problems, **said["responses"]}
    found = {"summary": summary, **said, "operationId": route.name, "responses": responses}
    return {**found, "parameters": parameters} if parameters else found


@cache
def make_document() -> Schema:
    """The whole document."""
    problem = {"description": "A problem", "content": {"application/problem+json": {"schema": _ref("Problem")}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pipeplan",
            "version": RELEASE,
            "description": "POST a measured profile and a cluster, get a verified pipeline plan with a proven gap.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}, {}],
        "paths": _paths(),
        "components": {
            "schemas": _without_nul(_schemas()),
            "responses": {"Problem": problem},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


async def require_known_query(request: Request) -> None:
    """Raise ServiceError 422 for a parameter that the resource does not have, or that is given twice.

    It would narrow nothing, in silence.
    """
    path = request.scope["route"].path
    if not path.startswith("/v1/"):
        return  # pages and probes take what browsers and load balancers add
    taken = make_document()["paths"][path][request.method.lower()].get("parameters", ())
    known = ", ".join(each["name"] for each in taken if each["in"] == "query")
    given = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in given.items():
        is_known = name in known.split(", ")
        told = f"no such parameter; {f'use {known}' if known else 'leave it out'}"
        if is_known and count == 1:
            continue
        complaint = Complaint(
            pointer=f"/{name[:60]}",
            code="repeated_key" if is_known else "unknown_field",
            detail=f"given {count} times; give it once" if is_known else told,
        )
        raise ServiceError(422, "invalid", errors=(complaint,))


def allowed_methods(path: str) -> list[str]:
    """The methods of the path; a path that ends with a verb (`:stop`) is not the plan of that name."""
    best: tuple[int, list[str]] = (-1, [])
    for template, item in make_document()["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path):
            best = max(best, (len(template), sorted(method.upper() for method in item)))
    return best[1]


def render_document() -> str:
    """The text of `docs/openapi.json`."""
    return json.dumps(make_document(), indent=1, ensure_ascii=False) + "\n"
