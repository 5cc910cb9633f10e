"""Who runs what of a stage whose I or W is on other devices (docs/reference/contract.md).

Shares of I are ranges of the microbatch's samples, in the order in which the stage lists them.
"""

import itertools
from fractions import Fraction
from typing import NamedTuple

from planner.plan import Stage

BEFORE_FIRST = -1
"""The microbatch of the transfer of a stage's weights; that of its finished gradient is the number of microbatches."""


class SplitPart(NamedTuple):
    """What one device does for a stage with split placement."""

    device: str
    kinds: str
    """The kinds of its actions, in the order F, I, W."""
    start: Fraction
    """Where its share of I begins."""
    end: Fraction
    """Where its share of I ends; equal to `start` if it runs no I."""

    @property
    def share(self) -> Fraction:
        """How much of every I it runs."""
        return self.end - self.start


class _Range(NamedTuple):
    """The samples for which a replica, or a part, runs I."""

    number: int
    """Index of the replica or of the part."""
    start: Fraction
    end: Fraction


def make_parts(stage: Stage, *, has_weight_grad: bool) -> tuple[SplitPart, ...]:
    """The devices that work for a stage with split placement: its owner first, then as the stage names them."""
    owner = stage.replicas[0][0]
    ranges: dict[str, tuple[Fraction, Fraction]] = {}
    start = Fraction(0)
    for share in stage.input_grad_replicas:
        end = start + Fraction(share.numerator, share.denominator)
        ranges[share.group[0]] = start, end
        start = end
    ranges = ranges or {owner: (Fraction(0), Fraction(1))}
    weight = stage.weight_grad_replicas[0].group[0] if stage.weight_grad_replicas else owner
    found = []
    for device in dict.fromkeys([owner, *ranges, weight]):
        kinds = "F" * (device == owner) + "I" * (device in ranges) + "W" * (device == weight and has_weight_grad)
        found.append(SplitPart(device, kinds, *ranges.get(device, (Fraction(0), Fraction(0)))))
    return tuple(found)


def input_grad_ranges(stage: Stage) -> list[_Range]:
    """Who runs I for which samples: the replicas, or the parts of a stage with split placement."""
    if stage.is_split:
        parts = enumerate(make_parts(stage, has_weight_grad=True))
        return [_Range(index, part.start, part.end) for index, part in parts if part.share]
    return replica_ranges(stage)


def replica_ranges(stage: Stage) -> list[_Range]:
    """Which samples each replica takes, in the order in which the stage lists them."""
    ends = list(itertools.accumulate(map(stage.share_of, range(len(stage.replicas))), initial=Fraction(0)))
    return [_Range(index, start, end) for index, (start, end) in enumerate(itertools.pairwise(ends))]


def common(a: _Range, b: _Range) -> Fraction:
    """The part of a microbatch that lies in both ranges."""
    return max(Fraction(0), min(a.end, b.end) - max(a.start, b.start))


def part_of(share: Fraction, total: int) -> int:
    """`share` of `total`, rounded up."""
    return -(-total * share.numerator // share.denominator)
