"""Tests of profiles/estimates/run_settings.py."""

from dataclasses import fields

from profiles.configurations.run_configuration import RunConfiguration
from profiles.estimates.run_settings import RunSettings


def test_configurations_state_every_setting():
    """Tests that a configuration has all that estimates ask of a run, under the same names, so none is forgotten."""
    assert {each.name for each in fields(RunSettings)} <= {each.name for each in fields(RunConfiguration)}
