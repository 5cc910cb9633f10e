"""A problem with changed costs: tests of planner/what_if/profile_changes.py."""

from dataclasses import replace

from planner.what_if.profile_changes import with_faster_device, with_halved_microbatches
from profiles.held_once import HeldOnce
from tests.planner.builders import make_layer, make_problem
from tests.planner.judge.test_synchronisation import two_stages


def test_a_faster_device_steps_faster():
    """Tests that 10 % more speed is 10/11 of the step, rounded up."""
    problem, _ = two_stages(11, 5)
    faster = with_faster_device(problem, "a")
    assert [layer.optimizer_ns(faster.cluster.by_name["a"].type) for layer in faster.profile.layers] == [10, 5]


def test_halves_of_a_cost_that_is_stated_twice():
    """Tests that the later of two costs for the profile's own size holds, as everywhere, where one leaves it out."""
    layer = make_layer("layer", (30, 40, 20))
    later = replace(layer.costs[0], microbatch_size=4, forward_ns=50)
    problem = make_problem(
        [replace(layer, costs=(*layer.costs, later))], [], more_devices="a", microbatch_size=4, scaling="linear"
    )
    halved = with_halved_microbatches(problem)
    assert halved is not None
    assert halved.profile.layers[0].costs == (later,)
    assert halved.profile.microbatch_size == 2


def test_halves_of_unknown_samples():
    """Tests that times and bytes halve, rounded up, where a profile does not say how many samples they are of."""
    problem = make_problem([make_layer("layer", (31, 40, 20), stash_bytes=7)], [], more_devices="a")
    halved = with_halved_microbatches(problem)
    assert halved is not None
    (layer,) = halved.profile.layers
    assert (layer.costs[0].forward_ns, layer.costs[0].input_grad_ns, layer.stash_bytes) == (16, 20, 4)
    assert (halved.profile.microbatch_size, halved.num_microbatches) == (None, 2 * problem.num_microbatches)


def test_halves_of_what_layers_hold_once():
    """Tests that half the samples leave half the stash that two layers share, and all of the state."""
    layers = [make_layer(name, state_bytes=9, stash_bytes=8) for name in "xy"]
    problem = make_problem(layers, [], more_devices="a")
    once = HeldOnce(first="x", second="y", state_bytes=5, stash_bytes=7)
    halved = with_halved_microbatches(replace(problem, profile=replace(problem.profile, held_once=(once,))))
    assert halved is not None
    assert halved.profile.held_once == (replace(once, stash_bytes=3),)
