"""What a change to a job would bring, in words: tests of planner/fidelity/remedy.py."""

from types import SimpleNamespace

import pytest

from planner.fidelity.remedy import describe_placing


@pytest.mark.parametrize(
    ("moved", "reordered", "words"),
    [
        (0, 0, "none of 3 devices elsewhere (orders as run, in no pipelines by hand;"),
        (2, 1, "2 of 3 devices elsewhere (orders as run, in 1 pipeline by hand;"),
        (3, 2, "3 of 3 devices elsewhere (orders as run, in 2 pipelines by hand;"),
    ],
)
def test_placing_is_told(moved: int, reordered: int, words: str):
    """Tests that numbers have their plurals, and that both figures are those of the placement."""
    placed = SimpleNamespace(
        num_moved=moved, num_reordered=reordered, device_of=(0, 1, 2), makespan_ns=9, lower_bound_ns=8
    )
    remedy = describe_placing(placed, orders="hand")  # type: ignore[arg-type]
    assert remedy.what.startswith(f"placed again: {words}")
    assert (remedy.makespan_ns, remedy.lower_bound_ns) == (9, 8)
