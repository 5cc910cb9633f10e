"""Sizes of microbatches by doublings up to the global batch, and those of them whose times need no measurement."""

from collections.abc import Mapping, Sequence

MOST_SIZES = 16
"""More doublings are not looked at: the smallest are left out."""

PIPELINED = 4
"""A profile's own size leaves each device so many microbatches, or more."""

NOISE = 0.01, 0.05
"""Times within this part of a line lie on it however little they vary; those beyond the second do not, however much."""


def doublings(batch: int) -> tuple[int, ...]:
    """Divisors of the batch, ascending up to itself: below each the largest that is at most half of it."""
    small = [number for number in range(1, int(batch**0.5) + 1) if batch % number == 0]
    divisors = sorted({*small, *(batch // number for number in small)})
    sizes = [batch]
    while sizes[-1] > 1:
        sizes.append(max(number for number in divisors if 2 * number <= sizes[-1]))
    return tuple(reversed(sizes[:MOST_SIZES]))


def own_size(sizes: Sequence[int], *, num_devices: int) -> int:
    """The size, of ascending ones up to the batch, at which bytes are taken and a short pipeline runs."""
    most = sizes[-1] // max(8, PIPELINED * num_devices)
    return max((size for size in sizes if size <= most), default=sizes[0])


def ends_and_middle(sizes: Sequence[int], *, own: int) -> tuple[int, ...]:
    """What is measured first of ascending sizes: the ends, and one between that tells whether the line is straight."""
    middle = own if sizes[0] < own < sizes[-1] else sizes[len(sizes) // 2]
    return tuple(sorted({sizes[0], middle, sizes[-1], own}))


def bent_sizes(
    sizes: Sequence[int], times: Mapping[int, Sequence[float]], *, noise: float
) -> tuple[tuple[int, ...], float]:
    """Of ascending sizes those without `times` that cannot be interpolated, and how far times are off a line.

    `times`: per measured size the same parts of an iteration, in nanoseconds; `noise`: by what part they vary. Where
    a measured size between the ends is off their line by more, everything in between bends.
    """
    known = sorted(times)
    off = max((_off_line(times, size, ends=(known[0], known[-1])) for size in known[1:-1]), default=1.0)
    if off <= min(max(noise, NOISE[0]), NOISE[1]):
        return (), off
    return tuple(size for size in sizes if size not in times and known[0] < size < known[-1]), off


def _off_line(times: Mapping[int, Sequence[float]], size: int, *, ends: tuple[int, int]) -> float:
    """How far times at a size are from the line between two others, as a part of what the line says; absolute values,
    so that what is above in one layer makes up for nothing in another.
    """
    low, high = ends
    part = (size - low) / (high - low)
    line = [a + part * (b - a) for a, b in zip(times[low], times[high], strict=True)]
    return sum(abs(taken - said) for taken, said in zip(times[size], line, strict=True)) / max(1.0, sum(line))
