"""Which samples of a microbatch a stage replica works on (section 2, "Replication")."""

from fractions import Fraction
from typing import NamedTuple


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


def equal_share(count: int) -> Fraction:
    """What each of `count` stage replicas takes of a microbatch; all of it, if there is none that could take less."""
    return Fraction(1, max(1, count))


def is_whole(share: Fraction, microbatch_size: int | None) -> bool:
    """Whether a part of a microbatch is a number of whole samples; every part, where nobody knows their number."""
    return microbatch_size is None or microbatch_size * share.numerator % share.denominator == 0


def cut_evenly(count: int) -> list[Samples]:
    """The ranges of `count` stage replicas: each microbatch is cut evenly, in the order in which they are listed."""
    return [Samples(Fraction(i, count), Fraction(i + 1, count)) for i in range(count)]


def common_share(a: Samples, b: Samples) -> Fraction:
    """How much of a microbatch lies in both ranges."""
    return max(Fraction(0), min(a.end, b.end) - max(a.start, b.start))


def round_up(value: Fraction) -> int:
    """The least integer that is not below `value`: plans never count on a fraction of a nanosecond or a byte."""
    return -(-value.numerator // value.denominator)
