"""Tests of planner/replanning/migration.py."""

from planner.replanning.migration import make_recipe, summarise_recipe
from planner.what_if.device_loss import without_devices
from tests.planner.export.chains import make_plan
from tests.planner.replanning.test_observations import example


def test_only_what_is_not_there_moves():
    """Tests that the state of each layer moves to devices that lack it, from who sends it soonest, or a checkpoint."""
    problem, plan = example()
    other = make_plan(problem, "", stages="0@d0 1,2@d2 3@d1")
    recipe = make_recipe(problem, before=plan.stages, after=other.stages)
    moves = [(move.source, move.target, move.layers, move.num_bytes) for move in recipe.moves]
    assert moves == [("d0", "d2", ("l1",), 120), ("d1", "d2", ("l2",), 120)]
    assert [move.duration_ns for move in recipe.moves] == [120, 120]  # a byte takes a nanosecond
    assert (recipe.moved_bytes, recipe.restored_bytes, recipe.duration_ns) == (240, 0, 120)
    lost = make_recipe(without_devices(problem, {"d1"}), before=plan.stages, after=other.stages, lost={"d1"})
    assert [(move.source, move.target, move.layers) for move in lost.moves][:2] == [
        ("d0", "d2", ("l1",)),
        (None, "d2", ("l2",)),
    ]
    assert lost.restored_bytes == 240
    summary = summarise_recipe(recipe)
    assert summary["moves"][0]["keys"] == ["weights/l1:", "optimizer/l1:"]
    assert make_recipe(problem, before=plan.stages, after=plan.stages).moves == ()


def test_moves_over_one_link_are_added_up():
    """Tests that the least time of a recipe is that of its busiest link."""
    problem, plan = example()
    other = make_plan(problem, "", stages="0@d0 1@d2 2,3@d1")
    spread = make_plan(problem, "", stages="0,1,2,3@d2")
    assert make_recipe(problem, before=plan.stages, after=other.stages).duration_ns == 120
    assert make_recipe(problem, before=plan.stages, after=spread.stages).duration_ns == 240
