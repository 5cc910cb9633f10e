"""What the memory of a device leaves to do before its first I and after its last F, in many cases at once.

The rule of `held_together`, on windows of actions, for devices with one or two stage replicas;
docs/proofs/refutations.md says why.
"""

import numpy
from numpy.typing import NDArray

from planner.bounds.minimum_costs import Integers

NUM_BEGUN, BEGUN, LEFT, ROUND, WORK, NUM_FORWARDS = range(6)
"""Figures of a device: F that fit without their I, their work, that of backward passes held or kept for, that of F and
backward pass of one microbatch at most, all work, and F of all its stage replicas."""

_COUNTED = 2
"""Places of a device that are counted together."""

FAR = 1 << 57
"""Further away than any time."""

ALL = 1 << 58
"""More than any memory holds: of such a device nothing is known."""


def most_in_cases(
    times: Integers, sizes: tuple[Integers, Integers], *, room: Integers, outer: Integers, count: int
) -> Integers:
    """[N, D, 6] the most that fits into every device at a time, of `count` microbatches.

    `times`: [N, D, C, 3] of F, I and W; a place where all are 0 is not used. `sizes`: [N, D, C] bytes of a microbatch
    from F to I, and from I to W. `room`: [N, D, C] bytes for them while an F of the place runs. `outer`: [N, D] which
    of the first two places holds all that the other does; -1 where neither does.
    """
    is_used = times.sum(axis=3) > 0
    forward, returning, rest = (times[..., kind] for kind in range(3))
    backward = returning + rest
    num_places = min(_COUNTED, times.shape[2])
    number = numpy.arange(count + 1).reshape(-1, 1)
    numbers = (number, number.T if num_places > 1 else numpy.zeros((1, 1), dtype=numpy.int64))
    budget = numpy.where(is_used, room, 0).max(axis=2)[..., None, None]

    def total(figures: Integers) -> Integers:
        found: Integers = numbers[0] * figures[:, :, 0, None, None]
        return found + numbers[1] * figures[:, :, 1, None, None] if num_places > 1 else found

    left = budget - total(sizes[0])
    fits = (left >= 0) & (total((~is_used).astype(numpy.int64)) == 0)
    for place in range(_COUNTED):
        fits &= (outer != place)[..., None, None] | (numbers[place] >= numbers[1 - place])
    kept = _most_kept(left, rests=rest, kept=sizes[1], count=count)
    found: Integers = numpy.empty((*budget.shape[:2], 6), dtype=numpy.int64)
    for figure, values in (
        (NUM_BEGUN, total(is_used.astype(numpy.int64))), (BEGUN, total(forward)), (LEFT, total(backward) + kept)
    ):  # fmt: skip
        found[..., figure] = numpy.where(fits, values, 0).max(axis=(2, 3))
    found[..., LEFT] = numpy.minimum(found[..., LEFT], count * backward.sum(axis=2))
    found[..., ROUND] = (forward + backward).max(axis=2)
    found[..., WORK] = count * (forward + backward).sum(axis=2)
    found[..., NUM_FORWARDS] = count * is_used.sum(axis=2)
    is_crowded = is_used[:, :, _COUNTED:].any(axis=2)
    found[is_crowded, : LEFT + 1] = ALL
    return found


def _most_kept(left: Integers, *, rests: Integers, kept: Integers, count: int) -> Integers:
    """The most work of W, [N, D, C] each, whose microbatches are kept for in so many bytes, [N, D, ...]."""
    most = numpy.zeros_like(left)
    figures = [(rests[:, :, place, None, None], kept[:, :, place, None, None]) for place in range(rests.shape[2])]
    rest, size = figures[0]
    for number in range(count + 1):
        space = left - number * size
        work: Integers = number * rest
        for other_rest, other_size in figures[1:_COUNTED]:
            beside: Integers = numpy.maximum(space, 0) // numpy.maximum(other_size, 1)
            number_beside: Integers = numpy.where(other_size > 0, numpy.minimum(beside, count), count)
            work = work + number_beside * other_rest
        most = numpy.where(space >= 0, numpy.maximum(most, work), most)
    return most


def are_too_idle(
    starts: Integers, ends: Integers, *, span: tuple[Integers, Integers], most: Integers
) -> NDArray[numpy.bool_]:
    """[N] whether a device idles for so long, before an I or after an F, that its work does not fit.

    `starts`: [N, D, C M] when the I of a device start at the earliest, `FAR` where there is none. `ends`: when its F
    end at the latest, `-FAR` where there is none. `span`: [N, D] the first start and the last end of all its actions.
    """
    figures = most[..., None]
    rank = numpy.arange(starts.shape[2])
    is_one = rank < figures[:, :, NUM_FORWARDS]
    rounds = rank * figures[:, :, ROUND]
    before = numpy.where(is_one, numpy.sort(starts, axis=2) - figures[:, :, BEGUN] - rounds, -FAR)
    after = numpy.where(is_one, numpy.sort(-ends, axis=2) - figures[:, :, LEFT] - rounds, -FAR)
    after = numpy.maximum.accumulate(after, axis=2)
    distance = figures[:, :, NUM_FORWARDS] - figures[:, :, NUM_BEGUN] - 1 - rank
    behind = numpy.take_along_axis(after, numpy.clip(distance, 0, len(rank) - 1), axis=2)
    work, (first, last) = most[..., WORK], span
    dead = (before.max(axis=2) + work > last) | (first + work + after[..., -1] > 0)
    dead |= (numpy.where(distance >= 0, before + behind, -FAR) + figures[:, :, WORK] > 0).any(axis=2)
    return numpy.asarray((dead & (work > 0)).any(axis=1))
