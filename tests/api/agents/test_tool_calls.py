"""What the tools take beside the bodies that the service reads itself: tests of api/agents/tool_calls.py."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def test_answers_are_whole_schemas():
    """Tests that all that a tool's answer refers to stands in its own schema, for clients that check answers."""
    from jsonschema import Draft202012Validator

    from api.agents.tools import make_tools

    for tool in make_tools():
        Draft202012Validator.check_schema(tool.answer)
        told = json.dumps(tool.answer)
        assert set(re.findall(r'"#/([^"]*)/\w+"', told)) <= {"$defs"}
        assert set(re.findall(r'"#/\$defs/(\w+)"', told)) == set(tool.answer.get("$defs", ()))
