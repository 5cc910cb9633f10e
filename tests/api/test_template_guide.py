"""What stands in a template and is to be replaced: tests of api/template_guide.py."""

import json

from api.template_guide import find_numbers
from profiles.template import make_template
from tests.api.worlds import Shell


def test_the_numbers_are_explained(shell: Shell):
    """Tests that every number of the template is named on standard error, with its value, unit and meaning."""
    made = shell.run("new", "workload")
    assert json.loads(made.out)["format"] == "pipeline-workload/2"
    found = find_numbers(make_template(num_layers=4, num_devices=2, num_microbatches=8))
    assert len(found) >= 14
    said = " ".join(made.err.split())
    assert 'list their sizes: "microbatches": [310, 42] in place of num_microbatches.' in said
    for place, (value, meaning) in found.items():
        assert f"{place} {value:,} {meaning.split()[0]}" in said
        assert "Unit: " in meaning
    assert found["profile.layers[].stash_bytes"] == (
        200_000_000,
        "Held from the start of F to the end of I, per microbatch. Unit: bytes.",
    )
