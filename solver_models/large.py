"""First candidates for problems whose plans take long to play: many cuts rated in closed form, the best few played."""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from solver_models.annealing import evaluate
from solver_models.best_fit import best_fits
from solver_models.device_orders import device_orders
from solver_models.instance import Instance, Integers
from solver_models.kernels import FAR, assemble
from solver_models.quick_floors import net_floors
from solver_models.search import STANDARD_KNOBS, Candidate, Searcher

Groups = tuple[tuple[int, ...], ...]

LARGE_ACTIONS = 40_000
"""Problems with more actions than this begin here."""

REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Devices per stage that are tried."""

DEPTHS = (1.0, 0.5, 0.2, 0.0)
"""How many microbatches a stage shall hold at once, as parts of the stages from it to the last."""

SLACKS = (0.0, 0.03, 0.1, 0.25)
"""By how much a stage may fall short of the largest load where that makes what crosses its end smaller."""

MOST_SLACK_GROUPS = 160
"""Cuts into more stages have no slack to give."""

STEPS = 14
"""Halvings of the search for the least largest load of a cut."""

MOST_FLOORS = 200
"""Cuts whose floor is looked at, those with the least estimates."""

KNOBS = (STANDARD_KNOBS[1], STANDARD_KNOBS[4], STANDARD_KNOBS[0], STANDARD_KNOBS[3])
"""Policies that are played, the most promising first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Prefix sums over the layers, from 0, as lists: what a stage of the layers i .. j - 1 costs on one device."""

    load: list[list[int]]
    """[T] ticks of F, I and W per microbatch by device type."""
    trip: list[list[int]]
    """[T] ticks of F and I."""
    forward: list[list[int]]
    """[T] ticks of F."""
    state: list[int]
    """Resident units."""
    stash: list[int]
    """Units per microbatch."""
    crossing: list[int]
    """[L + 1] units that cross each boundary, one way."""


def _make_sums(instance: Instance) -> Sums:
    work = instance.work[0]
    backward = work[1] + work[2] if instance.can_split else work[3]
    crossing = np.zeros(len(instance.state) + 2, np.int64)
    for producer, consumer, size in instance.edges[:, :3].tolist():
        crossing[producer + 1] += size
        crossing[consumer + 1] -= size
    return Sums(
        load=[_prefix(row) for row in work[0] + backward],
        trip=[_prefix(row) for row in work[0] + work[1]],
        forward=[_prefix(row) for row in work[0]],
        state=_prefix(instance.state),
        stash=_prefix(instance.stash),
        crossing=np.cumsum(crossing)[:-1].tolist(),
    )


def _prefix(values: Integers) -> list[int]:
    sums: list[int] = [0, *np.cumsum(values).tolist()]
    return sums


class _Cutter:
    """Cuts of the layers for given groups of devices, in order; groups left over at the end stay idle."""

    def __init__(self, instance: Instance, sums: Sums, *, groups: Groups) -> None:
        self.instance, self.sums, self.groups = instance, sums, groups
        total = [row[-1] for row in sums.load]
        types = instance.device_type
        self.slowest = [max(types[list(group)].tolist(), key=lambda kind: total[kind]) for group in groups]
        self.room = [int(instance.capacity[list(group)].min()) for group in groups]

    def best(self, depth: float, slack: float) -> list[int] | None:
        """The boundaries of the cut with the least largest load, [0, ..., L]; None if nothing fits into memory.

        With `slack` stages may end earlier, where less crosses.
        """
        total = max(row[-1] for row in self.sums.load)
        low, high = 0, total
        found = self._within(high, depth, slack=slack)
        while found is not None and len(self.groups) > 1 and high - low > max(1, total >> STEPS):
            middle = (low + high) // 2
            cut = self._within(middle, depth, slack=slack)
            if cut is None:
                low = middle
            else:
                found, high = cut, middle
        return found

    def _within(self, limit: int, depth: float, *, slack: float) -> list[int] | None:
        """Every stage as long as its load stays within `limit` and its memory lasts."""
        num_layers, bounds = len(self.instance.state), [0]
        for number, group in enumerate(self.groups):
            first = bounds[-1]
            load = self.sums.load[self.slowest[number]]
            end = bisect_right(load, load[first] + limit * len(group)) - 1
            end = self._fitting(first, end, number=number, depth=depth)
            if end <= first:
                return None
            if slack and end < num_layers:
                least = bisect_left(load, load[first] + int((1 - slack) * (load[end] - load[first])), first + 1, end)
                end = min(range(end, least - 1, -1), key=self.sums.crossing.__getitem__)
            bounds.append(end)
            if end == num_layers:
                return bounds
        return None

    def _fitting(self, first: int, end: int, *, number: int, depth: float) -> int:
        """The last end up to `end` at which the stage fits into memory."""
        in_flight = max(1, min(self.instance.num_microbatches, int(depth * (len(self.groups) - number))))

        def fits(last: int) -> bool:
            stash = in_flight * self._stash(first, last, number=number)
            return self._need(first, last, number=number) + stash <= self.room[number]

        low = first
        if fits(end):
            return end
        while end - low > 1:
            middle = (low + end) // 2
            low, end = (middle, end) if fits(middle) else (low, middle)
        return low

    def _stash(self, first: int, end: int, *, number: int) -> int:
        return -(-(self.sums.stash[end] - self.sums.stash[first]) // len(self.groups[number]))

    def _need(self, first: int, end: int, *, number: int) -> int:
        buffers = self.instance.receive_buffers * (self.sums.crossing[first] + self.sums.crossing[end])
        return self.sums.state[end] - self.sums.state[first] + -(-buffers // len(self.groups[number]))

    def estimate(self, bounds: list[int]) -> int:
        """Ticks that the orders of a cut take, about: fill, work, and round trips of what memory holds at once."""
        count = self.instance.num_microbatches
        worst, head, trip = 0, 0, 0
        stages = list(pairwise(bounds))
        trips = []
        for number, (first, end) in enumerate(stages):
            kind, replicas = self.slowest[number], len(self.groups[number])
            trips.append((self.sums.trip[kind][end] - self.sums.trip[kind][first]) // replicas)
        rest = sum(trips)
        for number, (first, end) in enumerate(stages):
            kind, replicas = self.slowest[number], len(self.groups[number])
            stash = self._stash(first, end, number=number)
            held = max(1, (self.room[number] - self._need(first, end, number=number)) // max(stash, 1))
            load = (self.sums.load[kind][end] - self.sums.load[kind][first]) // replicas
            trip = rest // min(held, count)
            worst = max(worst, head + count * max(load, trip))
            head += (self.sums.forward[kind][end] - self.sums.forward[kind][first]) // replicas
            rest -= trips[number]
        return worst


def large_seeds(searcher: Searcher, *, most_plays: int, until: float) -> Iterator[Candidate]:
    """Played candidates, each better than those before, until `most_plays` were played or the clock says `until`.

    The clock is that of `time.monotonic`. Nothing comes if the partition is given or layers are pinned.
    """
    plays, best = 0, FAR
    for candidate in _rated(searcher):
        start = np.cumsum([0, *(len(group) for group in candidate.groups)]).astype(np.int64)
        devices = np.array([device for group in candidate.groups for device in group], dtype=np.int64)
        for knobs in KNOBS:
            if candidate.objective >= best or plays >= most_plays or (plays and time.monotonic() >= until):
                break
            value, _ = evaluate(
                searcher.layers, candidate.stage_of, start, devices, candidate.recompute, knobs, best, searcher.by_span,
                False,
            )  # fmt: skip
            plays += 1
            if value < best:
                best = int(value)
                yield replace(candidate, knobs=knobs, objective=best)


def _rated(searcher: Searcher) -> list[Candidate]:
    """Cuts for many groupings of the devices, the least estimate first (which stands as their objective)."""
    instance = searcher.instance
    if instance.given_stages is not None or (instance.pinned >= 0).any():
        return []
    sums, found = _make_sums(instance), list[Candidate]()
    for groups in dict.fromkeys(filter(None, _groupings(instance))):
        cutter = _Cutter(instance, sums, groups=groups)
        slacks = SLACKS if len(groups) <= MOST_SLACK_GROUPS else SLACKS[:1]
        cuts = (cutter.best(depth, slack) for depth in DEPTHS for slack in slacks)
        for cut in dict.fromkeys(tuple(bounds) for bounds in cuts if bounds is not None):
            used = groups[: len(cut) - 1]
            stage_of = np.repeat(np.arange(len(used)), np.diff(cut))
            candidate = searcher.make_candidate(stage_of, used, recompute=np.zeros(len(used), np.int64))
            if searcher.is_allowed(candidate):
                found.append(replace(candidate, objective=cutter.estimate(list(cut))))
    found.sort(key=lambda candidate: candidate.objective)
    rated = [replace(c, objective=max(c.objective, _floor(searcher, c))) for c in found[:MOST_FLOORS]]
    return sorted(rated, key=lambda candidate: candidate.objective)


def _floor(searcher: Searcher, candidate: Candidate) -> int:
    """Ticks that no order beats: those of the busiest device, and those that the busiest link is occupied."""
    start = np.cumsum([0, *(len(group) for group in candidate.groups)]).astype(np.int64)
    devices = np.array([device for group in candidate.groups for device in group], dtype=np.int64)
    net = assemble(searcher.layers, candidate.stage_of, start, devices, candidate.recompute)
    routed = net.flow_route >= 0
    routes, ticks = net.flow_route[routed], net.flow_duration[routed]
    lengths = net.route_start[routes + 1] - net.route_start[routes]
    firsts = np.repeat(net.route_start[routes] - np.cumsum(lengths) + lengths, lengths)
    links = net.route_links[firsts + np.arange(len(firsts))]
    loads = np.bincount(links, weights=np.repeat(ticks, lengths).astype(float), minlength=1)
    return max(int(net_floors(net)[0]), int(searcher.instance.num_microbatches * loads.max()))


def _groupings(instance: Instance) -> Iterator[Groups]:
    """Devices in listed order, by recursive cuts, or class by class, as stages of equally many devices of one type.

    And one device per stage as a target period fills them best.
    """
    yield from (tuple((device,) for device in fit.devices) for fit in best_fits(instance))
    most = len(instance.table_of_replicas) - 1
    for order in device_orders(instance, slowest_first=True):
        types = instance.device_type[order]
        cuts = [0, *(np.flatnonzero(np.diff(types)) + 1).tolist(), len(order)]
        runs = [order[begin:end].tolist() for begin, end in pairwise(cuts)]
        for replicas in REPLICAS:
            if replicas <= min(most, len(order)):
                yield tuple(group for run in runs for group in _side_by_side(run, replicas))
                blocks = [group for run in runs for group in _blocks(run, replicas)]
                is_even = instance.uneven_replication or replicas == 1
                yield tuple(group for group in blocks if is_even or len(group) == replicas)


def _blocks(run: list[int], replicas: int) -> list[tuple[int, ...]]:
    """Neighbours are replicas of one stage; what is left over makes a smaller last stage."""
    return [tuple(run[at : at + replicas]) for at in range(0, len(run), replicas)]


def _side_by_side(run: list[int], replicas: int) -> list[tuple[int, ...]]:
    """Neighbours are consecutive stages of one replica, so that most transfers have a short way; the rest idles."""
    length = len(run) // replicas
    return [tuple(run[stage : length * replicas : length]) for stage in range(length)]
