"""Times on a grid of shapes, read between its points: linear in the logarithms of time and shape."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy
from numpy.typing import NDArray

from profiles.estimates.operations import PricedOperation

_COVERED = 0.95
"""The part of the rows that an error of interpolation covers."""

Floats = NDArray[numpy.float64]


@dataclass(frozen=True, kw_only=True)
class TimeGrid:
    """Milliseconds on a grid; where a point was not measured there is a NaN."""

    axes: tuple[Floats, ...]
    """The values of each axis, rising."""
    milliseconds: Floats
    """One dimension per axis."""
    powers: tuple[float, ...]
    """How times grow with each axis where there is no row: 1 in proportion, 2 with the square."""
    table: str
    """Table of the rows."""

    def read(self, point: Sequence[int]) -> PricedOperation:
        """The time at a point: a row, between rows, or from the nearest rows by the powers of the axes."""
        inside = [min(max(value, axis[0]), axis[-1]) for value, axis in zip(point, self.axes, strict=True)]
        beyond = math.prod(
            max(1.0, value / limit) ** power for value, limit, power in zip(point, inside, self.powers, strict=True)
        )
        corners = list(
            itertools.product(*(_neighbours(axis, value) for axis, value in zip(self.axes, inside, strict=True)))
        )
        times = [float(self.milliseconds[tuple(index for index, _ in corner)]) for corner in corners]
        if any(math.isnan(time) for time in times):
            return self._nearest(point)
        weights = [math.prod(weight for _, weight in corner) for corner in corners]
        value = math.exp(sum(weight * math.log(time) for weight, time in zip(weights, times, strict=True)))
        is_inside = tuple(inside) == tuple(point)
        spanned = tuple(number for number, (axis, value) in enumerate(zip(self.axes, inside, strict=True))
                        if value not in axis)  # fmt: skip
        return PricedOperation(
            ns=float(value * beyond * 1e6),
            source="assumed" if not is_inside else "row" if len(corners) == 1 else "interpolated",
            table=self.table if is_inside else f"{self.table}, from its edge in proportion",
            error=self.interpolation_error(spanned) if is_inside else None,
            rows=len(corners),
        )

    def _nearest(self, point: Sequence[int]) -> PricedOperation:
        """From the nearest row, in ratios, by the powers of the axes."""
        logs = [numpy.log(axis) for axis in self.axes]
        distance = sum(
            numpy.abs(axis - math.log(value)).reshape([-1 if own == number else 1 for own in range(len(logs))])
            for number, (axis, value) in enumerate(zip(logs, point, strict=True))
        )
        far = numpy.where(numpy.isnan(self.milliseconds), numpy.inf, distance)
        best = numpy.unravel_index(int(numpy.argmin(far)), self.milliseconds.shape)
        factor = math.prod(
            (value / axis[index]) ** power
            for value, axis, index, power in zip(point, self.axes, best, self.powers, strict=True)
        )
        ns = float(self.milliseconds[best] * factor * 1e6)
        return PricedOperation(
            ns=ns,
            source="assumed",
            table=f"{self.table}, from the nearest row in proportion",
            rows=1,
        )

    def interpolation_error(self, spanned: tuple[int, ...]) -> float | None:
        """How far times are off that are read between rows along some axes, as a part of the time that is read.

        Every row whose neighbours along these axes are all there is left out in turn and read between them; 95 % of the
        rows are within what is returned. The neighbours are twice as far apart as when a point between rows is read,
        so it rather states too much. 0 along no axis; None where no row has such neighbours.
        """
        if spanned not in self._errors:
            self._errors[spanned] = self._left_out(spanned)
        return self._errors[spanned]

    @cached_property
    def _errors(self) -> dict[tuple[int, ...], float | None]:
        return {(): 0.0}

    def _left_out(self, spanned: tuple[int, ...]) -> float | None:
        true = read = numpy.log(self.milliseconds)
        for axis in spanned:
            size, places = len(self.axes[axis]), numpy.log(self.axes[axis])
            if size < 3:
                return None
            shape = [-1 if own == axis else 1 for own in range(true.ndim)]
            weight = ((places[1:-1] - places[:-2]) / (places[2:] - places[:-2])).reshape(shape)
            below, above = (numpy.take(read, range(*ends), axis) for ends in ((0, size - 2), (2, size)))
            read = (1 - weight) * below + weight * above
            true = numpy.take(true, range(1, size - 1), axis)
        off = numpy.abs(numpy.expm1(true - read))
        off = off[~numpy.isnan(off)]
        return float(numpy.quantile(off, _COVERED, method="higher")) if off.size else None


def _neighbours(axis: Floats, value: float) -> list[tuple[int, float]]:
    """The points of an axis on both sides of a value, with their weights; one where it is a point."""
    above = int(numpy.searchsorted(axis, value))
    if axis[above] == value:
        return [(above, 1.0)]
    low, high = float(axis[above - 1]), float(axis[above])
    weight = math.log(value / low) / math.log(high / low)
    return [(above - 1, 1 - weight), (above, weight)]


def make_grid(columns: Mapping[str, Floats], *, axes: Sequence[str], powers: Sequence[float], table: str) -> TimeGrid:
    """A grid of the rows of a table; where two rows have one shape the faster counts."""
    values = tuple(numpy.unique(columns[name]) for name in axes)
    grid = numpy.full([len(axis) for axis in values], numpy.inf)
    where = tuple(numpy.searchsorted(axis, columns[name]) for axis, name in zip(values, axes, strict=True))
    numpy.minimum.at(grid, where, columns["latency"])
    grid[numpy.isinf(grid)] = numpy.nan
    return TimeGrid(axes=values, milliseconds=grid, powers=tuple(powers), table=table)
