"""Compiled cuts of the layers for groups of devices that are given in order, the least largest load first."""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import Integers


class Sums(NamedTuple):
    """Prefix sums over the layers, from 0: what a stage of the layers i .. j - 1 costs on one device."""

    load: Integers
    """[T, L + 1] ticks of F, I and W per microbatch by device type."""
    turnaround: Integers
    """[T, L + 1] ticks of F and I."""
    forward: Integers
    """[T, L + 1] ticks of F."""
    state: Integers
    """[L + 1] resident units."""
    stash: Integers
    """[L + 1] units per microbatch."""
    crossing: Integers
    """[L + 1] units that cross each boundary, one way."""


class StageGroups(NamedTuple):
    """G groups of devices, one per stage; those left over at the end stay idle."""

    kind: Integers
    """[G] type of the slowest device."""
    size: Integers
    """[G] devices."""
    room: Integers
    """[G] units of the smallest memory."""
    held: Integers
    """[G] microbatches that the stage shall hold at once."""
    buffers: int
    """Receive buffers per edge."""


@kernel
def fits(sums: Sums, groups: StageGroups, g: int, first: int, end: int) -> bool:
    """Whether the layers first .. end - 1 have room on every device of group g."""
    size = groups.size[g]
    buffers = groups.buffers * (sums.crossing[first] + sums.crossing[end])
    stash = -(-(sums.stash[end] - sums.stash[first]) // size)
    return sums.state[end] - sums.state[first] + -(-buffers // size) + groups.held[g] * stash <= groups.room[g]


@kernel
def _last_fitting(sums: Sums, groups: StageGroups, g: int, first: int, end: int) -> int:
    """The last end up to `end` at which the stage fits into memory, as halving finds it; `first` if there is none."""
    if fits(sums, groups, g, first, end):
        return end
    low = first
    while end - low > 1:
        middle = (low + end) // 2
        if fits(sums, groups, g, first, middle):
            low = middle
        else:
            end = middle
    return low


@kernel
def _cut_within(sums: Sums, groups: StageGroups, limit: int, slack: float, bounds: Integers) -> int:
    """Every stage as long as its load stays within `limit` and its memory lasts; how many stages, 0 if that fails.

    With `slack` stages may end so much earlier where less crosses. `bounds` [G + 1] are filled from the first on.
    """
    num_layers = sums.state.shape[0] - 1
    bounds[0] = 0
    for g in range(groups.kind.shape[0]):
        first, load = bounds[g], sums.load[groups.kind[g]]
        end = np.searchsorted(load, load[first] + limit * groups.size[g], side="right") - 1
        end = _last_fitting(sums, groups, g, first, end)
        if end <= first:
            return 0
        if slack > 0 and end < num_layers:
            enough = load[first] + int64((1 - slack) * (load[end] - load[first]))
            least = first + 1 + np.searchsorted(load[first + 1 : end], enough)
            for earlier in range(end - 1, least - 1, -1):
                if sums.crossing[earlier] < sums.crossing[end]:
                    end = earlier
        bounds[g + 1] = end
        if end == num_layers:
            return g + 1
    return 0


@kernel
def best_cut(sums: Sums, groups: StageGroups, slack: float, steps: int) -> Integers:
    """The boundaries, from 0 to L, of the cut with the least largest load by `steps` halvings; empty if none fits."""
    total = sums.load[:, sums.load.shape[1] - 1].max()
    trial, found = np.zeros(groups.kind.shape[0] + 1, np.int64), np.zeros(groups.kind.shape[0] + 1, np.int64)
    low, high = int64(0), total
    count = _cut_within(sums, groups, high, slack, found)
    while count > 0 and groups.kind.shape[0] > 1 and high - low > max(1, total >> steps):
        middle = (low + high) // 2
        trials = _cut_within(sums, groups, middle, slack, trial)
        if trials == 0:
            low = middle
        else:
            high, count = middle, trials
            found[:] = trial
    return found[: count + 1] if count > 0 else found[:0]
