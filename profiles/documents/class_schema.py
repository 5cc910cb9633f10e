"""Dataclasses to JSON Schema: types, ranges and units of their fields, and their docstrings as descriptions."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from profiles.documents.schema_rules import COMPONENT
from profiles.field_rules import UNIT, JsonSchema

DRAFT = "https://json-schema.org/draft/2020-12/schema"


class _Described(GenerateJsonSchema):
    """Fields with their docstrings, and without titles, which would repeat their names.

    pydantic reads docstrings for every validator too, which takes as long as to load it.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False

    def dataclass_schema(self, schema: Any) -> JsonSchema:
        """The schema with what stands below the fields, and with what holds of several (`__schema_rules__`)."""
        made = super().dataclass_schema(schema)
        for name, text in field_docstrings(schema["cls"]):
            made["properties"][name].setdefault("description", text)
        return made | getattr(schema["cls"], "__schema_rules__", {})


def field_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """The fields of a class that have a docstring below them, each with it."""
    (found,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(found, ast.ClassDef)
    for stated, text in pairwise(found.body):
        match stated, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                yield name, inspect.cleandoc(docstring)


def definitions_of(kinds: Iterable[type], *, ref_template: str) -> dict[str, JsonSchema]:
    """The schema of each dataclass and of all that they consist of, by the names of the classes.

    `ref_template` says where a reference finds `{model}`, as `#/$defs/{model}`.
    """
    adapters = [(kind, "validation", TypeAdapter[Any](kind)) for kind in kinds]
    _, found = TypeAdapter.json_schemas(
        adapters,  # type: ignore[arg-type]
        ref_template=ref_template,
        schema_generator=_Described,
    )
    return {name: _tidied(linked(schema, ref_template)) for name, schema in found["$defs"].items()}


def linked(tree: Any, ref_template: str | None) -> Any:
    """The schema with references to what stands elsewhere; without a template it says nothing of that."""
    if isinstance(tree, list):
        return [linked(each, ref_template) for each in tree]
    if not isinstance(tree, dict):
        return tree
    found = {name: linked(each, ref_template) for name, each in tree.items() if name != COMPONENT}
    if COMPONENT in tree and ref_template is not None:
        found["$ref"] = ref_template.format(model=tree[COMPONENT])
    return found


def _tidied(schema: JsonSchema) -> JsonSchema:
    """The schema of a class as people read it: units in the descriptions, JSON's words for Python's."""
    described = {key: value for key, value in schema.items() if key != "title"}
    described["description"] = _in_json_terms(schema.get("description", ""))
    described["properties"] = {name: _described(part) for name, part in schema.get("properties", {}).items()}
    return described


def _described(schema: JsonSchema) -> JsonSchema:
    units = dict.fromkeys(part.pop(UNIT) for part in (schema, *schema.get("anyOf", ())) if UNIT in part)
    parts = [_in_json_terms(schema.get("description", "")), *(f"Unit: {unit}." for unit in units)]
    if "type" in schema and schema.get("default", ...) is None:  # left out where there is nothing, never null
        schema = {key: part for key, part in schema.items() if key != "default"}
    text = " ".join(part for part in parts if part)
    rest = {key: part for key, part in schema.items() if key != "description"}
    return {"description": text, **rest} if text else rest


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
