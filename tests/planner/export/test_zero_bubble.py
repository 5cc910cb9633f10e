"""A plan in the form of the zero-bubble fork of Megatron: tests of planner/export/zero_bubble.py."""

import json

import pytest

from planner.export.torch_table import torch_ranks
from planner.export.zero_bubble import render_zero_bubble
from tests.planner.export.chains import make_chain
from tests.planner.export.chains import make_plan as draw_plan
from tests.planner.export.reading_back import import_zero_bubble


def test_zero_bubble_nodes_lead_back():
    """Tests that nodes name rank, chunk and stage, that B and I change their letters, and that all of it leads back."""
    problem = make_chain("www", num_devices=3, num_microbatches=2)
    drawing = "d1: 0F0 0F1 2F0 2I0 2F1 2B1 2W0 0B0 0B1\nd0: 1F0 1F1 1I0 1W0 1B1"
    plan = draw_plan(problem, drawing, stages="0@d1 1@d0 2@d1")
    text = render_zero_bubble(problem, plan)
    rows = json.loads(text)
    assert rows[0][3] == {"type": "B", "stage": 0, "microbatch": 0, "chunk": 1, "layer_group_idx": 2}
    assert [node["type"] for node in rows[1]] == ["F", "F", "B", "W", "BW"]
    assert import_zero_bubble(text, torch_ranks(plan)) == plan.schedule
    with pytest.raises(ValueError, match="no schedule for 3 ranks"):
        import_zero_bubble(text, ("a", "b", "c"))


def test_stages_that_feed_others_than_the_next():
    """Tests that a plan in which a stage feeds the one after the next is refused, for no rank would pass it on."""
    problem = make_chain("www", num_devices=3, num_microbatches=2)
    plan = draw_plan(problem, "d0: 0F0 0B0\nd1: 1F0 1B0\nd2: 2F0 2B0", stages="0@d0 2@d1 1@d2")
    with pytest.raises(ValueError, match="stage 0 feeds stage 2, but in the fork a stage feeds only the next one"):
        render_zero_bubble(problem, plan)
