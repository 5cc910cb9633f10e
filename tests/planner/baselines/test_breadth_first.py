"""Breadth-first pipelines: tests of planner/baselines/breadth_first.py."""

from tests.planner.baselines.drawings import require_as_kept


def test_the_schedule_is_drawn_as_kept():
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept("breadth-first")
