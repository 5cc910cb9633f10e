"""Which weights nobody used, from what each stage used."""

import pytest

pytest.importorskip("torch")

from planner.execute.run.unused_stages import Reach, find_reached
from planner.execute.table.wiring import StageEdge

CHAIN = "0-1:a 1-2:b 2-3:c"
SKIP = "0-1:a 1-2:b 0-2:a"
BRANCHES = "0-1:a 0-2:a 1-3:b 2-3:c"


@pytest.mark.parametrize(
    ("text", "used", "unused"),
    [
        (CHAIN, {1: "a", 2: "b", 3: "c"}, set()),
        (CHAIN, {1: "a", 2: "b", 3: ""}, {0, 1, 2}),  # the others ran backwards of zeros
        (CHAIN, {1: "a", 2: "", 3: "c"}, {0, 1}),
        (CHAIN, {1: "", 2: "b", 3: "c"}, {0}),
        (SKIP, {1: "a", 2: "a"}, {1}),
        (SKIP, {1: "a", 2: "b"}, set()),
        (SKIP, {1: "", 2: "b"}, {0}),
        (BRANCHES, {1: "a", 2: "a", 3: "b"}, {2}),
        (BRANCHES, {1: "", 2: "a", 3: "b"}, {0, 2}),
    ],
)
def test_stages_that_nobody_used(text: str, used: dict[int, str], unused: set[int]):
    """Tests that a stage counts as used where one that is used itself made use of one of its values."""
    edges = [StageEdge(producer=int(edge[0]), consumer=int(edge[2]), values=tuple(edge[4:])) for edge in text.split()]
    num_stages = 1 + max(edge.consumer for edge in edges)
    told = {number: [(name, 0) for name in names] for number, names in used.items()}
    found = find_reached(told, edges, num_stages=num_stages, reach=lambda number, wanted: None)
    assert {number for number, reach in found.items() if reach is not None} == unused


def test_weights_behind_a_tensor_that_nobody_used():
    """Tests that of a value's tensors each counts for itself, and so do the weights and inputs behind it."""
    edges = [StageEdge(producer=0, consumer=1, values=("a",)), StageEdge(producer=1, consumer=2, values=("b",))]
    behind = {
        ("a", 0): Reach(frozenset({"v"}), frozenset()),
        ("a", 1): Reach(frozenset({"w"}), frozenset()),
        ("b", 0): Reach(frozenset({"x"}), frozenset({("a", 0)})),
        ("b", 1): Reach(frozenset({"y"}), frozenset({("a", 1)})),
    }

    def reach(number: int, wanted: frozenset[tuple[str, int]]) -> Reach:
        del number
        (place,) = wanted
        return behind[place]

    for place, weights in ((0, [{"v"}, {"x"}]), (1, [{"w"}, {"y"}])):
        used = {1: [("a", 0), ("a", 1)], 2: [("b", place)]}
        found = find_reached(used, edges, num_stages=3, reach=reach)
        assert [found[number].weights for number in (0, 1)] == weights
