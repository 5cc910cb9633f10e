"""The queues that messages between two processes go through: on accelerators one per direction, none on hosts.

NCCL runs what is asked of one communicator in one order. If all messages of a process share one, each waits for those
asked for before it, whichever process they are for; if a pair shares one, a send waits for a receive whose sender is
not there yet. Gloo finds a message by who sent it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from planner.execute.table.routes import SampleExchange

Queues = Mapping[tuple[int, int], Any]
"""By sender and receiver; what is not there goes through the default group."""


def find_directions(routes: Sequence[SampleExchange]) -> list[tuple[int, int]]:
    """Sender and receiver of all messages, every direction once, in an order that all processes share."""
    found = set()
    for route in routes:
        ends = (route.source, route.target)
        if ends[0] != ends[1]:
            found |= {ends} if "F" in route.letters else set()
            found |= {ends[::-1]} if "B" in route.letters else set()
    return sorted(found, key=lambda ends: (min(ends), max(ends), ends))


def make_queues(routes: Sequence[SampleExchange], *, rank: int, device: torch.device, backend: str = "nccl") -> Queues:
    """Those of this process; a call of both ends of every direction, of no others."""
    if device.type == "cpu":
        return {}
    return {
        ends: distributed.new_group(sorted(ends), backend=backend, use_local_synchronization=True)
        for ends in find_directions(routes)
        if rank in ends
    }
