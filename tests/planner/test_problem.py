"""What a problem refuses when it is put together, and what it is called afterwards."""

from dataclasses import replace

import pytest

from planner.problem import MAX_ACTIONS, MOST_MICROBATCHES, MOST_STAGES, Options, PinnedLayer, Problem
from profiles.cluster import Device
from tests.planner.builders import make_layer, make_link, make_problem


def base(**fields: object) -> Problem:
    return make_problem([make_layer("x"), make_layer("y")], [make_link("a b")], **fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_microbatches": 0}, "num_microbatches = 0"),
        ({"num_microbatches": -3}, "num_microbatches = -3"),
        ({"num_microbatches": 1.5}, "num_microbatches = '1.5' is not an integer"),
        ({"num_microbatches": True}, "num_microbatches = 'True' is not an integer"),
        ({"num_microbatches": MAX_ACTIONS // 2}, r"needs 12,000,000 actions, above the limit of 4,000,000"),
        ({"num_microbatches": MOST_MICROBATCHES + 1}, r"num_microbatches = 2097151 is out of range; .* to 2097150"),
    ],
)
def test_microbatches_are_counted(fields: dict[str, object], reason: str):
    """Tests that the number of microbatches is a positive integer that asks for no more actions than are planned."""
    with pytest.raises(ValueError, match=reason):
        base(**fields)


def test_models_of_integers_know_options_by_name():
    """Tests that options that are on, and numbers that are stated, 0 among them, are rules, and nothing else is."""
    assert Options(recompute=True, receive_buffers=0, max_replicas=None, skip_edges=False).rules == {
        "split_backward": 1, "uneven_replication": 1, "idle_devices": 1, "recompute": 1,
        "max_stages_per_device": 2, "max_width": 1, "receive_buffers": 0,
    }  # fmt: skip


def test_times_have_room_in_64_bits():
    """Tests that layers whose microbatches take 36 years together are refused, with what to do about it."""
    slow = make_layer("x", (10**13, 10**13, 10**13))
    assert make_problem([slow], [], more_devices="a", num_microbatches=38_000).num_microbatches == 38_000
    with pytest.raises(ValueError, match=r"num_microbatches = 39000 of up to 30,000,000,000,000 ns .* check the unit"):
        make_problem([slow], [], more_devices="a", num_microbatches=39_000)


def test_partitions_have_no_more_stages_than_are_played():
    """Tests that a given partition of 2,048 stages is refused, with its limit and what to do about it."""
    layers = [make_layer(f"l{number}") for number in range(MOST_STAGES + 1)]
    partition = tuple((layer.name,) for layer in layers)
    with pytest.raises(ValueError, match=r"partition has 2048 stages, at most 2047 can be played; give stages more"):
        make_problem(layers, [], more_devices="a", partition=partition, max_stages_per_device=1024)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_stages_per_device": 0}, "max_stages_per_device = 0"),
        ({"max_replicas": 0}, "max_replicas = 0"),
        ({"max_width": 0}, "max_width = 0"),
        ({"receive_buffers": -1}, "receive_buffers = -1"),
        ({"order": "looped"}, "order = looped with split_backward = true"),
        ({"keep_workspace": True, "split_placement": True}, "split_placement = true with keep_workspace = true"),
        ({"pinned": (PinnedLayer(layer="q", device="a"),)}, "unknown layer 'q'"),
        ({"pinned": (PinnedLayer(layer="x", device="q"),)}, "unknown device 'q'"),
        ({"pinned": (PinnedLayer(layer="x", device="a"), PinnedLayer(layer="x", device="b"))}, "'x' occurs twice"),
        ({"partition": (("x",),)}, "differ in layer 'y'"),
        ({"partition": (("x", "y"), ("q",))}, "differ in layer 'q'"),
        ({"partition": (("x", "y"), ("x",))}, "'x' occurs twice"),
        ({"placement": ((("a",),),)}, "placement is given without a partition"),
        ({"partition": (("x",), ("y",)), "placement": ((("a",),),)}, "placement has 1 entries for 2 stages"),
        ({"partition": (("x", "y"),), "placement": ((("q",),),)}, "unknown device 'q'"),
    ],
)
def test_choices_are_checked(options: dict[str, object], reason: str):
    """Tests that every option out of range, or about something unknown, is refused by name and value."""
    with pytest.raises(ValueError, match=reason):
        base(**options)


def test_every_layer_is_measured_on_every_type():
    """Tests that a device of a type on which a layer was not measured is refused, with the layer and the device."""
    problem = base()
    devices = (*problem.cluster.devices, Device(name="c", type="tpu", memory_bytes=1))
    links = (*problem.cluster.links, make_link("b c"))
    with pytest.raises(ValueError, match=r"'x' has no cost for device type 'tpu' \(device 'c'\)"):
        replace(problem, cluster=replace(problem.cluster, devices=devices, links=links))


def test_replicas_are_limited_by_devices():
    """Tests that without a limit, or with one above the number of devices, that number is the limit."""
    assert base().max_replicas == 2
    assert base(max_replicas=7).max_replicas == 2
    assert base(max_replicas=1).max_replicas == 1


def test_reference_names_what_differs_from_the_defaults():
    """Tests that a plan's reference holds name, hashes, microbatches, and only the options that were chosen."""
    reference = base(num_microbatches=4, max_replicas=1, pinned=(PinnedLayer(layer="x", device="a"),)).reference()
    assert (reference.profile, reference.num_microbatches) == ("profile", 4)
    assert reference.options == {"max_replicas": 1, "pinned": [{"layer": "x", "device": "a"}]}
    assert base().reference().options == {}


def test_hashes_change_with_the_content_alone():
    """Tests that equal problems have equal hashes, and that a change of profile or cluster changes its own."""
    first, second = base(), base()
    assert (first.profile_sha256, first.cluster_sha256) == (second.profile_sha256, second.cluster_sha256)
    assert len(first.profile_sha256) == 64
    other = base(optimizer_ns=1)
    assert (other.profile_sha256 != first.profile_sha256, other.cluster_sha256) == (True, first.cluster_sha256)
    other = base(memory_bytes=1)
    assert (other.profile_sha256, other.cluster_sha256 != first.cluster_sha256) == (first.profile_sha256, True)


def test_options_default_to_what_most_executors_can():
    """Tests that the defaults are those of the contract: two receive buffers, makespan, idle devices."""
    options = Options()
    assert (options.receive_buffers, options.objective, options.idle_devices) == (2, "makespan", True)
    assert (options.max_width, options.recompute, options.split_backward) == (1, False, True)


def test_a_whole_microbatch_is_measured():
    """Tests that a microbatch outside the measured sizes is refused with size, sizes and remedy, unless it scales."""
    sized = [replace(make_layer("x").costs[0], microbatch_size=size) for size in (2, 4)]
    layer = make_layer("x", costs=tuple(sized))
    message = r"microbatch_size = 8, but layer 'x' was measured on 'gpu' at sizes 2, 4 only; measure it at 8, or state"
    with pytest.raises(ValueError, match=message):
        make_problem([layer], [make_link("a b")], microbatch_size=8)
    assert make_problem([layer], [make_link("a b")], microbatch_size=8, scaling="linear").max_replicas == 2
    assert make_problem([layer], [make_link("a b")], microbatch_size=3).max_replicas == 1


def test_replicas_divide_the_samples():
    """Tests that the numbers of replicas are the divisors of the microbatch, or all where it is unknown."""
    links = [make_link(f"{a} {b}") for a, b in zip("abcde", "bcdef", strict=True)]
    allowed = {size: make_problem([make_layer("x")], links, microbatch_size=size).allowed_replicas
               for size in (1, 4, 6, 7, None)}  # fmt: skip
    assert allowed == {1: (1,), 4: (1, 2, 4), 6: (1, 2, 3, 6), 7: (1,), None: (1, 2, 3, 4, 5, 6)}


def test_a_placement_keeps_samples_whole():
    """Tests that given groups that would cut a sample are refused with stage, number and size."""
    given = {"partition": (("x",),), "placement": ((("a",), ("b",)),)}
    with pytest.raises(ValueError, match=r"stage 0 2 replicas, .* microbatch_size = 3 samples; use a number"):
        make_problem([make_layer("x")], [make_link("a b")], microbatch_size=3, **given)
