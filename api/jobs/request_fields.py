"""Fields that requests, rows and answers share: their types, and what the OpenAPI document says of them."""

from dataclasses import fields
from typing import Annotated, Any, Literal

from api.jobs.job import LABEL, MAX_PRIORITY, MAX_TAGS
from planner.plan import PLAN_FORMAT
from profiles.documents.schema_rules import COMPONENT, JSON_OBJECT, Stated, given
from profiles.workload import WORKLOAD_FORMAT

_NEUTRAL = {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["forward_ms"]}}
_OTHER_FORMS = {
    **JSON_OBJECT,
    "description": "Any other form that pipeplan reads: of version 1, the neutral one, Piper's.",
    "properties": {"format": {"not": {"const": WORKLOAD_FORMAT}}},
    "anyOf": [given("format", {"type": "string"}), given("layers", _NEUTRAL)],
}

WorkloadTree = Annotated[
    dict[str, object],
    Stated({"anyOf": [{COMPONENT: "WorkloadDocument"}, _OTHER_FORMS]}),
]
"""A workload document: our own form in full, and what else is read, which is not described."""

PlanTree = Annotated[dict[str, object], Stated({**JSON_OBJECT, **given("format", {"const": PLAN_FORMAT})})]
"""A plan document, as PlanDocument says; what it states is judged."""

Project = Annotated[str, Stated(pattern=f"^({LABEL.pattern})?$")]
Tags = Annotated[tuple[Annotated[str, Stated(pattern=f"^{LABEL.pattern}$")], ...], Stated(maxItems=MAX_TAGS)]
Priority = Annotated[int, Stated(minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)]
PlanId = Annotated[str, Stated(pattern="^[0-9a-f]{32}$")]

SolutionStatus = Literal["optimal", "feasible", "infeasible", "unknown"]
EventKind = Literal["queued", "started", "incumbent", "bound", "log", "done"]
"""What an entry of a job's story tells."""


def shared_fields(source: object, target: type) -> dict[str, Any]:
    """What `source` holds under the names of fields of the dataclass `target`: a new field goes along by its name."""
    held = {field.name: getattr(source, field.name, ...) for field in fields(target)}
    return {name: value for name, value in held.items() if value is not ...}
