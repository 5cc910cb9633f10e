"""Whole backwards stand where I and W apart gain nothing, by the profile's own times."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.planning.fused_backwards import fuse_backwards
from planner.simulation.simulate import simulate
from profiles.model_profile import Layer, LayerCost
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.planner.hasty import make_plan as plan_hastily
from tests.planner.judge.test_host_pace import asks

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


def host_layer(name: str, *, card: tuple[int, int, int], host: dict[str, int], **fields: Any) -> Layer:
    """A layer with F, I and W of a card, whose B takes it as long as both, and what the host takes to ask."""
    cost = LayerCost(
        device_type="gpu", forward_ns=card[0], input_grad_ns=card[1], weight_grad_ns=card[2], host=asks(**host)
    )
    return Layer(name=name, costs=(cost,), parameter_bytes=1, stash_bytes=4, weight_stash_bytes=1, **fields)


PACED = {"F": 100, "I": 90, "W": 90, "B": 110}
"""Nanoseconds of a host whose card takes ten times less: asking for I and W takes it 70 longer than for B."""

PROFILES = {
    "fused B is cheaper": [make_layer(name, (100, 100, 100, 110), stash_bytes=4) for name in "uvwxyz"],
    "the host sets the pace": [host_layer(name, card=(10, 10, 10), host=PACED) for name in "uvwxyz"],
    "the card does, and the host is in time": [host_layer(name, card=(300, 300, 300), host=PACED) for name in "uvwxyz"],
}


@pytest.mark.parametrize("what", list(PROFILES))
@pytest.mark.parametrize("num_microbatches", [2, 4, 8])
def test_no_plan_splits_where_that_does_not_pay(what: str, num_microbatches: int):
    """Tests that by default a plan has I and W apart only if the best one without takes longer."""
    problem = make_problem(PROFILES[what], [make_link("a b")], num_microbatches=num_microbatches, max_replicas=1)
    limits = Limits(time_limit_s=60, max_rounds=1)
    plan = plan_hastily(problem, limits=limits)
    whole = plan_hastily(replace(problem, options=replace(problem.options, split_backward=False)), limits=limits)
    splits = any(action.kind == "W" for order in plan.schedule.values() for action in order)
    assert plan.evidence is not None
    assert whole.evidence is not None
    assert not splits or plan.evidence.makespan_ns < whole.evidence.makespan_ns
    assert splits is (what == "the card does, and the host is in time")


def test_what_the_host_saves_counts():
    """Tests that B takes the place of I and W where it is as long on the card, and the host asks for it in less."""
    layers = [host_layer(name, card=(1, 1, 1), host=PACED) for name in "xy"]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=2)
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0F1 0I0 0W0 0I1 0W1", "b": "1F0 1I0 1W0 1F1 1I1 1W1"})
    timeline = simulate(problem, plan)
    run: Any = SimpleNamespace(
        plan=plan, timeline=timeline, problem=problem, costs=CostModel(problem), verdict=None, fit=None
    )
    fuse_backwards(run)
    assert not any(action.kind == "W" for order in run.plan.schedule.values() for action in order)
    assert run.timeline.makespan_ns < timeline.makespan_ns
