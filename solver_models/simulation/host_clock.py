"""When a card ends an action that its host has to ask for first: two clocks of a device."""

import numpy as np

from solver_models.compiled import kernel
from solver_models.device_rows import free_from
from solver_models.instance import Integers

HOST_AHEAD = 2
"""A host asks for an action once all but so many before it have ended (`planner.execute.record.action_log.AHEAD`)."""

HOST_COLUMNS = HOST_AHEAD + 2
"""When the host is free, and when the last actions ended, that with number x in column 1 + x % (HOST_AHEAD + 1)."""

HOST, CROSS = 0, 1
"""What the host takes to ask, and what passes from its beginning to the end at least."""


@kernel
def make_hosts(devices: Integers, are_slow: bool) -> Integers:
    """[D, HOST_COLUMNS] at the beginning: hosts ask from when their devices are free; empty unless they take time."""
    hosts = np.zeros((devices.shape[0] if are_slow else 0, HOST_COLUMNS), np.int64)
    hosts[:, 0] = free_from(devices)[: hosts.shape[0]]
    return hosts


@kernel
def card_ticks(hosts: Integers, d: int, x: int, now: int, took: int, host: Integers) -> int:
    """How long action number x of device d takes that the card begins now and works on for `took`, host included.

    The host asks once it has asked for the one before, and is no more than `HOST_AHEAD` ahead; notes what it does.
    """
    asked = max(hosts[d, 0], hosts[d, 1 + x % (HOST_AHEAD + 1)])
    took = max(took, asked + host[CROSS] - now)
    hosts[d, 0] = asked + host[HOST]
    note_end(hosts, d, x, now + took)
    return took


@kernel
def note_end(hosts: Integers, d: int, x: int, end: int) -> None:
    """Note when action number x of device d ends."""
    hosts[d, 1 + x % (HOST_AHEAD + 1)] = end
