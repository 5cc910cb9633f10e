"""A problem with changed costs: tests of planner/what_if/profile_changes.py."""

from planner.what_if.profile_changes import with_faster_device
from tests.planner.judge.test_synchronisation import two_stages


def test_a_faster_device_steps_faster():
    """Tests that 10 % more speed is 10/11 of the step, rounded up."""
    problem, _ = two_stages(11, 5)
    faster = with_faster_device(problem, "a")
    assert [layer.optimizer_ns(faster.cluster.by_name["a"].type) for layer in faster.profile.layers] == [10, 5]
