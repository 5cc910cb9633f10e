"""The gradients of a replicated stage are summed by a ring all-reduce over its replicas (section 2, "Replication").

    replica 0 -> replica 1 -> ... -> replica r - 1 -> replica 0         in the order in which the stage lists them

2 (r - 1) / r x gradient bytes / slowest link + 2 (r - 1) x largest delay over the ring: as many messages in turn, each
with the latency and the message overhead of its way. Where links state times by message size, the first term is at
least what these messages, of gradient bytes / r each, take on the slowest of them. Where they state what a step of a
ring takes, nothing ends before so many steps of the slowest; a gather, and the reduce-scatter of a fully sharded stage,
may have steps of their own. Replicas that shard the optimizer's
gradients (a reduce-scatter), and once more with the weights when each has stepped its part (an all-gather).
"""

from typing import NamedTuple

from planner.judge.routes import SECOND, Route, Routes
from planner.judge.stage_replicas import is_sharded
from planner.plan import Stage


class Ring(NamedTuple):
    """The reduction of a replicated stage: how long it takes, and the links that it occupies."""

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
    """How a stage synchronises its gradients; nothing with one replica, or if every layer is frozen."""
    times_round = 1 if is_sharded(stage) else 2
    times_round = 0 if is_frozen else times_round
    return _go_round(stage, routes, num_bytes=gradient_bytes, times_round=times_round, collective="reduction")


def gathering_ns(stage: Stage, routes: Routes, *, num_bytes: int, is_frozen: bool, collective: str = "gather") -> int:
    """How long the replicas of a sharding stage take to tell each other their weights; 0 for other stages.

    With `collective` "scatter": to add up gradients of which each keeps a part.
    """
    times_round = 1 if is_sharded(stage) and not is_frozen else 0
    return _go_round(stage, routes, num_bytes=num_bytes, times_round=times_round, collective=collective).duration_ns


def _go_round(stage: Stage, routes: Routes, *, num_bytes: int, times_round: int, collective: str) -> Ring:
    pairs = ring_pairs(stage) if times_round else []
    pair_routes: list[Route] = [routes.find(a, b, num_bytes=num_bytes) for a, b in pairs]
    if not pair_routes:
        return NO_RING
    replicas = len(pairs)
    slowest = min(route.bandwidth_bytes_per_s for route in pair_routes)
    delay = max(route.delay_ns for route in pair_routes)
    messages = times_round * (replicas - 1)
    moving = -(-messages * num_bytes * SECOND // (replicas * slowest))
    sized = messages * max(route.sized_ns(-(-num_bytes // replicas)) for route in pair_routes)
    directions, part = [each for route in pair_routes for each in route.directions], -(-num_bytes // replicas)
    steps = messages * max(each.ring_step_ns(part, collective=collective) for each in directions)
    duration_ns = max(max(moving, sized) + messages * delay, steps)
    return Ring(duration_ns, frozenset(link for route in pair_routes for link in route.links))
