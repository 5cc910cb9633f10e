"""Which samples of a microbatch a stage replica works on (section 2, "Replication")."""

from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

from planner.plan import Stage


class Samples(NamedTuple):
    """A range of the samples of every microbatch, as fractions of it."""

    start: Fraction
    end: Fraction

    @property
    def share(self) -> Fraction:
        """How much of a microbatch it is."""
        return self.end - self.start


NO_SAMPLES = Samples(Fraction(0), Fraction(0))
ALL_SAMPLES = Samples(Fraction(0), Fraction(1))


def is_whole(share: Fraction, microbatch_size: int | None) -> bool:
    """Whether a part of a microbatch is a number of whole samples; every part, where nobody knows their number."""
    return microbatch_size is None or microbatch_size * share.numerator % share.denominator == 0


def cut(stage: Stage) -> list[Samples]:
    """The ranges of a stage's replicas, in the order in which they are listed: as long as it says, or else equal.

    What it says counts if it is a positive number for each of them; that it has to be is a rule (`groups`).
    """
    count = len(stage.replicas)
    parts = stage.samples if len(stage.samples) == count and min(stage.samples, default=0) > 0 else (1,) * count
    ends = list(accumulate(parts, initial=0))
    return [Samples(Fraction(start, ends[-1]), Fraction(end, ends[-1])) for start, end in pairwise(ends)]


def common_share(a: Samples, b: Samples) -> Fraction:
    """How much of a microbatch lies in both ranges."""
    return max(Fraction(0), min(a.end, b.end) - max(a.start, b.start))


def round_up(value: Fraction) -> int:
    """The least integer that is not below `value`: plans never count on a fraction of a nanosecond or a byte."""
    return -(-value.numerator // value.denominator)
