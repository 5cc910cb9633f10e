"""The greedy order under caps, one stage per device: tests of planner/baselines/greedy/capped_greedy.py."""

import pytest

from tests.planner.baselines.drawings import require_as_kept


@pytest.mark.parametrize("method", ["capped greedy", "capped 1F1B"])
def test_the_schedule_is_drawn_as_kept(method: str):
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept(method)
