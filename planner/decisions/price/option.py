"""What the least cost needs: a price of every device."""

from profiles.cluster import Cluster

ONE_SIZE_ONLY = False
"""Microbatches may be of any sizes."""


def require(cluster: Cluster) -> None:
    """ValueError if a device has no price."""
    for device in cluster.devices:
        if device.price_per_hour is None:
            raise ValueError(
                f"problem: objective = cost, but device {device.name!r} has no price_per_hour; state it for every "
                "device of the cluster (0 where it costs nothing)"
            )
