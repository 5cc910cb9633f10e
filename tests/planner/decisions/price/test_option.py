"""What the least cost needs: tests of planner/decisions/price/option.py."""

from dataclasses import replace

import pytest

from planner.decisions.price.option import require
from profiles.cluster import Cluster, Device


def cluster(*prices: float | None) -> Cluster:
    """One device per price."""
    devices = [Device(name=f"d{n}", type="gpu", memory_bytes=1, price_per_hour=p) for n, p in enumerate(prices)]
    return Cluster(name="c", devices=tuple(devices), links=())


def test_every_device_has_a_price():
    """Tests that nothing is a price as well, and that the first device without one is named."""
    require(cluster(1.5))
    require(replace(cluster(1.5), devices=cluster(0.0).devices))
    with pytest.raises(ValueError, match="objective = cost, but device 'd0' has no price_per_hour; state it"):
        require(cluster(None))
