"""The greedy order under caps with several chunks per device: tests of planner/baselines/greedy/capped_chunks.py."""

import pytest

from tests.planner.baselines.drawings import require_as_kept


@pytest.mark.parametrize("method", ["capped loop", "capped loop 1F1B", "capped V", "capped V 1F1B"])
def test_the_schedule_is_drawn_as_kept(method: str):
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept(method)
