"""Pipelines on classes of many like devices: where they are cut, and the kind of every stage, by dynamic programme.

A *kind* of stage is a class of devices, a number of replicas and a width; it takes so many units of its class. For a
limit on a stage's time and one on its synchronisation, the programme goes from the last layer to the first and keeps,
for every number of stages and of units used, the least sum of times: a stage k from the end holds k microbatches.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from solver_models.instance import Integers
from solver_models.search_params import KindCutParams

MOST_STAGES = 20
"""Stages of a pipeline."""
WORSE = 1.2
"""Estimates so many times the best plan known are not followed up."""
_FINE = (0.88, 1.0)
"""Least and largest beside the best one found, as multiples of it."""
_WIDE = (1.0, 1.4)
"""Least and largest limits, as multiples of the best one, where synchronisation is to be shorter."""

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKinds:
    """K kinds of stages for L layers in a chain; prefix sums run from 0 to L."""

    device_class: Integers
    """[K]."""
    units: Integers
    """[K] that a stage takes of its class."""
    load: Floats
    """[K, L + 1] prefix sums of the ticks that a replica takes per microbatch."""
    crossing: Floats
    """[K, L + 1] ticks of a replica's messages of one microbatch, both ways, where it is cut; 0 at both ends."""
    state: Floats
    """[K, L + 1] prefix sums of the bytes on every device."""
    stash: Floats
    """[K, L + 1] the same per microbatch in flight."""
    room: Floats
    """[K] bytes of a device."""
    sync: Floats
    """[K, L + 1] prefix sums of the ticks of the synchronisation that grow with the layers."""
    sync_least: Floats
    """[K] ticks that every synchronisation takes beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCut:
    """A pipeline."""

    estimate: float = field(default=np.inf, compare=False)
    """Ticks of an iteration, about."""
    bounds: tuple[int, ...]
    """[S + 1] where stages begin, from 0 to L."""
    kinds: tuple[int, ...]
    """[S]."""

    def moves(self, num_kinds: int) -> Iterator["KindCut"]:
        """Every one a step away: a stage of another kind or in halves, a cut moved, stages joined or exchanged."""
        bounds, kinds = self.bounds, self.kinds
        for stage, own in enumerate(kinds):
            begin, end = bounds[stage : stage + 2]
            for kind in range(num_kinds):
                yield KindCut(bounds=bounds, kinds=(*kinds[:stage], kind, *kinds[stage + 1 :]))
            if end - begin > 1:
                halves = (*bounds[: stage + 1], (begin + end) // 2, *bounds[stage + 1 :])
                yield KindCut(bounds=halves, kinds=(*kinds[:stage], own, *kinds[stage:]))
        for place in range(1, len(kinds)):
            before, after, pair = bounds[:place], bounds[place + 1 :], kinds[place - 1 : place + 1]
            for bound in {bounds[place] - 1, bounds[place] + 1} - {before[-1], after[0]}:
                yield KindCut(bounds=(*before, bound, *after), kinds=kinds)
            for joined in pair:
                yield KindCut(bounds=before + after, kinds=(*kinds[: place - 1], joined, *kinds[place + 1 :]))
            yield KindCut(bounds=bounds, kinds=(*kinds[: place - 1], *pair[::-1], *kinds[place + 1 :]))


def kind_cuts(
    kinds: StageKinds,
    *,
    class_units: tuple[int, ...],
    num_microbatches: int,
    overlap: bool,
    known: float,
    params: KindCutParams,
) -> list[KindCut]:
    """Pipelines within memory and units, the least estimate first: fill, the slowest stage, the longest sync.

    `known`: ticks of a plan of another origin; where the first are far above it, no others are looked for.
    """
    programme = _KindProgramme(kinds, class_units, num_microbatches=num_microbatches, overlap=overlap, params=params)
    found = set[KindCut]()
    most_sync, limits = np.inf, programme.coarse_limits()
    for step in range(params.sync_steps):
        cuts = list(programme.cuts(limits, most_sync))
        if not cuts:
            break
        best = min(cuts, key=lambda cut: cut.estimate)
        if step == 0 and best.estimate <= WORSE * known:
            cuts += programme.cuts(programme.limits_beside(best, _FINE), most_sync)
        found.update(cuts)
        most_sync = params.sync_factor * programme.longest_sync(best)
        limits = programme.limits_beside(best, _WIDE)
        least = min(cut.estimate for cut in found)
        if most_sync <= 0 or best.estimate > WORSE * min(least, known):
            break
    return sorted(found, key=lambda cut: (cut.estimate, cut.bounds, cut.kinds))


def estimated(kinds: StageKinds, cut: KindCut, *, num_microbatches: int, overlap: bool) -> KindCut:
    """A pipeline with its estimate: every stage once, the slowest for all further microbatches, the longest sync."""
    chosen, first, end = np.array(cut.kinds), np.array(cut.bounds[:-1]), np.array(cut.bounds[1:])
    time = kinds.load[chosen, end] - kinds.load[chosen, first]
    before, behind = kinds.crossing[chosen, first], kinds.crossing[chosen, end]
    slowest = (time if overlap else time + before + behind).max()
    sync = (kinds.sync[chosen, end] - kinds.sync[chosen, first] + kinds.sync_least[chosen]).max()
    return replace(cut, estimate=float((num_microbatches - 1) * slowest + (time + before).sum() + sync))


class _KindProgramme:
    """The dynamic programme for all limits of a row at once."""

    def __init__(
        self,
        kinds: StageKinds,
        class_units: tuple[int, ...],
        *,
        num_microbatches: int,
        overlap: bool,
        params: KindCutParams,
    ) -> None:
        self.kinds, self.class_units, self.params = kinds, class_units, params
        self.count, self.size, self.overlap = num_microbatches, kinds.load.shape[1] - 1, overlap
        start, end = np.arange(self.size + 1)[:, None], np.arange(self.size + 1)[None, :]
        is_stage = end > start
        time = kinds.load[:, None, :] - kinds.load[:, :, None]
        before, behind = kinds.crossing[:, :, None], kinds.crossing[:, None, :]
        self.busy = np.where(is_stage, time if overlap else time + before + behind, np.inf)
        self.turnaround = np.where(is_stage, time + before, np.inf)
        self.sync = kinds.sync[:, None, :] - kinds.sync[:, :, None] + kinds.sync_least[:, None, None]
        self.state = kinds.state[:, None, :] - kinds.state[:, :, None]
        self.stash = kinds.stash[:, None, :] - kinds.stash[:, :, None]

    def coarse_limits(self) -> Floats:
        """Times of the slowest stage from perfect balance on all devices up to no pipeline at all."""
        kinds, speeds = self.kinds, np.zeros(len(self.class_units))
        np.maximum.at(speeds, kinds.device_class, 1 / np.maximum(kinds.load[:, -1] * kinds.units, 1))
        heaviest = float(np.diff(self.kinds.load, axis=1).min(axis=0).max())
        low = max(1 / float(speeds @ np.array(self.class_units)), heaviest)
        high = max(low, float(kinds.load[:, -1].min()))
        return np.append(np.geomspace(low, self.params.coarse * low, self.params.limits), high)

    def limits_beside(self, cut: KindCut, ends: tuple[float, float]) -> Floats:
        """Times close to the slowest stage of a cut, between these multiples of it."""
        return self._slowest(cut) * np.linspace(*ends, self.params.limits)

    def _slowest(self, cut: KindCut) -> float:
        return max(float(self.busy[kind, a, b]) for kind, (a, b) in self._stages(cut))

    def longest_sync(self, cut: KindCut) -> float:
        """Ticks of the longest synchronisation of a cut."""
        return max(float(self.sync[kind, a, b]) for kind, (a, b) in self._stages(cut))

    def _stages(self, cut: KindCut) -> Iterator[tuple[int, tuple[int, int]]]:
        return zip(cut.kinds, pairwise(cut.bounds), strict=True)

    def cuts(self, limits: Floats, most_sync: float) -> Iterator[KindCut]:
        """For every limit the cut with the least sum of times, if there is one, for the best number of stages."""
        least = np.full((len(limits), self.size + 1, *(units + 1 for units in self.class_units)), np.inf)
        least[:, self.size].reshape(len(limits), -1)[:, 0] = 0
        tables, best = [least], np.full(len(limits), np.inf)
        depth_of = np.zeros(len(limits), np.int64)
        for depth in range(1, min(self.size, MOST_STAGES, sum(self.class_units)) + 1):
            allowed = self._allowed(depth, most_sync)
            tables.append(self._step(tables[-1], limits=limits, allowed=allowed))
            sums = tables[-1][:, 0].reshape(len(limits), -1).min(axis=1)
            depth_of = np.where(sums < best, depth, depth_of)
            best = np.minimum(best, sums)
            if not np.isfinite(tables[-1]).any():
                break
        for number, limit in enumerate(limits):
            if depth_of[number]:
                yield self._trace(tables, number, limit=float(limit), most_sync=most_sync, depth=int(depth_of[number]))

    def _allowed(self, depth: int, most_sync: float) -> Floats:
        """[K, L + 1, L + 1] a stage's time, where one so deep fits into memory and synchronises in time; else inf."""
        held = min(depth, self.count)
        fits = self.state + held * self.stash <= self.kinds.room[:, None, None]
        return np.where(fits & (self.sync <= most_sync), self.busy, np.inf)

    def _step(self, source: Floats, *, limits: Floats, allowed: Floats) -> Floats:
        """One stage more in front of all."""
        target = np.full_like(source, np.inf)
        by_units: dict[tuple[int, int], list[int]] = {}
        for kind, key in enumerate(self._classes()):
            by_units.setdefault(key, []).append(kind)
        for (owner, units), alike in by_units.items():
            shifted, rest = self._shift(owner, units)
            for length in range(1, self.size + 1):
                starts = np.arange(self.size + 1 - length)
                busy = allowed[alike][:, starts, starts + length]
                if not (busy <= limits.max()).any():
                    break
                turnarounds = self.turnaround[alike][:, starts, starts + length]
                turnaround = np.where(busy[:, None] <= limits[:, None], turnarounds[:, None], np.inf).min(axis=0)
                view = target[(slice(None), slice(0, len(starts)), *shifted)]
                came = source[(slice(None), slice(length, None), *rest)]
                np.minimum(view, came + turnaround.reshape(*turnaround.shape, *(1,) * len(shifted)), out=view)
        return target

    def _classes(self) -> Iterator[tuple[int, int]]:
        return zip(self.kinds.device_class.tolist(), self.kinds.units.tolist(), strict=True)

    def _shift(self, owner: int, units: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where a table is with so many units of a class more, and where it was without."""
        classes, most = range(len(self.class_units)), self.class_units[owner] + 1
        after = tuple(slice(units, None) if number == owner else slice(None) for number in classes)
        before = tuple(slice(0, max(most - units, 0)) if number == owner else slice(None) for number in classes)
        return after, before

    def _trace(self, tables: list[Floats], number: int, *, limit: float, most_sync: float, depth: int) -> KindCut:
        """The stages behind an entry of the last table, from the first layer on."""
        table = tables[depth][number, 0]
        used = tuple(int(place) for place in np.unravel_index(int(np.argmin(table)), table.shape))
        bounds, kinds = [0], list[int]()
        for left in range(depth, 0, -1):
            kind, end, used = self._came_from(tables, number, at=(left, bounds[-1], used), limit=limit, sync=most_sync)
            bounds.append(end)
            kinds.append(kind)
        cut = KindCut(bounds=tuple(bounds), kinds=tuple(kinds))
        return estimated(self.kinds, cut, num_microbatches=self.count, overlap=self.overlap)

    def _came_from(
        self, tables: list[Floats], number: int, *, at: tuple[int, int, tuple[int, ...]], limit: float, sync: float
    ) -> tuple[int, int, tuple[int, ...]]:
        """Kind and end of the stage that begins at a place, and the units used by those behind it."""
        depth, start, used = at
        value, allowed = tables[depth][(number, start, *used)], self._allowed(depth, sync)
        for kind, (owner, units) in enumerate(self._classes()):
            if used[owner] < units:
                continue
            rest = tuple(count - units * (place == owner) for place, count in enumerate(used))
            came = tables[depth - 1][number][(slice(None), *rest)] + self.turnaround[kind, start]
            ends = np.flatnonzero((came == value) & (allowed[kind, start] <= limit))
            if len(ends):
                return kind, int(ends[0]), rest
        raise AssertionError("every entry of a table has an origin")
