"""Nets that differ only in names: one of them is enough."""

from collections.abc import Hashable
from itertools import groupby
from typing import Any

from solver_models.instance import Flow, Lane, ScheduleInstance


def signature(instance: ScheduleInstance) -> Hashable | None:
    """Instances with equal signatures have equal optima; None where names decide who uses a shared link first.

    All of the instance is written down in an order of its lanes that depends on what they are, not on what they are
    called: lanes are told apart by their figures, by their flows and by their device's other lanes, again and again.
    """
    users: dict[int, int] = {}
    for flow in instance.flows:
        for link in flow.links:
            users[link] = users.get(link, 0) + 1
    if any(count > 1 for count in users.values()):
        return None
    lanes, flows = instance.lanes, instance.flows
    kinds: list[Any] = [_figures(instance, lane) for lane in lanes]
    colours = _ranks(kinds)
    while True:
        colours = _refine(colours, lanes, flows)
        if len(set(colours)) == len(colours):
            break
        twins = next(list(group) for _, group in groupby(sorted(colours)) if colours.count(_) > 1)
        first = colours.index(twins[0])
        colours = [2 * colour + (number != first) for number, colour in enumerate(colours)]
    order = sorted(range(len(lanes)), key=lambda number: colours[number])
    place = {number: position for position, number in enumerate(order)}
    seats = [min(place[other] for other in order if lanes[other].device == lanes[n].device) for n in order]
    sent = sorted((place[flow.sender], place[flow.receiver], flow.is_backward, flow.duration) for flow in flows)
    scalars = (instance.num_microbatches, instance.tail, instance.can_split, instance.objective)
    return scalars, tuple(kinds[n] for n in order), tuple(seats), tuple(sent)


def _figures(instance: ScheduleInstance, lane: Lane) -> tuple[int, ...]:
    """Everything about a lane but its names."""
    times = (lane.forward, lane.input_grad, lane.weight_grad, lane.backward, int(lane.has_weight_grad))
    sizes = (lane.held, lane.stash, lane.weight_stash, lane.workspace, instance.budgets[lane.device])
    return (*times, *sizes, instance.synchronisation[lane.stage])


def _refine(colours: list[int], lanes: tuple[Lane, ...], flows: tuple[Flow, ...]) -> list[int]:
    """Split colours by those of the neighbours until that tells nothing new."""
    while True:
        near: list[list[tuple[int, ...]]] = [[] for _ in lanes]
        for flow in flows:
            near[flow.sender].append((0, int(flow.is_backward), flow.duration, colours[flow.receiver]))
            near[flow.receiver].append((1, int(flow.is_backward), flow.duration, colours[flow.sender]))
        for number, lane in enumerate(lanes):
            near[number] += [(2, colours[n]) for n, other in enumerate(lanes) if other.device == lane.device]
        finer = _ranks([(colour, tuple(sorted(seen))) for colour, seen in zip(colours, near, strict=True)])
        if len(set(finer)) == len(set(colours)):
            return finer
        colours = finer


def _ranks(values: list[Any]) -> list[int]:
    known = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return [known[value] for value in values]
