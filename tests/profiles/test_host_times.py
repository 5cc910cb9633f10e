"""Tests of profiles/host_times.py."""

from dataclasses import replace

import pytest

from profiles.host_times import HostTime
from profiles.model_profile import Layer, LayerCost
from tests.planner.builders import make_plan, make_problem
from tests.planner.judge.test_host_pace import asks, ends_of
from tests.planner.layout.test_two_clocks import timed_layer


def on_one_device(layers: list[Layer], stages: list[str], order: str) -> dict[str, int]:
    """The same on a device alone."""
    problem = make_problem(layers, [], more_devices="a")
    return ends_of(problem, make_plan(problem, stages, {"a": order}))


def test_host_that_is_slower_sets_the_pace():
    """Tests that two actions end when the host has asked for the first, and for both."""
    layers = [timed_layer("x", (2, 2, 0), (5, 5, 0)), timed_layer("y", (2, 2, 0), (5, 5, 0))]
    ends = on_one_device(layers, ["x @ a", "y @ a"], "0F0 1F0 1I0 0I0")
    assert ends == {"0F0": 5, "1F0": 10, "1I0": 15, "0I0": 20}


def test_host_gets_ahead_while_the_card_works():
    """Tests that a backward takes 36 where the card alone says 56.9: its host began while the card was busy."""
    block = timed_layer("block", (100, 300, 0), (19_900, 44_400, 0))
    head = timed_layer("head", (8_900, 12_500, 0), (0, 0, 0))
    ends = on_one_device([block, head], ["block head @ a"], "0F0 0I0")
    assert ends["0F0"] == 28_800
    assert ends["0I0"] - ends["0F0"] == 19_900 + 44_400 - 28_800  # the block's I waits for a host that began at 19.9


def test_host_is_at_most_two_actions_ahead():
    """Tests that the host asks for the fourth action when the first has ended."""
    layers = [timed_layer(name, (10, 0, 0), (1, 0, 0)) for name in "wxyz"]
    slow = timed_layer("last", (2, 0, 0), (50, 0, 0))
    stages = ["w @ a", "x @ a", "y @ a", "last @ a", "z @ a"]
    problem = make_problem([*layers[:3], slow, layers[3]], [], more_devices="a")
    order = "0F0 1F0 2F0 3F0 4F0 4I0 3I0 2I0 1I0 0I0"
    ends = ends_of(problem, make_plan(problem, stages, {"a": order}))
    assert [ends[f"{stage}F0"] for stage in range(3)] == [10, 20, 30]
    assert ends["3F0"] == 10 + 50, "asked for once the first had ended, not at 3"


def test_first_and_last_kernels_count():
    """Tests that the card begins after the first kernel was asked for, and ends a kernel after the last was."""
    early = HostTime(action="F", host_ns=10, first_ns=4, last_ns=3)
    cost = LayerCost(
        device_type="gpu", forward_ns=20, input_grad_ns=5, weight_grad_ns=0,
        host=(early, HostTime(action="I", host_ns=30, last_ns=2)),
    )  # fmt: skip
    ends = on_one_device([Layer(name="x", costs=(cost,))], ["x @ a"], "0F0 0I0")
    assert ends == {"0F0": 4 + 20, "0I0": 10 + 30 + 2}


def test_backward_goes_through_the_layers_backwards_and_recomputes_in_between():
    """Tests that the order of layers within an action counts, and that of recomputation."""
    slow = timed_layer("slow", (1, 1, 0), (9, 9, 0), checkpoint_bytes=0, stash_bytes=0)
    busy = timed_layer("busy", (9, 9, 0), (1, 1, 0))
    # F: the host asks slow until 9, the card then works 9 for busy
    assert on_one_device([slow, busy], ["slow busy @ a"], "0F0 0I0")["0F0"] == 18
    # I: busy is asked for at 11, works from 18 to 27; slow is asked for at 20
    assert on_one_device([slow, busy], ["slow busy @ a"], "0F0 0I0")["0I0"] == 28


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (asks(F=1), "states no time for 'I'"),
        (asks(F=1, I=1), "states no time for 'W'"),
        (asks(F=1, I=1, W=1, X=1), "states 'X', which is none of its actions"),
        (asks(F=1, I=1, W=1) + asks(F=2), "host time of 'F' occurs twice"),
    ],
)
def test_host_times_that_do_not_fit(host: tuple[HostTime, ...], message: str):
    """Tests that a cost says of all its actions what the host takes, and of no others."""
    with pytest.raises(ValueError, match=message):
        LayerCost(device_type="gpu", forward_ns=1, input_grad_ns=1, weight_grad_ns=1, host=host)


def test_first_kernel_is_not_asked_for_after_the_last():
    """Tests that first_ns is a part of host_ns."""
    with pytest.raises(ValueError, match="first_ns = 2 exceeds host_ns = 1"):
        HostTime(action="F", host_ns=1, first_ns=2)


def test_all_costs_of_a_device_type_state_host_times():
    """Tests that a layer without host times among others is refused."""
    layers = [timed_layer("x", (1, 1, 0), (1, 1, 0)), replace(timed_layer("y", (1, 1, 0), (1, 1, 0)), name="y")]
    layers[1] = replace(layers[1], costs=tuple(replace(cost, host=()) for cost in layers[1].costs))
    with pytest.raises(ValueError, match="layer 'x' states host times and 'y' has a cost without"):
        make_problem(layers, [], more_devices="a")


@pytest.mark.parametrize("change", [{"overlap": False}, {"split_placement": True}])
def test_what_has_no_two_clocks_is_refused(change: dict[str, object]):
    """Tests that devices which do not compute while they send, and split placement, know no host times."""
    with pytest.raises(ValueError, match="states host times with"):
        make_problem([timed_layer("x", (1, 1, 0), (1, 1, 0))], [], more_devices="a", **change)
