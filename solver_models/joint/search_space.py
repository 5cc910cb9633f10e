"""The choices of the exact search as arrays: down-sets of the layer graph, device groups, symmetries of the devices."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise, permutations

import numpy as np

from solver_models.instance import Instance, Integers
from solver_models.joint.partition_enumeration import NO_PLAN, Space
from solver_models.simulation.columns import HAS_GRADIENT

_MAX_DOWNSETS = 2_000
"""Down-sets of the layers of the largest graph that is searched exactly."""
_MAX_GROUPS = 400
"""Ordered groups of devices that may hold a stage, at most."""
_MAX_ARCS = 200_000
"""Sets of layers that may be a stage, at most."""
_MAX_PERMUTATIONS = 720
"""Permutations of the devices that are tried for symmetry; 720 are all of six."""

MAX_LAYERS = 62
"""Most layers of a space: sets of them are bits."""

WEIGHT = 1 << 10
"""Price of time on the fastest type."""


def make_space(instance: Instance) -> Space | None:
    """The space of an instance; None if it is too large to be searched."""
    downsets = _downsets(instance, most=_MAX_DOWNSETS) if instance.num_layers <= MAX_LAYERS else None
    groups = device_groups(instance, limit=_MAX_GROUPS)
    if downsets is None or groups is None or not set(instance.given_groups or ()) <= set(groups):
        return None
    arcs = _arcs(instance, downsets)
    if sum(len(ends) for ends in arcs) > _MAX_ARCS:
        return None
    weight, least_work = _prices(instance)
    table = np.full((len(groups), max(len(group) for group in groups)), -1, np.int64)
    for row, group in zip(table, groups, strict=True):
        row[: len(group)] = group
    choices, images = _choices(instance, groups), automorphisms(instance)
    return Space(
        downset=np.array(downsets, np.int64),
        arc_start=np.cumsum([0, *(len(ends) for ends in arcs)]).astype(np.int64),
        arc_end=np.array([end for ends in arcs for end in ends], np.int64),
        group_size=np.array([len(group) for group in groups], np.int64),
        group=table,
        choice=choices,
        choice_ring=np.array([_best_ring(instance, groups[first : first + count]) for first, count in choices]),
        choice_start=_choice_ranges(instance, choices),
        automorphisms=images,
        choice_image=_images_of_choices(choices, groups, images=images),
        group_image=_images_of_groups(groups, images),
        weight=weight,
        least_work=least_work,
        all_gradients=np.array([int(bool(np.all(instance.layers.edges[:, HAS_GRADIENT] == 1)))], np.int64),
    )


def device_groups(instance: Instance, *, limit: int) -> list[tuple[int, ...]] | None:
    """Every ordered group of holders of one width that share no device, as many as a stage may have replicas.

    All orders of a set come together.

    None if there are more than `limit`.
    """
    allowed, groups = instance.allowed_replicas, list[tuple[int, ...]]()
    for holders in _holders_by_width(instance):
        sets: list[tuple[int, ...]] = [(holder,) for holder in holders]
        while sets:
            for chosen in sets if len(sets[0]) in allowed else ():
                for group in permutations(chosen):
                    groups.append(group)
                    if len(groups) > limit:
                        return None
            sets = list(_larger(instance, sets, holders=holders)) if len(sets[0]) < allowed[-1] else []
    return groups


def _holders_by_width(instance: Instance) -> Iterator[list[int]]:
    """The devices, then the groups of several of every width."""
    num_devices = instance.num_devices
    yield list(range(num_devices))
    if instance.wide is not None:
        for row in range(1, len(instance.wide.widths) + 1):
            yield (num_devices + np.nonzero(instance.wide.width_row == row)[0]).tolist()


def _larger(
    instance: Instance, sets: Sequence[tuple[int, ...]], *, holders: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """The sets with one more holder that shares no device with those before it."""
    for chosen in sets:
        used = {device for holder in chosen for device in instance.members_of(holder)}
        for holder in holders:
            if holder > chosen[-1] and used.isdisjoint(instance.members_of(holder)):
                yield (*chosen, holder)


def _downsets(instance: Instance, *, most: int) -> list[int] | None:
    """Sets of layers that hold all producers of their layers, as bits, small ones first; None if there are too many.

    If the partition is given, those that consist of its first stages.
    """
    num_layers = instance.num_layers
    if instance.given_stages is not None:
        stage_of = instance.given_stages.tolist()
        counts = range(max(stage_of) + 2)
        return [sum(1 << x for x in range(num_layers) if stage_of[x] < count) for count in counts]
    producers = [0] * num_layers
    for producer, consumer in instance.layers.edges[:, :2].tolist():
        producers[consumer] |= 1 << producer
    found, order = {0}, [0]
    for known in order:  # grows while it is walked through
        for x in range(num_layers):
            larger = known | 1 << x
            if larger not in found and producers[x] & ~known == 0:
                found.add(larger)
                order.append(larger)
                if len(order) > most:
                    return None
    return order


def _arcs(instance: Instance, downsets: Sequence[int]) -> list[list[int]]:
    """Per down-set, the larger ones that contain it: the layers between two may be a stage."""
    if instance.given_stages is not None:
        return [[number + 1] for number in range(len(downsets) - 1)] + [[]]
    return [
        [number for number, larger in enumerate(downsets) if larger != smaller and larger & smaller == smaller]
        for smaller in downsets
    ]


def _choices(instance: Instance, groups: Sequence[tuple[int, ...]]) -> Integers:
    """[C, 2] first group and number of orders of every set; if the groups are given, one of each, by stage."""
    if instance.given_groups is not None:
        return np.array([[groups.index(group), 1] for group in instance.given_groups], np.int64)
    sizes = [len(list(orders)) for _, orders in groupby(groups, key=lambda group: tuple(sorted(group)))]
    return np.stack([np.cumsum([0, *sizes[:-1]]), np.array(sizes)], axis=1).astype(np.int64)


def _choice_ranges(instance: Instance, choices: Integers) -> Integers:
    """Per stage number the sets it may use; one row if all may use all."""
    if instance.given_groups is None:
        return np.array([[0, len(choices)]], np.int64)
    return np.array([[stage, stage + 1] for stage in range(len(choices))], np.int64)


def _best_ring(instance: Instance, orders: Sequence[tuple[int, ...]]) -> list[int]:
    """Least latency and greatest bandwidth of a ring over the first devices of these holders, in its best order."""
    rings = []
    for holders in orders if len(orders[0]) > 1 else ():
        order = [instance.members_of(holder)[0] for holder in holders]
        ring = order, [*order[1:], order[0]]
        rings.append((int(instance.layers.latency[ring].max()), int(instance.layers.bandwidth[ring].min())))
    return [min((ring[0] for ring in rings), default=0), max((ring[1] for ring in rings), default=1)]


def _images_of_groups(groups: Sequence[tuple[int, ...]], images: Integers) -> Integers:
    number_of = {group: number for number, group in enumerate(groups)}
    rows = [[number_of[tuple(image[device] for device in group)] for group in groups] for image in images.tolist()]
    return np.array(rows, np.int64).reshape(-1, len(groups))


def _images_of_choices(choices: Integers, groups: Sequence[tuple[int, ...]], *, images: Integers) -> Integers:
    number_of = {frozenset(groups[first]): number for number, (first, _) in enumerate(choices.tolist())}
    rows = [
        [number_of[frozenset(image[device] for device in groups[first])] for first, _ in choices.tolist()]
        for image in images.tolist()
    ]
    return np.array(rows, np.int64).reshape(-1, len(choices))


def _prices(instance: Instance) -> tuple[Integers, Integers]:
    """[T] a price of time per device type, as fast as it is on the whole; [2, L] the least price of a layer's work."""
    num_types, used, known = instance.num_types, np.unique(instance.device_type), instance.measured == 1
    table = instance.layers.work[:, :, : known.shape[1]]
    forward, input_grad, weight_grad, fused, _ = table.transpose(1, 0, 2, 3)  # each [tables, V * T, L]
    # a stage without a single W runs I alone, whatever B would take
    least = np.minimum(fused, input_grad + weight_grad)
    returning = np.minimum(input_grad, least) if "split_backward" in instance.rules else least
    work = forward + least
    totals = np.where(known, work, NO_PLAN)[:, :num_types].min(axis=0).sum(axis=1)
    fastest = max(1, int(totals[used].min()))
    weight = np.array([WEIGHT * fastest // max(1, int(total)) for total in totals], np.int64)
    widths = (1,) if instance.wide is None else (1, *instance.wide.widths)
    prices = np.concatenate([width * weight for width in widths])[:, None]  # a group costs the time of all its members
    rows = np.arange(known.shape[1])
    is_open = ((rows >= num_types) | np.isin(rows, used))[:, None] & known
    offers = [part * prices for part in (work, forward + returning)]
    return weight, np.array([np.where(is_open, offer, NO_PLAN).min(axis=(0, 1)) for offer in offers], np.int64)


def automorphisms(instance: Instance) -> Integers:
    """[P, H] permutations of the devices and groups, but the identity, under which nothing changes."""
    num_devices = instance.num_devices
    groups = () if instance.wide is None else instance.wide.groups
    number_of = {(group[0], frozenset(group)): num_devices + number for number, group in enumerate(groups)}
    found = []
    if instance.given_groups is None:
        links = _links_of_routes(instance)
        known = _signatures(links, range(num_devices))
        for number, image in enumerate(permutations(range(num_devices))):
            if number >= _MAX_PERMUTATIONS:
                break
            if number and _keeps_devices(instance, image) and _signatures(links, image) == known:
                wide = [number_of.get((image[group[0]], frozenset(image[x] for x in group))) for group in groups]
                found += [] if None in wide else [[*image, *wide]]
    return np.array(found, np.int64).reshape(-1, num_devices + len(groups))


def _keeps_devices(instance: Instance, image: Sequence[int]) -> bool:
    to = np.array(image)
    pinned = {int(device) for device in instance.pinned if device >= 0}
    return (
        all(image[device] == device for device in pinned)
        and bool(np.all(instance.layers.devices[to] == instance.layers.devices))
        and bool(np.all(instance.layers.latency[np.ix_(to, to)] == instance.layers.latency))
        and bool(np.all(instance.layers.bandwidth[np.ix_(to, to)] == instance.layers.bandwidth))
    )


def _links_of_routes(instance: Instance) -> dict[int, list[tuple[int, int]]]:
    """Per link, the pairs of devices whose route uses it."""
    users: dict[int, list[tuple[int, int]]] = {}
    for pair, (first, end) in enumerate(pairwise(instance.layers.route_start.tolist())):
        for link in instance.layers.route_links[first:end].tolist():
            users.setdefault(link, []).append(divmod(pair, instance.num_devices))
    return users


def _signatures(
    links: dict[int, list[tuple[int, int]]], image: Sequence[int]
) -> "Counter[tuple[tuple[int, int], ...]]":
    """How many links carry which routes, once the devices are permuted."""
    return Counter(tuple(sorted((image[a], image[b]) for a, b in pairs)) for pairs in links.values())
