"""Tests of api/jobs/plan_forms.py."""

from typing import get_args

from api.jobs.plan_forms import Export, Form, media_of
from api.jobs.workers.inspection import _DRAWINGS
from api.service.openapi import make_document


def test_every_form_can_be_made_and_is_described():
    """Tests that all forms have somebody who makes them, and stand in the interface's document with their types."""
    assert {*get_args(Form)} == {*_DRAWINGS, "picture"}
    document = make_document()
    assert document["components"]["schemas"]["Playback"]["properties"]["what"]["enum"] == [*get_args(Form)]
    export = document["paths"]["/v1/plans/{plan_id}/export/{form}"]["get"]
    (form,) = (each for each in export["parameters"] if each["name"] == "form")
    assert {*form["schema"]["enum"]} == {*get_args(Export)}
    assert {*export["responses"]["200"]["content"]} == {media_of(form) for form in get_args(Export)}
