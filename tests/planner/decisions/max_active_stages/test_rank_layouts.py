"""Tests of planner/decisions/max_active_stages/rank_layouts.py."""

from dataclasses import replace

from planner.decisions.max_active_stages.rank_layouts import even_layouts
from planner.problem import Options
from tests.planner.decisions.max_active_stages.test_plans import given_ranks


def test_even_layouts_are_ranks_of_equal_width():
    """Tests that layers are cut evenly, in a loop, on two and on four devices, with up to four stages of a device."""
    problem = replace(given_ranks(1000), options=Options(max_stages_per_device=4, max_replicas=2))
    layouts = [[len(stage.layers) for stage in stages] for stages in even_layouts(problem)]
    assert layouts == [[4, 4], [2] * 4, [1, 2, 1] * 2, [1] * 8]
    ranks = {stage.replicas for stages in even_layouts(problem) for stage in stages}
    assert ranks == {(("a",), ("b",)), (("c",), ("d",))}
