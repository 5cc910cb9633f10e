"""Tests of planner/documents/plan_values.py."""

from planner.documents.plan_values import RANGES
from planner.documents.schema import _FORMS, definitions


def test_what_is_added_to_the_classes_of_plans_is_about_their_fields():
    """Tests that every form and range that the tables state is that of a field."""
    found = definitions("{model}")
    for name, forms in _FORMS.items():
        assert set(forms) <= set(found[name]["properties"])
    fields = {
        field
        for name in (*_FORMS, "ImproverTally", "RentalResult", "SizeResult")
        for field in found[name]["properties"]
    }
    assert set(RANGES) <= fields
