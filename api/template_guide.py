"""What stands in a template and is to be replaced: every number with its meaning, as the schema states it."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from planner.documents.schema import definitions
from profiles.field_rules import JsonSchema
from profiles.workload import Workload, workload_to_plain


def render_guide(workload: Workload) -> RenderableType:
    """A table of the numbers of a template, those of entries that are alike in one row."""
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    for place, (value, meaning) in find_numbers(workload).items():
        table.add_row(place, f"{value:,}", meaning)
    return table


def find_numbers(workload: Workload) -> dict[str, tuple[float, str]]:
    """Where numbers stand (`profile.layers[].stash_bytes`), the first of each, and what they mean."""
    found: dict[str, tuple[float, str]] = {}
    for place, value, meaning in _numbers(workload_to_plain(workload), {"$ref": "/WorkloadDocument"}, place=""):
        found.setdefault(place, (value, meaning))
    return found


def _numbers(tree: Any, schema: JsonSchema, *, place: str) -> Iterator[tuple[str, float, str]]:
    """Every number below `tree`, with its place and its description."""
    if isinstance(tree, dict):
        properties = _resolve(schema)["properties"]
        for name, part in tree.items():
            yield from _numbers(part, properties[name], place=f"{place}.{name}" if place else name)
    elif isinstance(tree, list):
        for part in tree:
            yield from _numbers(part, schema["items"], place=f"{place}[]")
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield place, tree, schema["description"]


def _resolve(schema: JsonSchema) -> JsonSchema:
    """The definition that a schema refers to, perhaps beside null."""
    targets = [part["$ref"] for part in (schema, *schema.get("anyOf", ())) if "$ref" in part]
    return definitions("/{model}")[targets[0].rpartition("/")[2]]
