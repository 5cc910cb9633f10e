"""Dataclasses to JSON Schema: types, ranges and units of their fields, and their docstrings as descriptions."""

import re
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from profiles.field_rules import UNIT, JsonSchema

DRAFT = "https://json-schema.org/draft/2020-12/schema"


class _Untitled(GenerateJsonSchema):
    """A title would repeat the field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


def definitions_of(kinds: Iterable[type], *, ref_template: str) -> dict[str, JsonSchema]:
    """The schema of each dataclass and of all that they consist of, by the names of the classes.

    `ref_template` says where a reference finds `{model}`, as `#/$defs/{model}`.
    """
    adapters = [(kind, "validation", TypeAdapter[Any](kind)) for kind in kinds]
    _, found = TypeAdapter.json_schemas(
        adapters,  # type: ignore[arg-type]
        ref_template=ref_template,
        schema_generator=_Untitled,
    )
    return {name: _tidied(schema) for name, schema in found["$defs"].items()}


def _tidied(schema: JsonSchema) -> JsonSchema:
    """The schema of a class as people read it: units in the descriptions, JSON's words for Python's."""
    described = {key: value for key, value in schema.items() if key != "title"}
    described["description"] = _in_json_terms(schema.get("description", ""))
    described["properties"] = {name: _described(part) for name, part in schema.get("properties", {}).items()}
    return described


def _described(schema: JsonSchema) -> JsonSchema:
    units = dict.fromkeys(part.pop(UNIT) for part in (schema, *schema.get("anyOf", ())) if UNIT in part)
    parts = [_in_json_terms(schema.get("description", "")), *(f"Unit: {unit}." for unit in units)]
    return {"description": " ".join(parts), **{key: part for key, part in schema.items() if key != "description"}}


def _in_json_terms(text: str) -> str:
    """A docstring in one line, with null for None."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))


def references(tree: object) -> set[str]:
    """The definitions that a schema refers to, by name."""
    if isinstance(tree, list):
        return set().union(*map(references, tree))
    if not isinstance(tree, dict):
        return set()
    target = tree.get("$ref")
    own = {target.rpartition("/")[2]} if isinstance(target, str) else set()
    return own.union(*map(references, tree.values()))
