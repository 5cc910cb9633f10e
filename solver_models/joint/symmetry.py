"""Stage replicas that cannot be distinguished but by name: of nets alike one is enough, and alike devices may run alike
orders.
"""

from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from typing import Any

from solver_models.instance import DeviceOrder, ScheduleInstance, StageReplica, Transfer


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quotient:
    """One device of every kind: if alike devices run alike device orders, the whole net takes as long as this one."""

    instance: ScheduleInstance
    """The devices that stand for all."""
    stands_for: dict[int, list[tuple[int, dict[int, int]]]]
    """Per device of `instance`, the devices it stands for, with its stages and what they are called there."""
    is_exact: bool
    """Whether alike devices have nothing to do with each other, so that nothing is lost by letting them run alike."""

    def unfold(self, device_orders: dict[int, DeviceOrder]) -> dict[int, DeviceOrder]:
        """Orders of all devices from those of one representative per class."""
        return {
            device: [(kind, stages[stage], microbatch) for kind, stage, microbatch in device_orders[own]]
            for own, others in self.stands_for.items()
            for device, stages in others
        }


def make_quotient(instance: ScheduleInstance) -> _Quotient | None:
    """The quotient by the colours of the stage replicas; None if it would be no smaller, or if links are shared."""
    colours, replicas = colour(instance), instance.replicas
    if _has_queues(instance) or len(set(colours)) == len(colours):
        return None
    held: dict[int, list[int]] = {}
    for number, replica in enumerate(replicas):
        held.setdefault(replica.device, []).append(number)
    kinds: dict[tuple[int, ...], list[int]] = {}
    for device, numbers in held.items():
        kind = tuple(sorted(colours[number] for number in numbers))
        if len(set(kind)) < len(kind):
            return None
        kinds.setdefault(kind, []).append(device)
    kept = [number for number in range(len(replicas)) if any(replicas[number].device == d[0] for d in kinds.values())]
    place = {colours[number]: position for position, number in enumerate(kept)}
    incoming = [transfer for transfer in instance.transfers if transfer.receiver in kept]
    transfers = tuple(
        replace(transfer, sender=place[colours[transfer.sender]], receiver=place[colours[transfer.receiver]])
        for transfer in incoming
    )
    name_of = {(replica.device, colours[number]): replica.stage for number, replica in enumerate(replicas)}
    return _Quotient(
        instance=replace(instance, replicas=tuple(replicas[number] for number in kept), transfers=_numbered(transfers)),
        stands_for={
            own[0]: [(d, {name_of[own[0], c]: name_of[d, c] for c in kind}) for d in own] for kind, own in kinds.items()
        },
        is_exact=_are_strangers(instance, colours),
    )


def _numbered(transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
    """Every transfer with a link of its own, where it had one."""
    return tuple(
        replace(transfer, links=(number,) if transfer.links else ()) for number, transfer in enumerate(transfers)
    )


def _are_strangers(instance: ScheduleInstance, colours: list[int]) -> bool:
    """Whether no two stage replicas of one colour are connected, by transfers or by devices."""
    part = list(range(len(colours)))

    def find(number: int) -> int:
        while part[number] != number:
            number = part[number]
        return number

    for transfer in instance.transfers:
        part[find(transfer.sender)] = find(transfer.receiver)
    for a, replica in enumerate(instance.replicas):
        for b in range(a):
            if instance.replicas[b].device == replica.device:
                part[find(a)] = find(b)
    seen = {(find(number), c) for number, c in enumerate(colours)}
    return len(seen) == len(colours)


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
