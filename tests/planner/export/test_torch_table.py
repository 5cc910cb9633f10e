"""The compute-only table for torch as text; `tests/planner/execute/stage/test_plan_stage.py` runs such tables."""

import re
from dataclasses import replace

import pytest

from planner.baselines.layouts import EVEN
from planner.baselines.registry import METHODS, make_method_plan
from planner.export.torch_table import render_torch_table, torch_ranks
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from profiles.model_profile import Edge
from tests.planner.export.chains import make_chain, make_plan

CELL = re.compile(r"[0-9]+[FIWB][0-9]+")

TWO_STAGES = """
d0: 0F0 0F1 0I0 0W0 0I1 0W1
d1: 1F0 1I0 1F1 1I1 1W0 1W1
"""


def two_stages(kinds: str = "ww", drawing: str = TWO_STAGES) -> tuple[Problem, Plan]:
    problem = make_chain(kinds, num_devices=2, num_microbatches=2)
    return problem, make_plan(problem, drawing, stages="0@d0 1@d1")


def test_adjacent_gradients_become_one_call():
    """Tests that an I with its own W right behind it is written as B, and any other pair is left as it is."""
    assert render_torch_table(*two_stages()) == (
        "0F0,0F1,0B0,0B1\n"
        "1F0,1I0,1F1,1I1,1W0,1W1\n"
    )  # fmt: skip


def test_order_can_be_kept_as_planned():
    """Tests that without merging the table is the schedule, letter by letter."""
    assert render_torch_table(*two_stages(), merges_backward=False) == (
        "0F0,0F1,0I0,0W0,0I1,0W1\n"
        "1F0,1I0,1F1,1I1,1W0,1W1\n"
    )  # fmt: skip


def test_stage_without_weight_gradient_is_given_backward():
    """Tests that a stage with I alone gets B: torch wants as many W as I."""
    drawing = "d0: 0F0 0F1 0I0 0I1 0W0 0W1\nd1: 1F0 1I0 1F1 1I1"
    for kinds in ("wn", "wf"):
        assert render_torch_table(*two_stages(kinds, drawing)) == (
            "0F0,0F1,0I0,0I1,0W0,0W1\n"
            "1F0,1B0,1F1,1B1\n"
        )  # fmt: skip


def test_stage_behind_which_nothing_is_trained_is_given_backward():
    """Tests that B stands in the place of I where the stage's input needs no gradient: torch's W would lose it."""
    drawing = "d0: 0F0 0F1 0I0 0I1\nd1: 1F0 1I0 1F1 1I1 1W0 1W1"
    for kinds in ("nw", "fw"):
        assert render_torch_table(*two_stages(kinds, drawing)) == (
            "0F0,0F1,0B0,0B1\n"
            "1F0,1B0,1F1,1B1\n"
        )  # fmt: skip


def test_ranks_follow_the_stages():
    """Tests that rank r is the r-th device by first stage, wherever it is in the cluster; idle ones are left out."""
    problem = make_chain("wwww", num_devices=3, num_microbatches=1)
    drawing = "d0: 1F0 2F0 2B0 1B0\nd2: 0F0 3F0 3B0 0B0"
    plan = make_plan(problem, drawing, stages="0@d2 1@d0 2@d0 3@d2")
    assert torch_ranks(plan) == ("d2", "d0")
    assert render_torch_table(problem, plan) == "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_can_be_written(method):
    """Tests that each pipelined baseline of a chain becomes a table of well-formed cells, every action in it once."""
    problem = make_chain("w" * 8, num_devices=4, num_microbatches=8)
    plan = make_method_plan(CostModel(problem), method, cut=EVEN)
    rows = [row.split(",") for row in render_torch_table(problem, plan, merges_backward=False).splitlines()]
    assert all(CELL.fullmatch(cell) for row in rows for cell in row)
    assert rows == [[str(action) for action in plan.schedule[device]] for device in torch_ranks(plan)]
    merged = render_torch_table(problem, plan).replace("\n", ",").strip(",").split(",")
    work = sum({"F": 1, "I": 1, "W": 1, "B": 2}[CELL.fullmatch(cell)[0].lstrip("0123456789")[0]] for cell in merged)
    assert work == 3 * 8 * len(plan.stages)


def replicated() -> tuple[Problem, Plan]:
    problem, plan = two_stages()
    stage = replace(plan.stages[1], replicas=(("d1",), ("d2",)))
    return problem, replace(plan, stages=(plan.stages[0], stage))


def widened() -> tuple[Problem, Plan]:
    problem, plan = two_stages()
    return problem, replace(plan, stages=(plan.stages[0], replace(plan.stages[1], replicas=(("d1", "d2"),))))


def with_idle_device() -> tuple[Problem, Plan]:
    problem, plan = two_stages()
    return problem, replace(plan, schedule={**plan.schedule, "d2": ()})


def with_edges(*edges: Edge) -> tuple[Problem, Plan]:
    problem = make_chain("www", num_devices=3, num_microbatches=1)
    problem = replace(problem, profile=replace(problem.profile, edges=edges))
    drawing = "d0: 0F0 0B0\nd1: 1F0 1B0\nd2: 2F0 2B0"
    return problem, make_plan(problem, drawing, stages="0@d0 1@d1 2@d2")


def skipping() -> tuple[Problem, Plan]:
    return with_edges(*(Edge(producer=a, consumer=b, bytes=1) for a, b in [("l0", "l1"), ("l1", "l2"), ("l0", "l2")]))


def joined() -> tuple[Problem, Plan]:
    return with_edges(Edge(producer="l1", consumer="l2", bytes=1))


def detached() -> tuple[Problem, Plan]:
    return with_edges(
        Edge(producer="l0", consumer="l1", bytes=1, gradient_bytes=0), Edge(producer="l1", consumer="l2", bytes=1)
    )


def out_of_order() -> tuple[Problem, Plan]:
    return two_stages(drawing="d0: 0F0 0F1 0B1 0B0\nd1: 1F1 1B1 1F0 1B0")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (replicated, "stage 1 has 2 replicas"),
        (widened, "stage 1 spans 2 devices"),
        (with_idle_device, "device 'd2' is in the schedule without a stage"),
        (skipping, "stage 0 feeds stage 2"),
        (joined, "stage 0 does not feed stage 1"),
        (detached, "no gradient flows from stage 1 back to stage 0"),
        (out_of_order, "takes microbatch 1 at position 0"),
    ],
)
def test_what_torch_cannot_run_is_refused(make, message: str):
    """Tests that a plan beyond torch 2.13 is refused, with the reason and a remedy."""
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        render_torch_table(*make())
    assert "; " in str(refusal.value)


def test_only_the_last_stage_must_be_in_order():
    """Tests that other stages may take the microbatches in any order."""
    problem, plan = two_stages(drawing="d0: 0F1 0F0 0B0 0B1\nd1: 1F0 1F1 1B1 1B0")
    assert render_torch_table(problem, plan).startswith("0F1,0F0,")


def test_stage_of_several_layers():
    """Tests that one trained layer in a stage is enough for a W, and for a gradient from the next stage on."""
    problem = make_chain("nwnw", num_devices=2, num_microbatches=1)
    plan = Plan(
        problem=problem.reference(),
        stages=(
            Stage(layers=("l0", "l1"), replicas=(("d0",),)),
            Stage(layers=("l2", "l3"), replicas=(("d1",),)),
        ),
        schedule=make_plan(problem, "d0: 0F0 0I0 0W0\nd1: 1F0 1I0 1W0", stages="0@d0").schedule,
    )
    assert render_torch_table(problem, plan, merges_backward=False) == "0F0,0I0,0W0\n1F0,1I0,1W0\n"
