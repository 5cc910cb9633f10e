"""Interleaved zero-bubble: tests of planner/baselines/zero_bubble/zb_interleaved.py."""

from tests.planner.baselines.drawings import require_as_kept


def test_the_schedule_is_drawn_as_kept():
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept("interleaved ZB")
