"""Interleaved 1F1B: tests of planner/baselines/interleaved.py."""

from tests.planner.baselines.drawings import require_as_kept


def test_the_schedule_is_drawn_as_kept():
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept("interleaved 1F1B")
