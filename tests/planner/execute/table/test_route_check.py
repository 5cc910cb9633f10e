"""Tests of the second reading of rows: it finds each fault that it is to find in those of `lower`."""

import pytest

from planner.execute.table.layout import make_layout
from planner.execute.table.routes import Cell, lower
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.table.test_routes import drawing, edges_of, faults

UNEVEN = make_layout(make_random_plan("0/1 2", num_microbatches=1))


def test_messages_are_written_down_as_the_action_ends():
    """Tests that a stage on two devices before one on a third is lowered as drawn here."""
    rows = lower(UNEVEN, edges_of("0-1"))
    assert drawing(rows) == "\n".join(
        [
            "0F0 0SEND_F0>1@2 0RECV_B0<1@2 0I0 0W0 0REDUCE_GRAD",
            "0F0 0SEND_F0>1@2 0RECV_B0<1@2 0I0 0W0 0REDUCE_GRAD",
            "1RECV_F0<0@0 1RECV_F0<0@1 1F0 1I0 1SEND_B0>0@0 1SEND_B0>0@1 1W0 1REDUCE_GRAD",
        ]
    )
    assert faults(rows, UNEVEN, edges_of("0-1")) == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1F0 1I0", "1I0", "rank 2 runs IW of stage 1 for microbatch 0"),
        ("1F0 1I0", "1F0 1F0 1I0", "rank 2 runs 1F0 2 times"),
        ("1F0 1I0", "0F0 1F0 1I0", "rank 2 runs 0F0, which is not its own"),
        ("1F0 1I0", "1I0 1F0", "rank 2 has 1I0 before 1F0"),
        ("1RECV_F0<0@1 ", "", "1RECV_F0<0@1 is missing on rank 2"),
        ("1RECV_F0<0@1", "1RECV_F0<0@1 1RECV_F0<0@1", "rank 2 has 1RECV_F0<0@1 2 times"),
        ("1SEND_B0>0@1", "1SEND_B0>0@2", "rank 2 has 1SEND_B0>0@2, which is not a message between replicas with"),
        ("1RECV_F0<0@1 1F0", "1F0 1RECV_F0<0@1", "rank 2 has 1F0 before 1RECV_F0<0@1"),
        ("1I0 1SEND_B0>0@0", "1SEND_B0>0@0 1I0", "rank 2 has 1SEND_B0>0@0 before 1I0"),
        ("1W0 1REDUCE_GRAD", "1W0", "stage 1 is reduced 0 times on rank 2"),
        ("1W0 1REDUCE_GRAD", "1REDUCE_GRAD 1W0", "stage 1 is reduced before 1W0 on rank 2"),
    ],
)
def test_each_fault_is_named(old: str, new: str, message: str):
    """Tests that each rule, broken alone, is named with the cell and the rank that break it."""
    edges = edges_of("0-1")
    rows = lower(UNEVEN, edges)
    cells = {str(cell): cell for row in rows for cell in row} | {
        "1SEND_B0>0@2": Cell(1, "SEND_B", 0, 0, 2),
    }
    text = drawing(rows).splitlines()[2]
    assert text.count(old) == 1
    rows[2] = [cells[word] for word in text.replace(old, new).split()]
    found = faults(rows, UNEVEN, edges)
    assert any(message in fault for fault in found), found
