"""The makespan that no order beats on a given cut of a chain, in closed form: fill, work, drain and memory."""

from dataclasses import dataclass

from solver_models.partition.dynamic import Partitioner, Stages
from solver_models.partition.interval_kernels import part, rest, room, synchronisation
from solver_models.partition.partition_instance import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What one stage does per microbatch."""

    forward: int
    backward: int
    """Ticks of the backward part before the gradient leaves."""
    rest: int
    arrival: int
    """Ticks of the transfer into it."""
    departure: int
    """Ticks of the transfer of its gradient."""
    synchronisation: int
    in_flight: int
    """Microbatches that fit in its memory at once."""

    @property
    def turnaround(self) -> int:
        """From the arrival of a microbatch to the departure of its gradient, the later stages left out."""
        return self.forward + self.backward


def schedule_bound(partitioner: Partitioner, stages: Stages) -> int | None:
    """Ticks of an iteration that no order beats (without the optimizer); None if a stage cannot hold one microbatch.

    A guide, not a bound, where a stage does not wait for the one before it: only chains fill and drain one by one.

    For each stage: fill + all its work + its all-reduce; fill + its F and I + drain; and, with K microbatches in memory
    at once, fill + ceil(M / K) turnarounds through the later stages + drain.
    """
    num_microbatches = partitioner.instance.num_microbatches
    senders = (1, *(stage.replicas for stage in stages))
    costs = [_cost(partitioner, stage, num_senders=senders[number]) for number, stage in enumerate(stages)]
    if any(cost.in_flight < 1 for cost in costs):
        return None
    turnarounds = [cost.turnaround + cost.arrival + cost.departure for cost in costs]
    fill, drain, bound = 0, costs[0].rest, 0
    for number, cost in enumerate(costs):
        if number:
            fill += costs[number - 1].forward + cost.arrival
            drain += costs[number - 1].backward + cost.departure
        work = num_microbatches * cost.turnaround
        rounds = -(-num_microbatches // cost.in_flight)
        turnaround = cost.turnaround + sum(turnarounds[number + 1 :])
        bound = max(
            bound,
            fill + work + num_microbatches * cost.rest + cost.synchronisation,
            fill + work + drain,
            fill + rounds * turnaround + drain,
        )
    return bound


def _cost(partitioner: Partitioner, stage: Interval, *, num_senders: int) -> _Stage:
    tables, replicas = partitioner.instance, stage.replicas
    stash = -(-int(tables.stash[stage.end] - tables.stash[stage.first]) // replicas)
    left = int(room(tables, *stage))
    most = max(num_senders, replicas)  # every pair carries its share at the same time
    arrival, departure = (-(-int(ticks) // most) for ticks in tables.cut_ticks[:, stage.first])
    return _Stage(
        forward=int(part(tables, 0, *stage)),
        backward=int(part(tables, 1, *stage)),
        rest=int(rest(tables, *stage)),
        arrival=arrival,
        departure=departure,
        synchronisation=int(synchronisation(tables, *stage)),
        in_flight=tables.num_microbatches if stash == 0 and left >= 0 else left // max(stash, 1),
    )
