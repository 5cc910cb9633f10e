"""A plan in the form of the zero-bubble fork of Megatron: tests of planner/export/zero_bubble.py."""

import json

import pytest

from planner.export.torch_table import torch_ranks
from planner.export.zero_bubble import render_zero_bubble
from tests.planner.export.chains import make_plan as draw_plan
from tests.planner.export.reading_back import import_zero_bubble
from tests.planner.export.test_targets import language_model


def test_zero_bubble_nodes_lead_back():
    """Tests that nodes name rank, chunk and stage, that B and I change their letters, and that all of it leads back."""
    problem = language_model(num_microbatches=2)
    drawing = "d1: 0F0 0F1 2F0 2I0 2F1 2B1 2W0 0B0 0B1\nd0: 1F0 1F1 1I0 1W0 1B1"
    plan = draw_plan(problem, drawing, stages="0@d1 1@d0 2@d1")
    text = render_zero_bubble(plan)
    rows = json.loads(text)
    assert rows[0][3] == {"type": "B", "stage": 0, "microbatch": 0, "chunk": 1, "layer_group_idx": 2}
    assert [node["type"] for node in rows[1]] == ["F", "F", "B", "W", "BW"]
    assert import_zero_bubble(text, torch_ranks(plan)) == plan.schedule
    with pytest.raises(ValueError, match="no schedule for 3 ranks"):
        import_zero_bubble(text, ("a", "b", "c"))
