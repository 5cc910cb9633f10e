"""Tests of profiles/microbatch_sizes.py."""

from dataclasses import replace

import pytest

from planner.judge.batch import profile_of_size
from planner.problem import Problem
from profiles.held_once import HeldOnce
from profiles.microbatch_sizes import measured_sizes, profile_at
from profiles.model_profile import WidthBytes
from tests.planner.test_batch_problem import STEPS, make_batch, make_layer, two_layers


def test_bytes_grow_with_the_samples():
    """Tests that stash, checkpoint, edges and their parts are in proportion, rounded up, and state is not."""
    wide = WidthBytes(width=2, state_bytes=7, stash_bytes=6, workspace_bytes=2)
    layer = make_layer("x", {None: 9, 2: 5}, weight_stash_bytes=3, checkpoint_bytes=1, workspace_bytes=6, wider=(wide,))
    profile = make_batch([layer, make_layer("y", STEPS)]).profile
    small, large = profile_at(profile, 1), profile_at(profile, 6)
    x = small.by_name["x"]
    assert (x.state_bytes, x.stash_bytes, x.weight_stash_bytes, x.checkpoint_bytes) == (10, 2, 1, 1)
    assert (x.workspace_bytes, large.by_name["x"].workspace_bytes, x.wider[0].stash_bytes) == (6, 9, 2)
    assert [cost.microbatch_size for cost in x.costs] == [4, 2]
    assert (small.edges[0].bytes, large.edges[0].bytes, small.microbatch_size) == (2, 8, 1)
    assert profile_at(profile, 4) is profile


def test_a_part_of_the_workspace_does_not_grow():
    """Tests that what a layer holds for its weights while it runs is the same for any number of samples."""
    layer = make_layer("x", {None: 9}, workspace_bytes=9, fixed_workspace_bytes=5)
    profile = make_batch([layer, make_layer("y", STEPS)]).profile
    assert [profile_at(profile, size).by_name["x"].workspace_bytes for size in (1, 4, 6, 12)] == [9, 9, 11, 17]


def test_what_is_held_once_grows_with_the_samples():
    """Tests that it is rounded down, so that it is never more than a layer holds, and that states stay."""
    once = HeldOnce(first="x", second="y", state_bytes=3, stash_bytes=3, weight_stash_bytes=1)
    layers = [make_layer(name, {None: 9}, stash_bytes=3, weight_stash_bytes=1) for name in "xy"]
    profile = replace(make_batch(layers).profile, held_once=(once,))
    expected = {1: (0, 0), 6: (4, 1), 8: (6, 2)}
    for size, stashes in expected.items():
        assert profile_at(profile, size).held_once == profile_of_size(profile, size).held_once
        (own,) = profile_at(profile, size).held_once
        assert (own.state_bytes, own.stash_bytes, own.weight_stash_bytes) == (3, *stashes)


def test_measured_sizes_of_an_unknown_size():
    """Tests that a profile of unknown size has no sizes, and cannot be had at one."""
    profile = make_batch(two_layers()).profile
    unknown = replace(profile, microbatch_size=None, layers=tuple(two_layers({None: 5})))
    assert measured_sizes(unknown, ["gpu"]) == ()
    with pytest.raises(ValueError, match="microbatch_size = null, so nothing is known of 2 samples"):
        profile_at(unknown, 2)
    assert isinstance(make_batch(two_layers()).at(1), Problem)
