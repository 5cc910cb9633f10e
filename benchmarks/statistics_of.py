"""Means with confidence intervals, by Student's t."""

from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Two-sided 95 % points for 1, 2, 3 ... degrees of freedom; beyond them 2.13 is on the safe side."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % confidence interval (infinite for a single value)."""
    if len(values) < 2:
        return values[0], float("inf")
    t = _T_95[len(values) - 2] if len(values) - 2 < len(_T_95) else 2.13
    return mean(values), t * stdev(values) / sqrt(len(values))


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Interval of the relative saving of the second over the first, pair by pair, in fractions of the first."""
    return interval([1 - b / a for a, b in zip(first, second, strict=True)])
