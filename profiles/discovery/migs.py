"""Slices of NVIDIA's GPUs (MIG): what their profile's name says."""

import re

from profiles.discovery.hosts import DeviceDefaults

_PROFILE = re.compile(r"(?:^|[^0-9a-z])(?:\d+c\.)?\d+g\.(\d+)gb(?:$|[^0-9a-z])", re.IGNORECASE)


def mig_memory_bytes(kind: str, sizes: DeviceDefaults) -> int | None:
    """The memory of a slice such as 1g.10gb or a100_3g.20gb by its name, never more; None for whole GPUs.

    Where less than that is given for all accelerators, it holds.
    """
    match = _PROFILE.search(kind)
    if match is None:
        return None
    return min(int(match[1]) * 2**30, sizes.memory_bytes or int(match[1]) * 2**30)
