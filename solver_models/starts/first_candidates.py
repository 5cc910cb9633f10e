"""First candidates for the joint search: balanced cuts for every number of stages, whole, replicated and chunked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from solver_models.instance import Instance, Integers
from solver_models.local_search.portable_tasks import PortableTask
from solver_models.local_search.search import Candidate, Searcher
from solver_models.starts.best_fit import best_fits
from solver_models.starts.device_arrangement import cut_order, device_orders
from solver_models.starts.recomputing import recompute_variants
from solver_models.starts.replica_groups import common_replicas, largest_allowed, share_out

_FEWEST_RATED = 6
"""Candidates that are rated whatever the time: a search needs some to begin with."""
_FIRST_CHUNKS = (0.5, 0.25, 1 / 3, 2 / 3, 0.75)
"""Part of a device's work that its first chunk takes, where every device holds two."""
_MOST_CHUNKS = 12
"""Most stages per device that seeds have."""

Groups = tuple[tuple[int, ...], ...]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
DoAll = Callable[[Sequence[Callable[[], list[Candidate]]]], list[list[Candidate] | None]]
"""What every task finds; None for those that there was no time for."""


@dataclass(frozen=True, slots=True)
class SeedRater:
    """Rates first candidates."""

    searcher: Searcher

    def rate(self, stage_of: Integers, groups: Groups) -> list[Candidate]:
        """The candidate as it is, and behind it those that recompute."""
        rated = self.searcher.rate(stage_of, groups)
        return [rated, *recompute_variants(self.searcher, [rated])]


def make_seeds(
    searcher: Searcher, *, has_time: Callable[[], bool] | None = None, do_all: DoAll | None = None, at_once: int = 1
) -> list[Candidate]:
    """Rated candidates: the given partition on many devices, or balanced ones; no stage is empty.

    With `has_time` those with the least lower bounds are rated first, and after a few none once it has denied.
    `do_all`: who rates them, `at_once` so many; None: here, one by one.
    """
    instance, rater = searcher.instance, SeedRater(searcher)
    do_all = do_all or (lambda tasks: [task() for task in tasks])
    cuts = _balanced(instance) if instance.given_stages is None else _given(instance, instance.given_stages)
    full = [(stage_of, groups) for stage_of, groups in cuts if len(np.unique(stage_of)) == len(groups)]
    full = [(stage_of, _apply_pins(instance, stage_of, groups=groups)) for stage_of, groups in full]
    full += _wide(instance)
    full = full if has_time is None else _by_lower_bound(searcher, full)
    at_once = at_once if has_time is not None else max(1, len(full))
    rated = list[list[Candidate]]()
    for begin in range(0, len(full), at_once):
        if has_time is not None and sum(map(len, rated)) >= _FEWEST_RATED and not has_time():
            break
        found = do_all([PortableTask(rater, "rate", pair) for pair in full[begin : begin + at_once]])
        rated += [each for each in found if each]
    if has_time is not None:
        return [each for variants in rated for each in variants]
    return [variants[0] for variants in rated] + [each for variants in rated for each in variants[1:]]


def _by_lower_bound(searcher: Searcher, found: list[tuple[Integers, Groups]]) -> list[tuple[Integers, Groups]]:
    """Those with the least lower bounds first; those that break a rule or cannot fit as they are come last."""

    def lower_bound(stage_of: Integers, groups: Groups) -> float:
        if not searcher.is_allowed(searcher.make_candidate(stage_of, groups, modes=np.zeros(len(groups), np.int64))):
            return inf
        lower_bounds = [searcher.lower_bound(stage_of, groups, modes=modes) for modes in searcher.plain_modes(groups)]
        return min((value for value in lower_bounds if value is not None), default=inf)

    return sorted(found, key=lambda pair: lower_bound(*pair))


def _given(instance: Instance, stage_of: Integers) -> Iterator[tuple[Integers, Groups]]:
    """The given partition on the given devices, or on those that suit its number of stages."""
    num_stages, num_devices = int(stage_of.max()) + 1, instance.num_devices
    if instance.given_groups is not None:
        yield stage_of, instance.given_groups
        return
    if num_stages <= num_devices:
        yield from ((stage_of, groups) for groups in _spread(instance, device_orders(instance), num_stages=num_stages))
        return
    rounds = [stage % (2 * num_devices) for stage in range(num_stages)]  # down and up again, however often
    yield stage_of, tuple((device % num_devices,) for device in rounds)
    yield stage_of, tuple((min(device, 2 * num_devices - 1 - device),) for device in rounds)
    yield stage_of, tuple((stage * num_devices // num_stages,) for stage in range(num_stages))


def _balanced(instance: Instance) -> Iterator[tuple[Integers, Groups]]:
    """S stages on S devices, on all devices evenly, and S = 2 D stages as a V and as a loop."""
    num_devices, num_layers = instance.num_devices, instance.num_layers
    device_order = device_orders(instance)
    for order in _topological_orders(instance):
        for num_stages in _stage_counts(min(num_devices, num_layers)):
            yield from (
                (balanced_cut(instance, groups, order=order), groups)
                for groups in _spread(instance, device_order, num_stages=num_stages)
            )
    yield from _best_fitting(instance)
    if instance.rules["max_stages_per_device"] > 1:
        yield from _in_chunks(instance)
    yield from _overlapped(instance)


def _in_chunks(instance: Instance) -> Iterator[tuple[Integers, Groups]]:
    """Two stages on every device, or on every group of equally many replicas; more on single devices."""
    num_devices, num_layers = instance.num_devices, instance.num_layers
    for num_groups in [num_devices // each for each in common_replicas(instance) if num_devices % each == 0]:
        if 1 < num_groups <= num_layers // 2:
            for groups in _chunked(instance, num_groups):
                for first in _FIRST_CHUNKS:
                    scale = np.repeat([first, 1 - first], num_groups)
                    yield balanced_cut(instance, groups, scale=scale), groups
    most_chunks = min(instance.rules["max_stages_per_device"], num_layers // num_devices, _MOST_CHUNKS)
    for chunks in range(3, most_chunks + 1):
        chunked = _chunked(instance, num_devices, chunks=chunks)
        yield from ((balanced_cut(instance, groups), groups) for groups in chunked)


def _chunked(instance: Instance, num_groups: int, *, chunks: int = 2) -> Iterator[Groups]:
    """Stages in a loop and in a V or zigzag, over groups of the devices as listed, and as recursive cuts list them."""
    orders = (tuple(range(instance.num_devices)), tuple(cut_order(instance).tolist()))
    for devices in dict.fromkeys(orders):
        groups = share_out(devices, num_groups, allowed=common_replicas(instance))
        yield tuple(groups * chunks)
        yield tuple(group for chunk in range(chunks) for group in (groups[::-1] if chunk % 2 else groups))


def _best_fitting(instance: Instance) -> Iterator[tuple[Integers, Groups]]:
    """One stage on each of the devices that a target period fills best, where they are unlike."""
    for fit in best_fits(instance):
        yield np.repeat(np.arange(len(fit.devices)), np.diff(fit.bounds)), tuple((device,) for device in fit.devices)


def _spread(instance: Instance, orders: list[Integers], *, num_stages: int) -> Iterator[Groups]:
    """All devices shared out over at most as many stages, in each of the orders; or one device each."""
    for devices in orders:
        groups = tuple(share_out(devices.tolist(), num_stages, allowed=common_replicas(instance)))
        if any(len(group) > 1 for group in groups):
            yield groups
        yield tuple((int(part[0]),) for part in np.array_split(devices, num_stages))


def _apply_pins(instance: Instance, stage_of: Integers, *, groups: Groups) -> Groups:
    """Exchange devices so that pinned layers come to run on theirs, as far as one exchange per pin can do it."""
    for layer in np.nonzero(instance.pinned >= 0)[0]:
        wanted, stage = int(instance.pinned[layer]), int(stage_of[layer])
        if wanted not in groups[stage]:
            other = groups[stage][0]
            swap = {wanted: other, other: wanted}
            groups = tuple(tuple(swap.get(device, device) for device in group) for group in groups)
    return groups


def _overlapped(instance: Instance) -> Iterator[tuple[Integers, Groups]]:
    """Two stages on all devices: the later one synchronises while the earlier one computes; or half of them on a part.

    Cut at every eighth of the work and of the gradients.
    """
    everyone = tuple(range(largest_allowed(common_replicas(instance), instance.num_devices)))
    half = len(everyone) - largest_allowed(common_replicas(instance), (len(everyone) + 1) // 2)
    for weights in (instance.work[0, [0, 1, 2]].sum(axis=0).mean(axis=0), instance.gradient):
        share = np.cumsum(weights) / max(weights.sum(), 1)
        for eighth in range(1, 8):
            stage_of = (share > eighth / 8).astype(np.int64)
            yield stage_of, (everyone, everyone)
            if half:
                yield stage_of, (everyone, everyone[half:])


def _wide(instance: Instance) -> Iterator[tuple[Integers, Groups]]:
    """The groups of one width in place of devices: S stages on S groups, or on all groups evenly."""
    if instance.wide is None or instance.given_groups is not None:
        return
    num_devices, num_layers = instance.num_devices, instance.num_layers
    for row in range(1, len(instance.wide.widths) + 1):
        holders = _disjoint(instance, num_devices + np.nonzero(instance.wide.width_row == row)[0])
        for num_stages in _stage_counts(min(len(holders), num_layers)) if len(holders) else []:
            groups = tuple(share_out(holders.tolist(), num_stages, allowed=common_replicas(instance)))
            firsts = tuple(tuple(instance.members_of(holder)[0] for holder in group) for group in groups)
            stage_of = instance.given_stages
            if stage_of is None:
                stage_of = balanced_cut(instance, firsts)
            if len(np.unique(stage_of)) == num_stages:
                yield stage_of, groups
                yield stage_of, tuple(group[:1] for group in groups)


def _disjoint(instance: Instance, holders: Integers) -> Integers:
    """Those that share no device with one before them."""
    used, kept = set[int](), list[int]()
    for holder in holders.tolist():
        if used.isdisjoint(instance.members_of(holder)):
            used.update(instance.members_of(holder))
            kept.append(holder)
    return np.array(kept, np.int64)


def _topological_orders(instance: Instance) -> list[Integers]:
    """The listed order; in a graph also the one that finishes a branch before it begins the next (depth first)."""
    num_layers = instance.num_layers
    listed = np.arange(num_layers)
    consumers: list[list[int]] = [[] for _ in range(num_layers)]
    waiting = [0] * num_layers
    for producer, consumer in instance.layers.edges[:, :2].tolist():
        consumers[producer].append(consumer)
        waiting[consumer] += 1
    stack = [layer for layer in reversed(range(num_layers)) if waiting[layer] == 0]
    depth_first = []
    while stack:
        layer = stack.pop()
        depth_first.append(layer)
        for consumer in reversed(consumers[layer]):
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                stack.append(consumer)
    return [listed] if depth_first == listed.tolist() else [listed, np.array(depth_first)]


def balanced_cut(
    instance: Instance, groups: Groups, *, order: Integers | None = None, scale: Floats | None = None
) -> Integers:
    """Layers, in a topological order, cut so that every stage's work is proportional to the speed of its devices.

    `scale` [S]: a factor on the work of every stage.
    """
    along = np.arange(instance.num_layers) if order is None else order
    speeds = _speeds(instance)
    power = np.array([speeds[list(group)].sum() for group in groups]) * (1 if scale is None else scale)
    work = instance.work[0, [0, 1, 2]].sum(axis=0).mean(axis=0)[along]
    middle = (np.cumsum(work) - work / 2) / max(work.sum(), 1)
    cut = np.searchsorted(np.cumsum(power)[:-1] / power.sum(), middle, side="right").astype(np.int64)
    stage_of = np.empty(len(cut), np.int64)
    stage_of[along] = _without_gaps(cut, len(groups))
    return stage_of


def _speeds(instance: Instance) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Relative speed of every device: the reciprocal of its type's total work."""
    total = instance.work[0, [0, 1, 2]].sum(axis=(0, 2)).astype(float)
    speed: np.ndarray[tuple[int], np.dtype[np.float64]] = (1 / np.maximum(total, 1))[instance.device_type]
    return speed


def _without_gaps(stage_of: Integers, num_stages: int) -> Integers:
    """`stage_of` if every stage has a layer; otherwise equal numbers of layers (a heavy layer swallowed a cut)."""
    if len(np.unique(stage_of)) == num_stages:
        return stage_of
    return np.arange(len(stage_of), dtype=np.int64) * num_stages // len(stage_of)


def _stage_counts(most: int) -> list[int]:
    """All counts up to 16, then ever fewer."""
    counts = list(range(1, min(most, 16) + 1))
    while counts[-1] < most:
        counts.append(min(most, max(counts[-1] + 1, counts[-1] * 5 // 4)))
    return counts
