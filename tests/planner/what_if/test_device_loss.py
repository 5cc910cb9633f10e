"""What is left of a problem, and of a plan, when devices are lost: tests of planner/what_if/device_loss.py."""

from dataclasses import replace

import pytest

from planner.verify import verify
from planner.what_if.device_loss import adapt_plan, find_lost, without_devices
from tests.planner.export.chains import make_chain, make_plan
from tests.planner.replanning.test_observations import example


def test_lost_names_are_devices_or_hosts():
    """Tests that a host stands for its devices, and that unknown names are refused, and names of all devices."""
    problem, _ = example()
    devices = tuple(replace(device, host="a" if device.name != "d2" else "b") for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    assert find_lost(problem, ["a"]) == {"d0", "d1"}
    assert find_lost(problem, ["d2"]) == {"d2"}
    with pytest.raises(ValueError, match="--lost d9: no device or host of the cluster; give one of a, b, d0, d1, d2"):
        find_lost(problem, ["d9"])
    with pytest.raises(ValueError, match="--lost a, d2 removes every device; keep at least one"):
        find_lost(problem, ["a", "d2"])


@pytest.mark.parametrize("lost", ["d0", "d1", "d2"])
def test_the_next_stage_takes_a_lost_one_in(lost: str):
    """Tests that the adapted plan is a valid plan of what is left, whichever device of a chain is lost."""
    problem = make_chain("wwww", num_devices=3, num_microbatches=2)
    drawing = "d0: 0F0 0F1 0B0 0B1 \nd1: 1F0 1B0 1F1 1B1\nd2: 2F0 2B0 2F1 2B1"
    plan = make_plan(problem, drawing, stages="0,1@d0 2@d1 3@d2")
    left = without_devices(problem, {lost})
    adapted = adapt_plan(plan, {lost})
    assert adapted is not None
    assert verify(left, replace(adapted, problem=left.reference())).passed
    sizes = {"d0": [3, 1], "d1": [2, 2], "d2": [2, 2]}
    assert [len(stage.layers) for stage in adapted.stages] == sizes[lost]


def test_a_replicated_stage_goes_on_with_fewer():
    """Tests that a lost replica is left out, and that a plan all of whose devices are lost leaves nothing."""
    problem = make_chain("ww", num_devices=3, num_microbatches=1)
    plan = make_plan(problem, "d0: 0F0 0B0\nd1: 1F0 1B0\nd2: 0F0 0B0", stages="0@d0 1@d1")
    plan = replace(plan, stages=(replace(plan.stages[0], replicas=(("d0",), ("d2",))), plan.stages[1]))
    adapted = adapt_plan(plan, {"d2"})
    assert adapted is not None
    assert adapted.stages[0].replicas == (("d0",),)
    assert set(adapted.schedule) == {"d0", "d1"}
    assert adapt_plan(plan, {"d0", "d1", "d2"}) is None
