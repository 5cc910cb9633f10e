"""What the processes say when one of them fails."""

import pytest

from planner.execute.table.layout import make_layout
from planner.execute.table.watch import describe_needs, make_timeout_s, render_report
from planner.execute.table.wiring import StageEdge
from tests.planner.execute.orders import make_random_plan

LAYOUT = make_layout(make_random_plan("0/2 1/3 0/2", num_microbatches=2))
CHAIN = (StageEdge(producer=0, consumer=1, values=("l0",)), StageEdge(producer=1, consumer=2, values=("l1",)))


@pytest.mark.parametrize(
    ("cell", "rank", "need"),
    [
        ("1F0", 1, " for stage 0 on rank 0 (d0)"),
        ("1F0", 3, " for stage 0 on rank 2 (d2)"),
        ("1I1", 1, " for stage 2 on rank 0 (d0)"),
        ("1I1", 3, " for stage 2 on rank 2 (d2)"),
        ("0F0", 0, None),
        ("2I0", 0, None),
        ("1W0", 1, None),
        ("12F0", 3, None),
    ],
)
def test_a_wait_names_its_source(cell: str, rank: int, need: str | None):
    """Tests that F waits for the stage before and I and B for the one after, in the same pipeline."""
    assert describe_needs(LAYOUT, CHAIN, rank=rank).get(cell) == need


def test_a_wait_names_all_of_its_sources():
    """Tests that with uneven replicas and skip edges every rank is named that has samples to send."""
    layout = make_layout(make_random_plan("0/1 2/3/4 0", num_microbatches=1, edges="0-1 1-2 0-2"))
    edges = (*CHAIN, StageEdge(producer=0, consumer=2, values=("l0",)))
    assert describe_needs(layout, edges, rank=3)["1F0"] == " for stage 0 on rank 0 (d0), stage 0 on rank 1 (d1)"
    assert describe_needs(layout, edges, rank=1)["0I0"] == (
        " for stage 1 on rank 3 (d3), stage 1 on rank 4 (d4), stage 2 on rank 0 (d0)"
    )


def test_the_report_lists_every_rank():
    """Tests that the report is one headline and a line per rank, and that the silent ones are in the headline."""
    report = render_report("rank 0 (d0) has not got on for 9 s", ["waits in 0I0", "", "x", "y"], devices=LAYOUT.devices)
    assert report.splitlines() == [
        "planner.execute: the plan was not run to its end: rank 1 (d1) does not answer: killed, or out of reach; "
        "rank 0 (d0) has not got on for 9 s",
        "  rank 0 (d0): waits in 0I0",
        "  rank 1 (d1): no answer",
        "  rank 2 (d2): x",
        "  rank 3 (d3): y",
    ]


def test_the_timeout_follows_the_makespan():
    """Tests that it is twenty planned iterations, and half a minute at least."""
    assert make_timeout_s(None) == make_timeout_s(10**9) == 30
    assert make_timeout_s(3 * 10**9) == 60
