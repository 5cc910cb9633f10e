"""Fractional coverings and their prices."""

import pytest

from solver_models.covering import DEAR, Covering


def test_a_triangle_is_covered_by_halves():
    """Tests that three rows, covered two by two, take half of every column, and that a row costs half a column."""
    covering = Covering([1, 1, 1])
    for rows in ([0, 1], [1, 2], [0, 2]):
        covering.add(rows, [1.0, 1.0])
    prices, taken = covering.solve()
    assert prices.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert taken.tolist() == pytest.approx([0.5, 0.5, 0.5])


def test_a_row_that_nothing_covers_is_dear():
    """Tests that a row without columns has the price of doing without, and that columns may come later."""
    covering = Covering([1, 2])
    covering.add([0], [1.0])
    assert covering.solve()[0].tolist() == pytest.approx([1, DEAR])
    covering.add([1], [0.5])
    prices, taken = covering.solve()
    assert (prices[1], taken[1]) == (pytest.approx(2), pytest.approx(4))
