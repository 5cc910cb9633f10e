"""The OpenAPI 3.1 document: paths from the routes, with what they take and answer; `docs/openapi.json` is a copy."""

import json
import re
from collections import Counter
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from api.auditing.audit_request import AuditRequest
from api.jobs.request import Submission
from api.service.handlers import (
    artefact_handlers,
    health,
    notice_handlers,
    picture_handlers,
    plan_handlers,
    playback,
    webhook_handlers,
)
from api.service.handlers.answers import StoryEvent
from api.service.handlers.route_notes import PROBLEM, Schema, ref
from api.service.http.problem_json import ProblemDetails, ServiceError, invalid
from planner.documents.schema import definitions
from planner.release import RELEASE
from profiles.documents.class_schema import definitions_of
from profiles.documents.schema_rules import NO_NUL


def _json_schema() -> Schema:
    """Whatever is read as JSON."""
    members = {"propertyNames": {"pattern": NO_NUL}, "additionalProperties": ref("Json")}
    return {
        "anyOf": [
            {"type": ["number", "boolean", "null", "string"]},
            {"type": "array", "items": ref("Json")},
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


_BODIES = (
    *(AuditRequest, Submission, plan_handlers.Filing, webhook_handlers.NewWebhook, notice_handlers.Notice),
    *(playback.Playback, playback.Verification, playback.WhatIf, picture_handlers.RangeOrder),
)
_ANSWERING = (
    *(plan_handlers, artefact_handlers, picture_handlers, playback),
    *(webhook_handlers, notice_handlers, health),
)
ROUTERS = tuple(handlers.router for handlers in _ANSWERING)
"""The first whose route fits a path answers."""
_ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def _schemas() -> Schema:
    """What travels: documents and their parts as `pipeplan schema` prints them, and what classes read and write."""
    documents = {name: schema for name, schema in definitions(_COMPONENT).items() if name != "ProfileDocument"}
    answered: list[Any] = [route.response_model for route in _ROUTES if is_dataclass(route.response_model)]
    more = definitions_of((*_BODIES, *answered, StoryEvent, ProblemDetails), ref_template=_COMPONENT)
    named = {"Problem": more.pop("ProblemDetails"), "Json": _json_schema()}
    return {**documents, **more, **named}


_ALWAYS = (401, 403, 422, 429, 500, 503)
_BODY = (400, 408, 413, 415)


def _completed(path: str, item: Schema) -> Schema:
    """What FastAPI found of the routes of a path, with the problems that they share with others."""
    named = (404,) if "{" in path else ()
    for method, operation in item.items():
        refused = {*_ALWAYS, *named, *(_BODY if "requestBody" in operation else ())}
        refused |= set() if method == "get" else {507}
        operation["summary"] = summary = operation.pop("description").partition("\n")[0].removesuffix(".")
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _bare(parameter["schema"])
        for answer in operation["responses"].values():
            if answer.get("description") == "Successful Response":  # FastAPI's own word
                answer["description"] = summary
        operation["responses"] |= {str(status): PROBLEM for status in sorted(refused)}
    return item


def _bare(schema: Schema) -> Schema:
    """The schema of a parameter without null, which cannot be sent, and without what stands beside it already."""
    parts = [part for part in schema.pop("anyOf", ()) if part != {"type": "null"}]
    whole = {**schema, **parts[0]} if parts else schema
    return {name: part for name, part in whole.items() if name not in ("title", "description")}


@cache
def make_document() -> Schema:
    """The whole document."""
    document = get_openapi(
        title="pipeplan",
        version=RELEASE,
        description="POST a measured profile and a cluster, get a verified pipeline plan with a proven gap.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        routes=_ROUTES,
        separate_input_output_schemas=False,
    )
    paths = {path: _completed(path, item) for path, item in document["paths"].items()}
    problem = {"description": "A problem", "content": {"application/problem+json": {"schema": ref("Problem")}}}
    components = {
        "schemas": _without_nul(_schemas()),
        "responses": {"Problem": problem},
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    return document | {"security": [{"key": []}, {}], "paths": paths, "components": components}


async def require_known_query(request: Request) -> None:
    """Raise ServiceError 422 for a parameter that the resource does not have, or that is given twice.

    It would narrow nothing, in silence.
    """
    if not request.scope["route"].path.startswith("/v1/"):
        return  # pages and probes take what browsers and load balancers add
    known = ", ".join(_known_query(request))
    given = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in given.items():
        is_known = name in known.split(", ")
        told = f"no such parameter; {f'use {known}' if known else 'leave it out'}"
        if is_known and count == 1:
            continue
        told = f"given {count} times; give it once" if is_known else told
        raise invalid(f"/{name[:60]}", told, code="repeated_key" if is_known else "unknown_field")


def _known_query(request: Request) -> dict[str, str]:
    """The parameters of the resource, and what they are."""
    taken = make_document()["paths"][request.scope["route"].path][request.method.lower()].get("parameters", ())
    return {each["name"]: each.get("description", "") for each in taken if each["in"] == "query"}


def refuse_query(request: Request, error: RequestValidationError) -> ServiceError:
    """What refuses the first parameter that is missing, or cannot be."""
    wrong = error.errors()[0]
    name, code = str(wrong["loc"][-1]), "missing" if wrong["type"] == "missing" else "invalid"
    return invalid(f"/{name}", f"give {_known_query(request)[name]}", code=code)


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
