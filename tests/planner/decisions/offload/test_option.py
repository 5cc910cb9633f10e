"""What offload needs and excludes: tests of planner/decisions/offload/option.py."""

from dataclasses import replace

import pytest

from planner.export.samples import require_told
from planner.export.targets import TARGETS, restrict
from planner.problem import Options
from tests.planner.offloads import chain


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "executor"])
def test_other_programs_do_not_offload_single_microbatches(name: str):
    """Tests that their plans are made without, and that a plan with it is refused with the remedy."""
    problem, plan = chain("0 0F2 0B0", "")
    assert not restrict(problem.options, TARGETS[name]).offload
    with pytest.raises(ValueError, match="offload = false"):
        require_told(plan, what=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": "looped", "split_backward": False}, "order = looped; .* set order to any"),
        ({"split_placement": True}, "set split_placement to false"),
        ({"shard_optimizer": "allow", "max_active_stages": 1}, "leave max_active_stages out"),
    ],
)
def test_what_offload_excludes(changes: dict, message: str):
    """Tests that options which exclude it are named with the remedy."""
    with pytest.raises(ValueError, match=message):
        Options(offload=True, **changes)


def test_clusters_without_host_links_are_refused():
    """Tests that a question needs a device with a host link, on a cluster whose devices compute while they send."""
    problem, _ = chain("", "")
    for changes, message in (
        ({"devices": tuple(replace(each, host_link="") for each in problem.cluster.devices)}, "has a host_link"),
        ({"overlap": False}, "set overlap to true"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(problem, cluster=replace(problem.cluster, **changes))
    profile = replace(problem.profile, microbatch_size=1)
    with pytest.raises(ValueError, match="only for microbatches of one size"):
        replace(problem, profile=profile, microbatches=(1, 1, 1))
