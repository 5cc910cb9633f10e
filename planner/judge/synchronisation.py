"""The gradients of a replicated stage are summed by a ring all-reduce over its replicas (section 2, "Replication").

    replica 0 -> replica 1 -> ... -> replica r - 1 -> replica 0         in the order in which the stage lists them

2 (r - 1) / r x gradient bytes / slowest link + 2 (r - 1) x largest delay over the ring: as many messages in turn, each
with the latency and the message overhead of its way.
"""

from typing import NamedTuple

from planner.judge.routes import SECOND, Route, Routes
from planner.plan import Stage


class Ring(NamedTuple):
    """How a replicated stage synchronises."""

    duration_ns: int
    """Rounded up; 0 where there is nothing to do."""
    links: frozenset[int]
    """The resources under the ring."""


NO_RING = Ring(0, frozenset())


def ring_pairs(stage: Stage) -> list[tuple[str, str]]:
    """Neighbours on the ring, each pair as sender and receiver; none if there is one replica."""
    heads = [group[0] for group in stage.replicas]
    return [(heads[i], heads[(i + 1) % len(heads)]) for i in range(len(heads))] if len(heads) > 1 else []


def make_ring(stage: Stage, routes: Routes, *, gradient_bytes: int, is_frozen: bool) -> Ring:
    """The ring of a stage; none with one replica, or if every layer is frozen."""
    pairs = [] if is_frozen else ring_pairs(stage)
    ways: list[Route] = [routes.find(a, b, num_bytes=gradient_bytes) for a, b in pairs]
    if not ways:
        return NO_RING
    replicas = len(pairs)
    slowest = min(way.bandwidth_bytes_per_s for way in ways)
    delay = max(way.delay_ns for way in ways)
    moving = -(-2 * (replicas - 1) * gradient_bytes * SECOND // (replicas * slowest))
    return Ring(moving + 2 * (replicas - 1) * delay, frozenset(link for way in ways for link in way.links))
