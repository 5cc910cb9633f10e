"""Which stashes travel between devices and the memory of their hosts, and where in the orders of actions.

A stash leaves when its F has ended. Before the action that it makes room for, the device waits until it has left;
before another one the device asks for it back, and its I or B waits for it. So what devices hold follows their orders
alone, and a host holds what each of its devices has there at most.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy

from profiles.cluster import HostRoutes


class StashPlaces(NamedTuple):
    """Where in the order of a device a stash leaves and returns: places of actions."""

    made: int
    """Of its F."""
    freed: int
    """Of the first action that starts only once it has left."""
    fetched: int
    """Of the action before which it is asked for."""
    needed: int
    """Of its I or B."""


class Journey(NamedTuple):
    """A stash that travels from a device to its host and back."""

    stage: int
    microbatch: int
    replica: int
    """Number of the stage replica in the laid-out plan."""
    device: str
    num_bytes: int
    routes: HostRoutes
    places: StashPlaces


class TimedOffload(NamedTuple):
    """One transfer of a stash, out to the host or back; it waited on its link from `ready_ns` to `start_ns`."""

    stage: int
    microbatch: int
    device: str
    is_back: bool
    num_bytes: int
    ready_ns: int
    start_ns: int
    end_ns: int


def moved_bytes(own: Sequence[Journey], *, lengths: Mapping[str, int]) -> dict[str, Any]:
    """By device and place in its order (int64) what it has received again right before, less what has left by then."""
    found = {device: numpy.zeros(length, dtype=numpy.int64) for device, length in lengths.items()}
    for each in own:
        found[each.device][each.places.freed] -= each.num_bytes
        found[each.device][each.places.fetched] += each.num_bytes
    return found


def held_on_host(own: Sequence[Journey]) -> int:
    """The most that the stashes of one device take at once in host memory, by the order of its actions.

    A stash is there from the end of its F to the start of its I or B.
    """
    changes = sorted((place, -size) for each in own for place, size in _host_changes(each))
    return max(accumulate((-less for _, less in changes), initial=0))


def _host_changes(each: Journey) -> Iterator[tuple[int, int]]:
    yield each.places.made + 1, each.num_bytes
    yield each.places.needed, -each.num_bytes
