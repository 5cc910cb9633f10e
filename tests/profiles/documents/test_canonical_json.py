"""Frozen data to canonical JSON and its content hash: tests of profiles/documents/canonical_json.py."""

from profiles.documents.canonical_json import to_plain
from tests.planner import builders
from tests.planner.builders import make_link, make_problem


def test_documents_without_kinds_are_as_before():
    """Tests that neither a profile, nor a plan, nor options mention what they do not use."""
    problem = make_problem([builders.make_layer("x")], [make_link("a b")], recompute=True)
    assert "recompute_kinds" not in str(to_plain(problem.profile))
    assert to_plain(problem.options) == {"recompute": True}
