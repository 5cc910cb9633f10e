"""Stage replicas that cannot be distinguished but by name: of nets alike one is enough."""

from collections.abc import Hashable
from dataclasses import fields
from typing import Any

from solver_models.instance import ScheduleInstance, StageReplica, Transfer


def _has_queues(instance: ScheduleInstance) -> bool:
    """Whether two transfers share a link: then names decide who goes first, and nothing here may be concluded."""
    used = [link for transfer in instance.transfers for link in transfer.links]
    return len(used) > len(set(used))


def colour(instance: ScheduleInstance) -> list[int]:
    """A number per stage replica; stage replicas of equal numbers have equal figures and equal neighbours (an equitable
    partition).

    Numbers depend on what the stage replicas are, not on what they are called.
    """
    return _refine(
        _ranks([_figures(instance, replica) for replica in instance.replicas]),
        replicas=instance.replicas,
        transfers=instance.transfers,
    )


def signature(instance: ScheduleInstance) -> Hashable | None:
    """Instances with equal signatures have equal optima; None where links are shared.

    All of the instance is written down in an order of its stage replicas that follows their colours; of stage replicas
    that cannot be distinguished, one is singled out, which colours the others anew.
    """
    if _has_queues(instance):
        return None
    replicas, transfers = instance.replicas, instance.transfers
    colours = colour(instance)
    while len(set(colours)) < len(colours):
        twin = min(c for c in colours if colours.count(c) > 1)
        first = colours.index(twin)
        colours = _refine(
            [2 * c + (number != first) for number, c in enumerate(colours)], replicas=replicas, transfers=transfers
        )
    order = sorted(range(len(replicas)), key=lambda number: colours[number])
    place = {number: position for position, number in enumerate(order)}
    first_places = [min(place[other] for other in order if replicas[other].device == replicas[n].device) for n in order]
    sent = sorted(
        (place[transfer.sender], place[transfer.receiver], transfer.is_backward, transfer.duration)
        for transfer in transfers
    )
    scalars = (instance.num_microbatches, instance.tail, instance.can_split, instance.objective)
    return scalars, tuple(_figures(instance, replicas[n]) for n in order), tuple(first_places), tuple(sent)


def _figures(instance: ScheduleInstance, replica: StageReplica) -> tuple[int, ...]:
    """Everything about a stage replica but its names."""
    own = (getattr(replica, name) for name in _FIGURES)
    return (*own, *instance.devices[replica.device], instance.synchronisation[replica.stage])


_FIGURES = tuple(each.name for each in fields(StageReplica) if each.name not in ("stage", "device"))
"""All but the names of a stage replica."""


def _refine(colours: list[int], *, replicas: tuple[StageReplica, ...], transfers: tuple[Transfer, ...]) -> list[int]:
    """Split colours by those of the neighbours until that tells nothing new."""
    while True:
        near: list[list[tuple[int, ...]]] = [[] for _ in replicas]
        for transfer in transfers:
            near[transfer.sender].append((0, int(transfer.is_backward), transfer.duration, colours[transfer.receiver]))
            near[transfer.receiver].append((1, int(transfer.is_backward), transfer.duration, colours[transfer.sender]))
        for number, replica in enumerate(replicas):
            near[number] += [(2, colours[n]) for n, other in enumerate(replicas) if other.device == replica.device]
        finer = _ranks([(c, tuple(sorted(seen))) for c, seen in zip(colours, near, strict=True)])
        if len(set(finer)) == len(set(colours)):
            return finer
        colours = finer


def _ranks(values: list[Any]) -> list[int]:
    known = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return [known[value] for value in values]
