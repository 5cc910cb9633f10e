"""What the least cost needs: a price of every device."""

from typing import Any

from planner.decisions.decision import Decision


def require(cluster: Any) -> None:
    """ValueError if a device has no price."""
    for device in cluster.devices:
        if device.price_per_hour is None:
            raise ValueError(
                f"problem: objective = cost, but device {device.name!r} has no price_per_hour; state it for every "
                "device of the cluster (0 where it costs nothing)"
            )


DECISION = Decision(bounds=None, is_freedom=False, in_complete_model=True, is_enumerated=True, require=require)
