"""Ranks, pipelines and rows of a plan."""

from dataclasses import replace

import pytest

from planner.execute.table.layout import make_layout
from planner.execute.table.routes import make_routes
from planner.execute.table.wiring import StageEdge
from planner.plan import Share
from tests.planner.execute.orders import make_random_plan


def test_ranks_follow_the_stages():
    """Tests that rank r is the r-th device by first stage, and that each row is what the plan gives that device."""
    plan = make_random_plan("2 0 2", num_microbatches=2)
    layout = make_layout(plan)
    assert layout.devices == ("d2", "d0")
    assert layout.owners == ((0,), (1,), (0,))
    assert layout.rows == (plan.schedule["d2"], plan.schedule["d0"])
    assert (layout.world_size, layout.num_stages) == (2, 3)
    assert layout.stages_of(0) == (0, 2)


def test_other_kinds_of_recomputation_are_refused():
    """Tests that a layer recomputes as a whole, and that for less the stage, the layer and the kind are named."""
    plan = make_random_plan("0 1", num_microbatches=2)
    name = plan.stages[0].layers[0]
    full, other = (replace(plan.stages[0], recompute=((name, kind),)) for kind in ("full", "selective"))
    assert make_layout(replace(plan, stages=(full, plan.stages[1]))).num_stages == 2
    with pytest.raises(ValueError, match=f"stage 0 recomputes layer '{name}' by 'selective'"):
        make_layout(replace(plan, stages=(other, plan.stages[1])))


def test_replicas_become_pipelines():
    """Tests that replica k of every stage belongs to pipeline k, and that pipelines come one after the other."""
    layout = make_layout(make_random_plan("0/2 1/3", num_microbatches=2))
    assert layout.devices == ("d0", "d1", "d2", "d3")
    assert layout.owners == ((0, 2), (1, 3))
    assert layout.rows[:2] == layout.rows[2:]


def test_stages_without_weight_grad_run_a_whole_backward():
    """Tests that I becomes B where the plan has no W: torch wants as many W as I."""
    layout = make_layout(make_random_plan("0 1", num_microbatches=1, kinds="nw"))
    assert [[str(action) for action in row] for row in layout.rows] == [["0F0", "0B0"], ["1F0", "1I0", "1W0"]]


def test_idle_devices_stay_outside():
    """Tests that a device without a stage gets no rank, and that one without a stage but with actions is refused."""
    plan = make_random_plan("0 1", num_microbatches=1)
    assert make_layout(replace(plan, schedule=plan.schedule | {"d9": ()})).devices == ("d0", "d1")
    with pytest.raises(ValueError, match="device 'd9' has actions but no stage"):
        make_layout(replace(plan, schedule=plan.schedule | {"d9": plan.schedule["d0"]}))


@pytest.mark.parametrize("placement", ["0/1 2", "0/1 1/0", "0/1 0/2", "0/1 0/2 3/1"])
def test_replicas_that_are_no_pipelines_have_ranks_by_stage(placement: str):
    """Tests that other replicas keep their devices in order of the stages, and each its row."""
    plan = make_random_plan(placement, num_microbatches=1)
    layout = make_layout(plan)
    assert layout.devices == plan.devices
    assert layout.rows == tuple(plan.schedule[device] for device in plan.devices)
    assert [[layout.devices[rank] for rank in ranks] for ranks in layout.owners] == [
        [f"d{device}" for device in stage.split("/")] for stage in placement.split()
    ]


def test_partners_have_samples_in_common():
    """Tests that the second half of a microbatch meets its second and its third third, and the reverse."""
    layout = make_layout(make_random_plan("0/1 2/3/4", num_microbatches=1))
    assert layout.replica_counts == (2, 3)
    routes = make_routes(layout, [StageEdge(producer=0, consumer=1, values=("l0",))])
    assert [route.target for route in routes if route.source == 1] == [3, 4]
    assert [route.source for route in routes if route.target == 3] == [0, 1]
    assert [route.source for route in routes if route.target == 4] == [1]


def test_unequal_partners_have_samples_in_common():
    """Tests that of twelve samples 9 + 3 and 4 + 4 + 4 meet where they overlap, and which of its rows each sends."""
    plan = make_random_plan("0/1 2/3/4", num_microbatches=1)
    layout = make_layout(replace(plan, stages=(replace(plan.stages[0], samples=(9, 3)), plan.stages[1])))
    assert (layout.num_parts, layout.samples_of(0), layout.samples_of(1)) == (12, (9, 3), (1, 1, 1))
    routes = make_routes(layout, [StageEdge(producer=0, consumer=1, values=("l0",))])
    rows = [(route.source, route.target, route.made.rows(9 if route.source == 0 else 3)) for route in routes]
    assert rows == [
        (0, 2, slice(0, 4)), (0, 3, slice(4, 8)), (0, 4, slice(8, 9)), (1, 4, slice(0, 3)),
    ]  # fmt: skip


def test_groups_and_split_placement_are_refused():
    """Tests that groups of several widths, and stages elsewhere, are refused with what to plan instead."""
    plan = make_random_plan("0 1", num_microbatches=1)
    wide = replace(plan.stages[1], replicas=(("d1", "d2"), ("d3",)))
    with pytest.raises(ValueError, match=r"stage 1 has replicas of widths 1 and 2.*one width"):
        make_layout(replace(plan, stages=(plan.stages[0], wide)))
    split = replace(plan.stages[1], weight_grad_replicas=(Share(group=("d0",)),))
    assert [part.kinds for part in make_layout(replace(plan, stages=(plan.stages[0], split))).parts_of(1)] == [
        "FI",
        "W",
    ]
    for broken, reason in (
        (replace(split, recompute=True), "one replica on one device without recomputation"),
        (replace(split, weight_grad_replicas=(Share(group=("d0", "d1")),)), "name single devices"),
        (replace(split, input_grad_replicas=(Share(group=("d0",), denominator=2),)), "do not add up to 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            make_layout(replace(plan, stages=(plan.stages[0], broken)))
    alone = replace(plan.stages[1], shard="optimizer")
    with pytest.raises(ValueError, match=r"stage 1 has shard = 'optimizer' but one replica; plan with shard = 'none'"):
        make_layout(replace(plan, stages=(plan.stages[0], alone, *plan.stages[2:])))
    with pytest.raises(ValueError, match="no stages"):
        make_layout(replace(plan, stages=()))
    with pytest.raises(ValueError, match="stage 1 has no layers; plan again"):
        make_layout(replace(plan, stages=(plan.stages[0], replace(plan.stages[1], layers=()), *plan.stages[2:])))
    twice = replace(plan.stages[1], replicas=(("d1",), ("d1",)))
    with pytest.raises(ValueError, match="stage 1 has no device, or one twice"):
        make_layout(replace(plan, stages=(plan.stages[0], twice)))
