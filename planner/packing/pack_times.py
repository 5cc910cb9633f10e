"""What a stage takes for packs of sequences: for each pack, each token and each pair of tokens that attend."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf

from planner.dealing import StageTimes

_DIGITS = 9
"""Of fitted factors: every process that fits finds the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTimes:
    """One stage: `pack + token x tokens + square x sum of squared lengths`, forward and backward, in nanoseconds."""

    forward_token_ns: float
    backward_token_ns: float
    forward_square_ns: float = 0.0
    backward_square_ns: float = 0.0
    forward_pack_ns: int = 0
    """Of every pack, whatever is in it: launches, messages."""
    backward_pack_ns: int = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} = {getattr(self, name)}: is negative, or no number; measure again, or give 0")

    @property
    def of_pack(self) -> tuple[int, int]:
        """Forward and backward of a pack beside its sequences."""
        return self.forward_pack_ns, self.backward_pack_ns

    def at(self, length: int) -> tuple[float, float]:
        """Forward and backward of one sequence in a pack."""
        return (
            self.forward_token_ns * length + self.forward_square_ns * length * length,
            self.backward_token_ns * length + self.backward_square_ns * length * length,
        )


def fit_pack_times(stages: Sequence[StageTimes]) -> tuple[PackTimes, ...]:
    """The factors that are nearest to what was measured of each stage, of microbatches that are one sequence each.

    Raises ValueError for stages with fewer than three lengths, where there is nothing to fit.
    """
    return tuple(_fit(stage) for stage in stages)


def _fit(stage: StageTimes) -> PackTimes:
    if len(stage.lengths) < 3:
        raise ValueError(
            f"lengths = {stage.lengths}: three or more are needed to tell tokens from squares; measure more"
        )
    (pack, token, square), (pack_back, token_back, square_back) = (
        _least_squares(stage.lengths, row) for row in (stage.forward_ns, stage.backward_ns)
    )
    return PackTimes(
        forward_pack_ns=round(pack),
        forward_token_ns=_rounded(token),
        forward_square_ns=_rounded(square),
        backward_pack_ns=round(pack_back),
        backward_token_ns=_rounded(token_back),
        backward_square_ns=_rounded(square_back),
    )


def _rounded(factor: Fraction) -> float:
    return float(f"{float(factor):.{_DIGITS}g}")


def _least_squares(lengths: Sequence[int], times: Sequence[int]) -> tuple[Fraction, Fraction, Fraction]:
    """Factors of 1, length and its square, none negative; relative errors count.

    Of eight sets of factors that are not 0 the best one is taken: exact, so that every process finds the same.
    """
    pairs = zip(lengths, times, strict=True)
    rows = [tuple(Fraction(length**power, max(time, 1)) for power in range(3)) for length, time in pairs]
    best, least = (Fraction(0), Fraction(0), Fraction(0)), None
    for chosen in ((0, 1, 2), (1, 2), (0, 1), (0, 2), (1,), (2,), (0,)):
        solved = _solve(rows, chosen)
        if solved is None or min(solved) < 0:
            continue
        factors = [Fraction(0)] * 3
        for power, factor in zip(chosen, solved, strict=True):
            factors[power] = factor
        error = sum((sum(a * b for a, b in zip(row, factors, strict=True)) - 1) ** 2 for row in rows)
        if least is None or error < least:
            best, least = (factors[0], factors[1], factors[2]), error
    return best


def _solve(rows: Sequence[Sequence[Fraction]], chosen: Sequence[int]) -> list[Fraction] | None:
    """The factors of these powers with the least squared error; None where they are not told from each other."""
    wanted = [[row[power] for power in chosen] + [Fraction(1)] for row in rows]
    table = [
        [sum((row[a] * row[b] for row in wanted), Fraction(0)) for b in range(len(chosen) + 1)]
        for a in range(len(chosen))
    ]
    for column in range(len(chosen)):
        pivot = next((row for row in range(column, len(chosen)) if table[row][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        table[column] = [value / table[column][column] for value in table[column]]
        for row in range(len(chosen)):
            if row != column:
                factor = table[row][column]
                table[row] = [a - factor * b for a, b in zip(table[row], table[column], strict=True)]
    return [row[-1] for row in table]
