"""What a class says of its schema: tests of profiles/documents/schema_rules.py."""

from typing import Annotated, Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from profiles.documents.schema_rules import JSON_OBJECT, Stated, not_together


def test_keywords_are_added_to_the_schema_of_the_type():
    """Tests that they stand beside those of the type, or instead of them, and that the type is checked as before."""
    schema = TypeAdapter(Annotated[int, Stated(minimum=-10, maximum=10)]).json_schema()
    assert schema == {"type": "integer", "minimum": -10, "maximum": 10}
    assert TypeAdapter(Annotated[dict[str, Any], Stated(JSON_OBJECT)]).json_schema() == JSON_OBJECT
    assert TypeAdapter(Annotated[int, Stated(minimum=5)]).validate_python(1) == 1


@pytest.mark.parametrize(
    ("document", "is_valid"),
    [
        ({}, True),
        ({"a": 1}, True),
        ({"a": 1, "b": None}, True),
        ({"a": None, "b": None}, True),
        ({"a": 1, "b": 2}, False),
    ],
)
def test_some_numbers_are_not_given_together(document: dict[str, int | None], is_valid: bool):
    """Tests that one number may be given and null is none."""
    assert jsonschema.Draft202012Validator(not_together("a", "b")).is_valid(document) is is_valid
