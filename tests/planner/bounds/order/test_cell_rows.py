"""Rows over cells of time, made when they are asked for."""

import pytest

from planner.bounds.order.cell_rows import is_rest
from planner.bounds.order.time_indexed_bound import TimeIndexed
from planner.layout.costs import CostModel
from tests.planner.recomputed_chain import recomputed_chain


def test_every_number_has_one_row():
    """Tests that families share the numbers out, each to the row of one cell."""
    problem = recomputed_chain(3, num_microbatches=2, kept=1)
    rows = TimeIndexed(problem, CostModel(problem), cell_ns=10).rows(5)
    numbers = [family.number(t) for family in rows.families() for t in range(family.since, 6)]
    assert sorted(numbers) == list(range(len(rows)))
    assert [rows[number] for number in range(len(rows))] == list(rows) == rows[:]
    with pytest.raises(IndexError):
        rows[len(rows)]


def test_ends_say_that_all_is_done():
    """Tests that each stage replica has an end for I and one for W, in the last cell."""
    problem = recomputed_chain(3, num_microbatches=2, kept=1)
    rows = TimeIndexed(problem, CostModel(problem), cell_ns=10).rows(5)
    ends = [family for family in rows.families() if family.is_end]
    assert [is_rest(family) for family in ends] == [False, True] * 3
    assert {(family.most, family.since) for family in ends} == {(-2, 5)}
    assert rows[ends[1].number(5)].terms == {4 * 6 + 4: -1}
