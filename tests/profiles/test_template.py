"""A workload to fill in: tests of profiles/template.py."""

from profiles.load import parse_workload
from profiles.template import make_template
from profiles.workload import dump_workload


def test_older_documents_state_nothing():
    """Tests that a document without the field is read and written as before, to the letter."""
    text = dump_workload(make_template(num_layers=2, num_devices=2, num_microbatches=2))
    assert "assumptions" not in text
    read = parse_workload(text.encode(), source="w")
    assert read.profile.assumptions is None
    assert dump_workload(read) == text
