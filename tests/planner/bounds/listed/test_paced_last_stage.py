"""The floor under dealings by how long the last stage waits."""

from planner.bounds.listed.paced_last_stage import TOO_LONG, bound_last_stage


def test_nothing_is_said_of_one_stage_or_times_beyond_64_bits():
    """Tests that where there is no stage before the last, and where sums would not fit, the bound is 0."""
    assert bound_last_stage([], [], pipelines=2) == 0
    assert bound_last_stage([(5,)], [(5,)], pipelines=2) == 0
    assert bound_last_stage([(TOO_LONG, 1)], [(1, 1)], pipelines=2) == 0
