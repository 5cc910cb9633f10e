"""What a what-if may change, and that the changed problem is the one that was asked for."""

from dataclasses import replace

import pytest

from planner.problem import PinnedLayer, Problem
from planner.what_if.change import Change, apply_change, find_gone, other_cuts
from planner.what_if.cluster_changes import with_twins
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Layer, LayerCost
from tests.planner.builders import make_layer, make_link, make_problem

LAYERS = [make_layer("l0"), make_layer("l1"), make_layer("l2")]


def make_row() -> Problem:
    """Three devices in a row, the second link twice as fast."""
    return make_problem(LAYERS, [make_link("d0 d1", bandwidth=100), make_link("d1 d2", bandwidth=200)])


def make_hosts() -> Problem:
    """Two hosts of two devices each behind a switch."""
    devices = tuple(Device(name=f"{host}{i}", type="gpu", memory_bytes=1000, host=host) for host in "ab" for i in "01")
    ends = [(device.name, device.host) for device in devices] + [("a", "switch"), ("b", "switch")]
    links = tuple(Link(a=a, b=b, bandwidth_bytes_per_s=100) for a, b in ends)
    cluster = Cluster(name="two hosts", devices=devices, links=links, switches=("switch",))
    return replace(make_row(), cluster=cluster)


def ends_of(problem: Problem) -> list[set[str]]:
    """Both ends of every link."""
    return [{link.a, link.b} for link in problem.cluster.links]


def test_no_change_is_none():
    """Tests that a change that says nothing leaves the problem as it is."""
    assert apply_change(make_row(), Change()) == make_row()


def test_memory_and_links_and_microbatches():
    """Tests that memory is added on every device and never below 0, and links and microbatches are as asked for."""
    changed = apply_change(make_row(), Change(memory_bytes=24, link_speed=0.5, num_microbatches=7))
    assert [device.memory_bytes for device in changed.cluster.devices] == [1024] * 3
    assert [link.bandwidth_bytes_per_s for link in changed.cluster.links] == [50, 100]
    assert changed.num_microbatches == 7
    less = apply_change(make_row(), Change(memory_bytes=-5000))
    assert [device.memory_bytes for device in less.cluster.devices] == [0] * 3


def make_batch(**more: object) -> Problem:
    """A batch of 6 microbatches of 4 samples on two devices, measured at that size."""
    layers = [make_layer("l0", (8, 8, 8), stash_bytes=40), make_layer("l1", (8, 8, 8), stash_bytes=40)]
    return make_problem(layers, [make_link("d0 d1")], num_microbatches=6, microbatch_size=4, edge_bytes=40, **more)


@pytest.mark.parametrize(
    ("change", "cut"),
    [
        ({"microbatch_size": 2}, (12, 2)),
        ({"microbatch_size": 8}, (3, 8)),
        ({"global_batch_size": 48}, (12, 4)),
        ({"global_batch_size": 48, "microbatch_size": 16}, (3, 16)),
        ({"num_microbatches": 5, "microbatch_size": 8}, (5, 8)),
        ({"num_microbatches": 5, "global_batch_size": 10}, (5, 2)),
        ({"num_microbatches": 5}, (5, 4)),
    ],
)
def test_the_batch_and_its_cut(change: dict[str, int], cut: tuple[int, int]):
    """Tests that of number, size and batch what is not said stays, size before number, and that bytes follow it."""
    changed = apply_change(make_batch(), Change(**change))  # type: ignore[arg-type]
    assert (changed.num_microbatches, changed.profile.microbatch_size) == cut
    assert changed.profile.layers[0].stash_bytes == 10 * cut[1]
    assert changed.profile.edges[0].bytes == 10 * cut[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"microbatch_size": 5}, "24 samples are not a whole number of microbatches of so many samples: 5"),
        ({"global_batch_size": 26}, "26 samples are not a whole number of microbatches of so many samples: 4"),
        ({"num_microbatches": 5, "global_batch_size": 24}, "24 samples are not a whole number of microbatches: 5"),
        ({"microbatch_size": 2}, "microbatch_size = 2, but layer 'l0' was measured on 'gpu' at 4 only"),
        ({"microbatch_size": 0}, "change: microbatch_size"),
        ({"global_batch_size": 2**31}, "change: global_batch_size"),
        ({"num_microbatches": 6, "microbatch_size": 4, "global_batch_size": 24}, "are all given; leave one out"),
    ],
)
def test_cuts_that_cannot_be(change: dict[str, int], said: str):
    """Tests that a batch that cannot be cut so, or of which nobody knows what it costs, is refused with its reason."""
    with pytest.raises(ValueError, match=said):
        apply_change(make_batch(scaling="measured"), Change(**change))  # type: ignore[arg-type]


def test_cuts_without_samples():
    """Tests that without the samples of a microbatch only their number can change, and no other cut is offered."""
    with pytest.raises(ValueError, match=r"are unknown \(microbatch_size = null\)"):
        apply_change(make_row(), Change(microbatch_size=2))
    assert other_cuts(make_row()) == ()


def test_cuts_that_are_offered():
    """Tests that halves and doubles that divide the batch are offered, and between measured sizes only where costs do
    not scale; and that there is a question for each that is offered."""
    assert other_cuts(make_batch()) == (1, 2, 4, 8)
    assert other_cuts(make_batch(scaling="measured")) == (4,)
    problem = make_batch()
    layers = tuple(at_another_size(layer, size=12) for layer in problem.profile.layers)
    measured = replace(problem, profile=replace(problem.profile, layers=layers, scaling="measured"))
    assert other_cuts(measured) == (4, 8, 12)
    for size in other_cuts(measured):
        changed = apply_change(measured, Change(microbatch_size=size))
        assert changed.num_microbatches * size == 24


def at_another_size(layer: Layer, *, size: int) -> Layer:
    """The layer measured once more with so many samples."""
    (cost,) = layer.costs
    more = LayerCost(
        device_type=cost.device_type, microbatch_size=size, forward_ns=20, input_grad_ns=20, weight_grad_ns=20
    )
    return replace(layer, costs=(cost, more))


def test_more_devices_without_hosts():
    """Tests that twins are linked as the last device is, and directly to it."""
    changed = apply_change(make_row(), Change(devices=2))
    assert [device.name for device in changed.cluster.devices] == ["d0", "d1", "d2", "d2-new1", "d2-new2"]
    new = ends_of(changed)[2:]
    assert new == [{"d1", "d2-new1"}, {"d2", "d2-new1"}, {"d1", "d2-new2"}, {"d2", "d2-new2"}]


def test_more_devices_on_a_host():
    """Tests that twins on a host are reached through it, and have no link of their own to their model."""
    changed = apply_change(make_hosts(), Change(devices=1))
    twin = changed.cluster.devices[-1]
    assert (twin.name, twin.host) == ("b1-new1", "b")
    assert ends_of(changed)[6:] == [{"b1-new1", "b"}]


def test_the_fastest_direct_link_joins_twins():
    """Tests that model and twin are joined by the fastest of the direct links, and that names stay distinct."""
    problem = make_row()
    changed = with_twins(with_twins(problem, "d1"), "d1")
    assert {"d1-new1", "d1-new2"} < changed.cluster.by_name.keys()
    joined = next(link for link in changed.cluster.links if {link.a, link.b} == {"d1", "d1-new1"})
    assert joined.bandwidth_bytes_per_s == 200


def test_fewer_devices():
    """Tests that the last devices go, with their links and pins, and that a lost host goes with its devices."""
    pins = (PinnedLayer(layer="l0", device="d0"), PinnedLayer(layer="l1", device="d2"))
    problem = make_row()
    problem = replace(problem, options=replace(problem.options, pinned=pins))
    changed = apply_change(problem, Change(devices=-1))
    assert [device.name for device in changed.cluster.devices] == ["d0", "d1"]
    assert ends_of(changed) == [{"d0", "d1"}]
    assert [pin.device for pin in changed.options.pinned] == ["d0"]
    rest = apply_change(make_hosts(), Change(lost=("b",), devices=-1))
    assert [device.name for device in rest.cluster.devices] == ["a0"]
    assert find_gone(make_hosts(), Change(lost=("b",), devices=-1)) == {"a1", "b0", "b1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"devices": -3}, "change: devices = -3 removes all 3 devices; keep at least one"),
        ({"lost": ("d0", "d1", "d2")}, "change: lost = d0, d1, d2 removes every device; keep at least one"),
        ({"lost": ("d9",)}, "change: lost = d9: no device or host of the cluster; give one of d0, d1, d2"),
        ({"link_speed": 0.0}, "change: link_speed = 0.0 is out of range; give 0.001 to 1000"),
        ({"num_microbatches": 0}, "change: num_microbatches"),
        ({"memory_bytes": 2**60}, "change: memory_bytes"),
    ],
)
def test_what_cannot_be(change: dict[str, object], said: str):
    """Tests that a change without a problem is refused with its field, value and remedy."""
    with pytest.raises(ValueError, match=said):
        apply_change(make_row(), Change(**change))


def test_a_device_without_links_has_no_twin():
    """Tests that a lone device cannot be doubled, since nothing says how the two would be joined."""
    problem = make_problem(LAYERS, [], more_devices="d0")
    with pytest.raises(ValueError, match="device 'd0' has no link to copy"):
        apply_change(problem, Change(devices=1))
