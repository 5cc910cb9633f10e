"""A problem on a changed cluster: tests of planner/what_if/cluster_changes.py."""

from dataclasses import replace

from planner.verify import verify
from planner.what_if.cluster_changes import with_link_speed
from tests.planner.judge.test_routes import cases


def test_slower_links_never_help():
    """Tests that what-if questions change links that state times by size, and that half the speed takes no less."""
    for problem, plan in cases():
        slower = with_link_speed(problem, 0.5)
        for link, slow in zip(problem.cluster.links, slower.cluster.links, strict=True):
            assert all(slow.moving_ns(size) >= link.moving_ns(size) for size in range(60))
        assert verify(slower, replace(plan, problem=slower.reference())).violations == ()
