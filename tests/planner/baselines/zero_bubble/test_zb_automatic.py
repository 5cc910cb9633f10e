"""The automatic zero-bubble schedule: tests of planner/baselines/zero_bubble/zb_automatic.py."""

from tests.planner.baselines.drawings import require_as_kept


def test_the_schedule_is_drawn_as_kept():
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept("ZB automatic")
