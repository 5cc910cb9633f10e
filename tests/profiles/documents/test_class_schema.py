"""Dataclasses to JSON Schema: tests of profiles/documents/class_schema.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from profiles.documents.class_schema import references

if TYPE_CHECKING:
    pass


def test_schemas_stand_alone():
    """Tests that a tool's schemas refer to nothing outside them, and that arguments are one object, as models want."""
    from api.agents.tools import make_tools

    for tool in make_tools():
        arguments, answer = tool.input_schema(), tool.answer
        assert arguments["type"] == "object"
        assert not {"anyOf", "allOf", "oneOf", "not"} & set(arguments), tool.name
        for schema in (arguments, answer):
            text = json.dumps(schema)
            assert "x-component" not in text
            assert "#/components" not in text
            assert references(schema) <= set(schema.get("$defs", {}))
