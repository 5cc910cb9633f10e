"""Parts that were not compared, in words: tests of planner/execute/model/not_compared.py."""

import pytest

from planner.execute.model.not_compared import tell_not_compared


@pytest.mark.parametrize(
    ("names", "end"),
    [("a", ": a"), ("a b c", ": a, b, c"), ("a b c d", ": a, b, c and 1 more"), ("a b c d e", " and 2 more")],
)
def test_three_names_are_told(names: str, end: str):
    """Tests that three are named and others counted."""
    assert tell_not_compared(names.split()).endswith(end)
