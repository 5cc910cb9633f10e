"""JSON Schema of the documents: workload, profile, cluster and plan, made from the classes that read and write them."""

import json
from functools import cache
from typing import Any, get_args

from planner.actions import ACTION_TEXT
from planner.documents.plan_values import ALLOWED_VALUES, DEGREES, PARAMETER_NAME, TIMINGS, range_of
from planner.option_values import DocumentKind
from planner.plan import PLAN_FORMAT, Plan
from planner.problem import Options
from profiles.documents.class_schema import DRAFT, definitions_of, references
from profiles.field_rules import MAX_NAME_LENGTH, JsonSchema
from profiles.workload import CLUSTER_FORMAT, PROFILE_FORMAT, WORKLOAD_FORMAT, Workload

KINDS: tuple[DocumentKind, ...] = get_args(DocumentKind)

_HERE = "#/$defs/{model}"

_DOCUMENTS: dict[str, tuple[str, str]] = {
    "workload": ("Workload", WORKLOAD_FORMAT),
    "profile": ("Profile", PROFILE_FORMAT),
    "cluster": ("Cluster", CLUSTER_FORMAT),
    "plan": ("Plan", PLAN_FORMAT),
}
"""The definition that a document consists of, and its `format`."""

_NAME: JsonSchema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH}
_NAMES: JsonSchema = {"type": "array", "minItems": 1, "uniqueItems": True, "items": _NAME}
_SHA256: JsonSchema = {"pattern": "^[0-9a-f]{64}$"}
_ACTION: JsonSchema = {"type": "string", "pattern": f"^{ACTION_TEXT.pattern}$", "examples": ["2F0"]}

_FORMS: dict[str, dict[str, JsonSchema]] = {
    "Plan": {
        "stages": {"minItems": 1},
        "dealing": {
            "type": "array",
            "items": {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"type": "integer", "minimum": 0}},
        },
        "schedule": {
            "minProperties": 1,
            "propertyNames": _NAME,
            "additionalProperties": {"type": "array", "uniqueItems": True, "items": _ACTION},
        },
    },
    "ProblemReference": {"profile": _NAME, "profile_sha256": _SHA256, "cluster_sha256": _SHA256},
    "Stage": {
        "layers": _NAMES,
        "replicas": {"minItems": 1, "uniqueItems": True, "items": _NAMES},
        "recompute": {
            "anyOf": [
                {"type": "boolean"},
                {"type": "object", "propertyNames": _NAME, "additionalProperties": _NAME},
            ]
        },
        "recompute_microbatches": {"minItems": 1, "uniqueItems": True},
        "offload": {"minItems": 1},
        "degrees": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"enum": list(DEGREES)},
            "additionalProperties": {"type": "integer", "minimum": 2},
        },
        "input_grad_replicas": {"maxItems": 2},
        "weight_grad_replicas": {"maxItems": 2},
    },
    "BaselineResult": {"name": {"minLength": 1}},
    "Evidence": {
        "peak_bytes": {"propertyNames": _NAME, "additionalProperties": {"type": "integer", "minimum": 0}},
        **{name: {"enum": list(values)} for name, values in ALLOWED_VALUES.items()},
        "timings": {
            "additionalProperties": False,
            "properties": {name: {"enum": list(values)} for name, values in TIMINGS.items()},
        },
        "search_params": {
            "minProperties": 1,
            "propertyNames": {"pattern": PARAMETER_NAME},
            "additionalProperties": {"anyOf": [{"type": ["number", "null"]}, {"type": "array", "minItems": 1}]},
        },
        "verdict": {
            "required": ["passed", "violations"],
            "properties": {"passed": {"type": "boolean"}, "violations": {"type": "array"}},
        },
    },
}
"""What the classes of a plan do not say: its reader and the verifier do."""

_WITH_SHARDS: JsonSchema = {
    "if": {"properties": {"shard": {"enum": ["optimizer", "weights"]}}, "required": ["shard"]},
    "then": {"properties": {"replicas": {"minItems": 2}}},
}
"""One replica has nobody to shard with."""


def document_schema(kind: DocumentKind) -> JsonSchema:
    """The schema of a document, complete: what it refers to stands in it."""
    name, form = _DOCUMENTS[kind]
    known = definitions(_HERE)
    needed, waiting = set[str](), references(known[f"{name}Document"])
    while waiting:
        needed |= waiting
        waiting = set().union(*(references(known[name]) for name in waiting)) - needed
    head = {"$schema": DRAFT, "$id": f"urn:{form.replace('/', ':')}", "title": form}
    return {**head, **known[f"{name}Document"], "$defs": {name: known[name] for name in sorted(needed)}}


def render_schema(kind: DocumentKind) -> str:
    """The text of `document_schema`."""
    return json.dumps(document_schema(kind), indent=1, ensure_ascii=False) + "\n"


@cache
def definitions(ref_template: str) -> dict[str, JsonSchema]:
    """Every definition by its name; those of whole documents end in `Document`. Not to be changed."""
    found = definitions_of((Workload, Options), ref_template=ref_template)
    found |= _plan_definitions(ref_template)
    found["Profile"] = _with_size(found["ModelProfile"])
    workload = found["Workload"]["properties"]
    workload["profile"] = {**workload["profile"], "$ref": ref_template.format(model="Profile")}
    for owner in (found["Workload"], found["ProblemReference"]):
        options = owner["properties"]["options"]
        owner["properties"]["options"] = {
            "description": options["description"],
            "$ref": ref_template.format(model="Options"),
        }
    for name, form in _DOCUMENTS.values():
        found[f"{name}Document"] = _with_format(found[name], form)
    return found


def _with_size(profile: JsonSchema) -> JsonSchema:
    """Documents of version 2 state the size of a microbatch, or null."""
    return {**profile, "required": sorted({*profile["required"], "microbatch_size"})}


def _with_format(schema: JsonSchema, form: str) -> JsonSchema:
    head = {
        "$schema": {"description": "Where an editor finds this schema; read by nobody else."},
        "format": {"description": "The form of the document and its version.", "const": form},
    }
    return {**schema, "properties": {**head, **schema["properties"]}, "required": ["format", *schema["required"]]}


def _plan_definitions(ref_template: str) -> dict[str, JsonSchema]:
    found = definitions_of((Plan,), ref_template=ref_template)
    found.pop("Action")  # a document writes it as text
    for name, schema in found.items():
        properties = schema["properties"]
        for field, part in properties.items():
            properties[field] = _ranged(field, {**part, **_FORMS.get(name, {}).get(field, {})})
    places = found["Offload"]["properties"]
    for field in ("freed_before", "fetched_before"):
        places[field] = {"description": places[field]["description"], **_ACTION}
    found["Share"] = _share(found["Share"])
    found["Stage"] |= _WITH_SHARDS
    found["Evidence"]["properties"]["certificate"] |= _certificate(ref_template)
    return found


def _ranged(name: str, part: JsonSchema) -> JsonSchema:
    """The numbers of a field with their range; the unit is said in the description."""
    if (found := range_of(name)) is None:
        return part
    least, most, unit = found
    limits = {"minimum": least} | ({} if most is None else {"maximum": most})
    return {**_limited(part, limits), "description": part["description"] + (f" Unit: {unit}." if unit else "")}


def _limited(part: JsonSchema, limits: JsonSchema) -> JsonSchema:
    if part.get("type") in ("integer", "number"):
        return {**part, **limits}
    inner = {key: [_limited(each, limits) for each in part[key]] for key in ("anyOf",) if key in part}
    return {**part, **inner, **({"items": _limited(part["items"], limits)} if "items" in part else {})}


def _share(schema: JsonSchema) -> JsonSchema:
    """A document writes the share as one pair of numbers."""
    pair = {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer", "minimum": 1}}
    description = "Numerator and denominator of the share of every microbatch."
    return {
        "description": schema["description"],
        "type": "object",
        "properties": {
            "group": {"description": schema["properties"]["group"]["description"], **_NAMES, "maxItems": 1},
            "share": {"description": description, **pair, "examples": [[1, 2]]},
        },
        "required": ["group", "share"],
        "additionalProperties": False,
    }


def _certificate(ref_template: str) -> JsonSchema:
    """The numbers differ with the kind of bound (docs/proofs/bounds.md); the enclosed question has one of two forms."""
    parts = {"profile": "ModelProfile", "cluster": "Cluster"}
    whole: dict[str, Any] = {name: {"$ref": ref_template.format(model=model)} for name, model in parts.items()}
    deflated = {
        "description": "Base64 of the zlib stream of the same JSON.",
        "type": "string",
        "contentEncoding": "base64",
    }
    return {
        "properties": {
            "kind": {"description": "Which bound it is.", "type": "string"},
            "value_ns": {"description": "The bound. Unit: nanoseconds.", "type": "integer", "minimum": 0},
            "enclosed": {
                "description": "The question that the bound holds for.",
                "type": "object",
                "oneOf": [
                    {"required": sorted(whole), "additionalProperties": False, "properties": whole},
                    {"required": ["deflated"], "additionalProperties": False, "properties": {"deflated": deflated}},
                ],
            },
        }
    }
