"""What a route tells the OpenAPI document beyond what FastAPI reads in its signature and classes."""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter

from api.jobs.plan_forms import media_of

Schema = dict[str, Any]
Responses = dict[int | str, Schema]

PROBLEM = {"$ref": "#/components/responses/Problem"}
NOT_MODIFIED: Responses = {304: {"description": "Not modified"}}

_HEADERS: dict[str, Schema] = {
    "Prefer": {
        "description": "wait=N: wait up to N seconds for the end; other preferences are ignored (RFC 7240)",
        "schema": {"type": "string", "examples": ["wait=30"]},
    },
    "Idempotency-Key": {
        "description": "The same key and body give the first answer again",
        "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
    },
}


def ref(name: str) -> Schema:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def router_at(prefix: str = "") -> APIRouter:
    """Routes that the document calls by the names of their functions."""
    return APIRouter(prefix=prefix, generate_unique_id_function=lambda route: route.name)


def noting(*problems: int, body: type | None = None, example: object = None, headers: Iterable[str] = ()) -> Schema:
    """`openapi_extra` of a route: problems that others do not have, headers, and the class of a body that the route
    reads itself, with an example.
    """
    notes: Schema = {"responses": {str(status): PROBLEM for status in problems}}
    if headers:
        notes["parameters"] = [{"name": name, "in": "header", **_HEADERS[name]} for name in headers]
    if body is not None:
        examples = {} if example is None else {"examples": {"toy": {"value": example}}}
        content = {"schema": ref(body.__name__), **examples}
        notes["requestBody"] = {"required": True, "content": {"application/json": content}}
    return notes


def answering(description: str, *, schema: str | None = None, kind: str = "application/json", **headers: str) -> Schema:
    """An answer in `responses`: the schema of what it holds, where no class says it, and what its headers tell."""
    said: Schema = {"description": description}
    if schema is not None:
        said["content"] = {kind: {"schema": ref(schema)}}
    for name, text in headers.items():
        said.setdefault("headers", {})[name.replace("_", "-")] = {"schema": {"type": "string"}, "description": text}
    return said


def sending(forms: Iterable[str], description: str) -> Schema:
    """An answer in `responses` that is any of these forms of a plan."""
    text: Schema = {"schema": {"type": "string"}}
    kinds = sorted({media_of(form) for form in forms})
    content = {kind: {"schema": {}} if kind == "application/json" else text for kind in kinds}
    return {"description": description, "content": content}


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
