"""Tests of planner/packing/play_packs.py."""

import numpy
import pytest

from planner.dealing import play_1f1b
from planner.packing.play_packs import play_packs


@pytest.mark.parametrize("seed", range(20))
def test_pipelines_end_when_each_ends_alone(seed: int):
    """Tests that pipelines that are played together end when `play_1f1b` says, with fewer packs than stages as well."""
    rng = numpy.random.default_rng(seed)
    shape = rng.integers(1, 5), rng.integers(1, 12), rng.integers(1, 9)
    forward, backward = rng.integers(0, 50, shape), rng.integers(0, 90, shape)
    transfer_ns = int(rng.integers(0, 20))
    ends = play_packs(forward, backward, transfer_ns=transfer_ns).tolist()
    assert ends == [
        play_1f1b(ahead.tolist(), back.tolist(), transfer_ns=transfer_ns)
        for ahead, back in zip(forward, backward, strict=True)
    ]
