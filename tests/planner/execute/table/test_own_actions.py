"""What ranks run of each microbatch, held against a second reading of the rows that are made of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.actions import Action, parse_action
from planner.execute.table.layout import Layout, make_layout
from planner.execute.table.own_actions import find_wrong_actions
from planner.execute.table.routes import lower
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.split_orders import make_split_plan
from tests.planner.execute.table.test_routes import edges_of, faults, make_dealt

WHOLE = make_layout(make_random_plan("0 1", num_microbatches=2))
LAYOUTS = (
    WHOLE,
    make_layout(make_random_plan("0/1 2/3", num_microbatches=2, backward="B")),
    make_layout(make_random_plan("0+1 1+2", num_microbatches=2)),
    make_layout(make_split_plan("0;0,1;2 3", num_microbatches=2)),
    make_dealt((2, 0), (1, 3)),
)


def with_row(layout: Layout, rank: int, row: tuple[Action, ...]) -> Layout:
    return replace(layout, rows=(*layout.rows[:rank], row, *layout.rows[rank + 1 :]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_plan_has_no_wrong_action(layout: Layout):
    """Tests that replicas, groups, split stages and dealt microbatches are right as they are planned."""
    assert find_wrong_actions(layout) == ()


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("0F0 0I0 0W0 0F1 0I1", "rank 0 runs FI of stage 0 for microbatch 1, not F I W or F B"),
        ("0F0 0I0 0W0", "rank 0 runs nothing of stage 0 for microbatch 1, not F I W or F B"),
        ("0F0 0F0 0I0 0W0 0F1 0B1", "rank 0 runs 0F0 2 times"),
        ("0F0 0B0 0F1 0B1 1F0", "rank 0 runs 1F0, which is not its own"),
        ("0F0 0B0 0F1 0B1 0F2", "rank 0 runs 0F2, which is not its own"),
    ],
)
def test_each_wrong_action_is_named(row: str, found: str):
    """Tests that what is missing, repeated or another's is named with its rank."""
    assert find_wrong_actions(with_row(WHOLE, 0, tuple(map(parse_action, row.split())))) == (found,)


@st.composite
def changed_layouts(draw: st.DrawFn) -> Layout:
    """One row with an action left out, repeated, or of another kind, microbatch or stage."""
    layout = draw(st.sampled_from(LAYOUTS))
    rank = draw(st.integers(0, layout.world_size - 1))
    row, place = list(layout.rows[rank]), draw(st.integers(0, len(layout.rows[rank]) - 1))
    change = draw(st.sampled_from(["drop", "repeat", "kind", "microbatch", "stage"]))
    if change == "drop":
        row.pop(place)
    elif change == "repeat":
        row.insert(draw(st.integers(0, len(row))), row[place])
    else:
        values = {"kind": "FIWB", "microbatch": range(5), "stage": range(layout.num_stages)}[change]
        row[place] = row[place]._replace(**{change: draw(st.sampled_from(values))})
    return with_row(layout, rank, tuple(row))


@given(layout=changed_layouts())
def test_a_changed_row_is_found_before_or_after_it_is_lowered(layout: Layout):
    """Tests that rows which are lowered have faults exactly where ranks run the wrong actions."""
    edges = edges_of("0-1")
    try:
        rows = lower(layout, edges)
    except ValueError:
        return  # ranks wait for each other, which is told first
    assert bool(find_wrong_actions(layout)) == bool(faults(rows, layout, edges))
