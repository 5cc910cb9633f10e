"""Which stages nobody used, from what each stage used."""

import pytest

pytest.importorskip("torch")

from planner.execute.run.unused_stages import find_unused_stages
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
    assert find_unused_stages(used, edges, num_stages=num_stages) == unused
