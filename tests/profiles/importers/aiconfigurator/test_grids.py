"""How far times between rows may be off, by leaving rows out; every expected number follows by hand."""

import math

import numpy
import pytest

from profiles.estimates.block_operations import OperationStep, Run
from profiles.estimates.composed_profile import Figure, _measurement, interpolation_error
from profiles.estimates.operations import Movement, PricedOperation
from profiles.importers.aiconfigurator.grids import TimeGrid

NAN = math.nan


def grid(*axes: list[float], times: list) -> TimeGrid:
    """In milliseconds."""
    return TimeGrid(
        axes=tuple(numpy.array(axis, dtype=float) for axis in axes),
        milliseconds=numpy.array(times, dtype=float),
        powers=(1.0,) * len(axes),
        table="toy",
    )


STEPS = grid([1, 2, 4, 8, 16], times=[1, 1, 4, 4, 16])
"""Left out, 2 is read as 2 (true 1: half off), 4 as 2 (true 4: off by the whole), and 8 as 8 (true 4: half off)."""


@pytest.mark.parametrize(
    ("table", "point", "error"),
    [
        (grid([1, 2, 4, 8], times=[3, 6, 12, 24]), [3], 0.0),
        (grid([1, 2, 4, 8], times=[3, 12, 48, 192]), [5], 0.0),
        (STEPS, [3], 1.0),
        (grid([1, 2, 4], times=[1, 3, 4]), [3], 0.5),
        (grid([1, 2, 4], times=[1, 1.8, 4]), [3], 0.1),
        (grid([1, 4], times=[1, 4]), [2], None),
        (grid([1, 2, 4, 8], times=[1, NAN, 4, 8]), [5], None),
        (grid([1, 2, 4], [1, 2, 4], times=[[1, 2, 4], [2, 6, 8], [4, 8, 16]]), [3, 3], 0.5),
        (grid([1, 2, 4], [1, 2, 4], times=[[1, 2, 4], [2, 6, 8], [4, 8, 16]]), [3, 1], 0.5),
    ],
    ids=["line", "square", "steps", "above", "below", "two rows", "hole", "corners", "one axis"],
)
def test_an_error_is_that_of_rows_left_out(table: TimeGrid, point: list[int], error: float | None):
    """Tests that the error covers the rows that are left out, as a part of what is read, along the axes at hand."""
    found = table.read(point)
    assert found.source == "interpolated"
    assert found.error == (None if error is None else pytest.approx(error, abs=1e-12))


@pytest.mark.parametrize(("odd", "error"), [(0, 0.0), (1, 0.0), (3, 1 - 2**-0.5)])
def test_an_error_covers_all_but_a_twentieth(odd: int, error: float):
    """Tests that a row twice as long, which its neighbours miss too, counts once more than a twentieth are off."""
    times = [2.0**n for n in range(82)]
    for n in range(odd):
        times[10 + 10 * n] *= 2
    assert grid([2.0**n for n in range(82)], times=times).interpolation_error((0,)) == pytest.approx(error, abs=1e-9)


def test_rows_and_edges_state_no_error_of_interpolation():
    """Tests that a row is exact, and what lies beyond the last one is assumed, with no error that data give."""
    row, beyond = STEPS.read([4]), STEPS.read([32])
    assert (row.source, row.error) == ("row", 0.0)
    assert (beyond.source, beyond.error) == ("assumed", None)


def figure(ns: float, *, error: float | None, source: str = "interpolated") -> Figure:
    """One product's."""
    priced = PricedOperation(ns=ns, source=source, table="toy", error=error, rows=2)  # type: ignore[arg-type]
    step = OperationStep(what="rows", operation=Movement(num_bytes=8))
    run = Run(samples=1, sequence=8)
    return Figure(layer="block", phase="F", device_type="X", run=run, step=step, priced=priced)


@pytest.mark.parametrize(
    ("error", "low", "high", "permille"),
    [(0.16, 840, 1160, 160), (1.5, 0, 2500, 1500), (0.0, 1000, 1000, None), (None, 1000, 1000, None)],
)
def test_a_measurement_states_its_error(error: float | None, low: int, high: int, permille: int | None):
    """Tests that the profile states the time, the time less and plus its error, and the error in thousandths."""
    found = _measurement(figure(1000, error=error))
    assert (found.low_ns, found.median_ns, found.high_ns, found.error_permille) == (low, 1000, high, permille)


def test_errors_are_summed_up_by_time():
    """Tests that the provenance's error is weighted by time, over what lies between rows alone."""
    figures = [figure(300, error=0.1), figure(100, error=0.5), figure(900, error=None, source="assumed")]
    assert interpolation_error(figures) == pytest.approx(0.2)
    assert interpolation_error(figures[2:]) is None
