"""What a class says of its schema beyond the types of its fields; it checks the same in words of its own.

priority: Annotated[int, Stated(minimum=-10, maximum=10)] = 0
"""

from collections.abc import Callable
from typing import Any

from profiles.field_rules import JsonSchema

NO_NUL = "^[^\\u0000]*$"
"""Of every text: no database takes a NUL."""

COMPONENT = "x-component"
"""Keyword that `profiles.documents.class_schema` makes a reference of, to what another document defines."""

JSON_OBJECT: JsonSchema = {
    "type": "object",
    "propertyNames": {"pattern": NO_NUL},
    "additionalProperties": {COMPONENT: "Json"},
}
"""An object with any properties; `Json` is any JSON."""


class Stated:
    """Stands beside a type in `Annotated`: keywords that are added to its schema, or `instead` of it."""

    def __init__(self, instead: JsonSchema | None = None, **keywords: Any) -> None:
        self._instead, self._keywords = instead, keywords

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], JsonSchema]) -> JsonSchema:
        """The schema of the type with the keywords."""
        return {**(handler(core) if self._instead is None else self._instead), **self._keywords}


def given(name: str, schema: JsonSchema) -> JsonSchema:
    """The property is there, and as `schema` says."""
    return {"properties": {name: schema}, "required": [name]}


def not_together(*names: str) -> JsonSchema:
    """These whole numbers are not all given; null is none."""
    return {"not": {"allOf": [given(name, {"type": "integer"}) for name in names]}}
