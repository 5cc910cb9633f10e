"""Lanes that cannot be told apart but by name: of nets alike one is enough, and alike devices may run alike orders."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from solver_models.instance import ScheduleInstance, StageReplica, Transfer, Word


def _has_queues(instance: ScheduleInstance) -> bool:
    """Whether two flows share a link: then names decide who goes first, and nothing here may be concluded."""
    used = [link for flow in instance.flows for link in flow.links]
    return len(used) > len(set(used))


def colour(instance: ScheduleInstance) -> list[int]:
    """A number per lane; lanes of equal numbers have equal figures and equal neighbours (an equitable partition).

    Numbers depend on what the lanes are, not on what they are called.
    """
    return _refine(
        _ranks([_figures(instance, lane) for lane in instance.lanes]), lanes=instance.lanes, flows=instance.flows
    )


def signature(instance: ScheduleInstance) -> Hashable | None:
    """Instances with equal signatures have equal optima; None where links are shared.

    All of the instance is written down in an order of its lanes that follows their colours; of lanes that cannot be
    told apart, one is singled out, which colours the others anew.
    """
    if _has_queues(instance):
        return None
    lanes, flows = instance.lanes, instance.flows
    colours = colour(instance)
    while len(set(colours)) < len(colours):
        twin = min(c for c in colours if colours.count(c) > 1)
        first = colours.index(twin)
        colours = _refine([2 * c + (number != first) for number, c in enumerate(colours)], lanes=lanes, flows=flows)
    order = sorted(range(len(lanes)), key=lambda number: colours[number])
    place = {number: position for position, number in enumerate(order)}
    seats = [min(place[other] for other in order if lanes[other].device == lanes[n].device) for n in order]
    sent = sorted((place[flow.sender], place[flow.receiver], flow.is_backward, flow.duration) for flow in flows)
    scalars = (instance.num_microbatches, instance.tail, instance.can_split, instance.objective)
    return scalars, tuple(_figures(instance, lanes[n]) for n in order), tuple(seats), tuple(sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quotient:
    """One device of every kind: if alike devices run alike words, the whole net takes as long as this one."""

    instance: ScheduleInstance
    """The devices that stand for all."""
    stands_for: dict[int, list[tuple[int, dict[int, int]]]]
    """Per device of `instance`, the devices it stands for, with its stages and what they are called there."""
    is_exact: bool
    """Whether alike devices have nothing to do with each other, so that nothing is lost by letting them run alike."""

    def unfold(self, words: dict[int, Word]) -> dict[int, Word]:
        """Words for all devices."""
        return {
            device: [(kind, stages[stage], microbatch) for kind, stage, microbatch in words[own]]
            for own, others in self.stands_for.items()
            for device, stages in others
        }


def make_quotient(instance: ScheduleInstance) -> _Quotient | None:
    """The quotient by the colours of the lanes; None if it would be no smaller, or if links are shared."""
    colours, lanes = colour(instance), instance.lanes
    if _has_queues(instance) or len(set(colours)) == len(colours):
        return None
    held: dict[int, list[int]] = {}
    for number, lane in enumerate(lanes):
        held.setdefault(lane.device, []).append(number)
    kinds: dict[tuple[int, ...], list[int]] = {}
    for device, numbers in held.items():
        kind = tuple(sorted(colours[number] for number in numbers))
        if len(set(kind)) < len(kind):
            return None
        kinds.setdefault(kind, []).append(device)
    kept = [number for number in range(len(lanes)) if any(lanes[number].device == d[0] for d in kinds.values())]
    place = {colours[number]: position for position, number in enumerate(kept)}
    incoming = [flow for flow in instance.flows if flow.receiver in kept]
    flows = tuple(
        replace(flow, sender=place[colours[flow.sender]], receiver=place[colours[flow.receiver]]) for flow in incoming
    )
    name_of = {(lane.device, colours[number]): lane.stage for number, lane in enumerate(lanes)}
    return _Quotient(
        instance=replace(instance, lanes=tuple(lanes[number] for number in kept), flows=_numbered(flows)),
        stands_for={
            own[0]: [(d, {name_of[own[0], c]: name_of[d, c] for c in kind}) for d in own] for kind, own in kinds.items()
        },
        is_exact=_are_strangers(instance, colours),
    )


def _numbered(flows: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
    """Every flow with a link of its own, where it had one."""
    return tuple(replace(flow, links=(number,) if flow.links else ()) for number, flow in enumerate(flows))


def _are_strangers(instance: ScheduleInstance, colours: list[int]) -> bool:
    """Whether no two lanes of one colour are connected, by flows or by devices."""
    part = list(range(len(colours)))

    def find(number: int) -> int:
        while part[number] != number:
            number = part[number]
        return number

    for flow in instance.flows:
        part[find(flow.sender)] = find(flow.receiver)
    for a, lane in enumerate(instance.lanes):
        for b in range(a):
            if instance.lanes[b].device == lane.device:
                part[find(a)] = find(b)
    seen = {(find(number), c) for number, c in enumerate(colours)}
    return len(seen) == len(colours)


def _figures(instance: ScheduleInstance, lane: StageReplica) -> tuple[int, ...]:
    """Everything about a lane but its names."""
    times = (lane.forward, lane.input_grad, lane.weight_grad, lane.backward, int(lane.has_weight_grad))
    sizes = (lane.held, lane.stash, lane.whole_backward, lane.weight_stash, lane.workspace, lane.weight_workspace)
    return (*times, *sizes, instance.budgets[lane.device], instance.synchronisation[lane.stage])


def _refine(colours: list[int], *, lanes: tuple[StageReplica, ...], flows: tuple[Transfer, ...]) -> list[int]:
    """Split colours by those of the neighbours until that tells nothing new."""
    while True:
        near: list[list[tuple[int, ...]]] = [[] for _ in lanes]
        for flow in flows:
            near[flow.sender].append((0, int(flow.is_backward), flow.duration, colours[flow.receiver]))
            near[flow.receiver].append((1, int(flow.is_backward), flow.duration, colours[flow.sender]))
        for number, lane in enumerate(lanes):
            near[number] += [(2, colours[n]) for n, other in enumerate(lanes) if other.device == lane.device]
        finer = _ranks([(c, tuple(sorted(seen))) for c, seen in zip(colours, near, strict=True)])
        if len(set(finer)) == len(set(colours)):
            return finer
        colours = finer


def _ranks(values: list[Any]) -> list[int]:
    known = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return [known[value] for value in values]
