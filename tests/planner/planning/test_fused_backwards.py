"""Whole backwards stand where I and W apart gain nothing, by the profile's own times."""

from types import SimpleNamespace
from typing import Any

import pytest

from planner.layout.costs import CostModel
from planner.planning.fused_backwards import fuse_backwards
from planner.simulation.simulate import simulate
from tests.planner.builders import make_layer, make_link, make_plan, make_problem

LATE = {"a": "0F0 0F1 0I0 0W0 0I1 0W1", "b": "1F0 1I0 1F1 1I1 1W0 1W1"}
"""Two stages, two microbatches: b hands gradients on before it has its own weights'."""


def fused(times: tuple[int, ...], words: dict[str, str], **more: Any) -> tuple[dict[str, str], int, int]:
    """The orders afterwards, and the makespan before and after."""
    memory = {"memory_bytes": more.pop("memory_bytes", 1000)}
    layers = [make_layer(name, times, stash_bytes=4, weight_stash_bytes=1) for name in "xy"]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=2, **memory)
    plan = make_plan(problem, ["x @ a", "y @ b"], words)
    before = simulate(problem, plan)
    run: Any = SimpleNamespace(
        plan=plan, timeline=before, problem=problem, costs=CostModel(problem), verdict=None, **{"fit": None} | more
    )
    fuse_backwards(run)
    orders = {device: " ".join(map(str, order)) for device, order in run.plan.schedule.items()}
    return orders, before.makespan_ns, run.timeline.makespan_ns


@pytest.mark.parametrize(
    ("times", "expected", "makespans"),
    [
        # a: F0 F1 .. B0 .. B1      b: .. F0 B0 F1 B1, each 2 long; W costs nothing, so it is never apart
        ((2, 2, 2, 2), {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1B1"}, (14, 12)),
        # with B1 on b the gradient would come at 12, and a end at 15; with I1 it comes at 11, both end by 14
        ((2, 2, 2, 3), {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1I1 1W1"}, (14, 14)),
        ((2, 2, 2), LATE, (14, 14)),  # B is as long as both
    ],
)
def test_backwards_are_whole_where_that_is_no_slower(
    times: tuple[int, ...], expected: dict[str, str], makespans: tuple[int, int]
):
    """Tests that I and W become B where B is the shorter and the plan no longer, and stay apart elsewhere."""
    orders, before, after = fused(times, LATE)
    assert (orders, (before, after)) == (expected, makespans)


def test_a_target_has_its_own_orders():
    """Tests that what another program makes of a plan is left alone."""
    assert fused((2, 2, 2, 2), LATE, fit=lambda plan: plan)[0] == LATE
