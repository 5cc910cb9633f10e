"""Groups of a host's cores as processes with threads."""

import pytest

from planner.execute.run.core_groups import as_processes, cores_of, pick_cores
from planner.execute.table.layout import make_layout
from tests.planner.execute.orders import make_random_plan

HOSTS = {
    "devices": [
        {"name": "d0", "host": "a"},
        {"name": "d1", "host": "a", "cores": 2},
        {"name": "d2", "host": "b"},
        {"name": "d3", "host": "b"},
    ]
}


def test_a_group_becomes_one_process():
    """Tests that the first core of each group has its process, with the group's actions and stages."""
    plan = make_random_plan("0+1 2", num_microbatches=2)
    merged, groups = as_processes(plan)
    assert groups == {"d0": ("d0", "d1"), "d2": ("d2",)}
    assert make_layout(merged).devices == ("d0", "d2")
    assert merged.schedule == {"d0": plan.schedule["d0"], "d2": plan.schedule["d2"]}
    assert [stage.replicas for stage in merged.stages] == [(("d0",),), (("d2",),)]


def test_groups_that_overlap_are_refused():
    """Tests that a core that is in two different groups is named."""
    with pytest.raises(ValueError, match=r"d1 is in the groups d0, d1 and d1, but a process drives one"):
        as_processes(make_random_plan("0+1 1", num_microbatches=2))


def test_devices_stand_for_cores_in_the_order_of_their_host():
    """Tests that a device of two cores moves the next ones on, host by host, and that no cluster means one host."""
    cores = cores_of(HOSTS, ())
    assert pick_cores(("d0",), cores, usable=(4, 5, 6)) == (4,)
    assert pick_cores(("d0", "d1"), cores, usable=(4, 5, 6)) == (4, 5, 6)
    assert pick_cores(("d3",), cores, usable=(4, 5, 6)) == (5,)
    assert pick_cores(("d3",), cores_of(None, ("d2", "d3")), usable=(0, 1)) == (1,)


def test_too_few_cores_are_named():
    """Tests that groups over two hosts, unknown devices and cores that are not there are refused."""
    cores = cores_of(HOSTS, ())
    with pytest.raises(ValueError, match="d1 stand for cores 1, 2, but this process may use 2"):
        pick_cores(("d1",), cores, usable=(0, 1))
    with pytest.raises(ValueError, match="d1, d2 are not on one host"):
        pick_cores(("d1", "d2"), cores, usable=(0, 1, 2))
    with pytest.raises(ValueError, match="does not have d9"):
        pick_cores(("d9",), cores, usable=(0,))
