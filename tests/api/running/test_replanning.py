"""What going over to a new plan costs decides which one it is, and is said."""

from dataclasses import replace

import pytest
from rich.console import Console

from api.planning_run import Effort
from api.running.replanning import Replanned, Rest, describe_cost, plan_again
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.replanning.migration import restore_ns
from planner.simulation.simulate import simulate
from planner.what_if.device_loss import without_devices
from tests.planner.export.chains import make_chain, make_plan

RATE = 1e6
"""Bytes that storage gives in a second: a layer of 120 bytes takes 120 microseconds."""


def one_layer() -> Problem:
    """A layer of 120 bytes on three devices, of which one is about to be lost."""
    return make_chain("w", num_devices=3, num_microbatches=4, options=Options())


def lose(problem: Problem, *, steps_left: int) -> Replanned:
    """The plan after the one device that ran everything is gone, and all processes begin anew."""
    present = make_plan(problem, "d2: 0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", stages="0@d2")
    return plan_again(
        problem,
        present,
        lost=["d2"],
        effort=Effort(limits=Limits(max_rounds=1, threads=1), style="quiet"),
        target=None,
        console=Console(stderr=True),
        rest=Rest(steps_left=steps_left, bytes_per_s=RATE, is_restart=True),
    )


@pytest.mark.parametrize(("steps_left", "is_fast"), [(1, False), (10**6, True)], ids=["one step left", "many left"])
def test_restoring_is_part_of_what_a_plan_costs(steps_left: int, is_fast: bool):
    """Tests that the fastest plan is taken if many steps are left, and the lightest to restore if one is.

    Tests that what is restored is all state of every device, since all processes begin anew, and that bytes, seconds
    and what the plan would cost for which least moves are said.
    """
    problem = one_layer()
    again = lose(problem, steps_left=steps_left)
    left = without_devices(problem, {"d2"})
    iteration_ns = simulate(left, again.plan).makespan_ns
    held = sum(len(stage.layers) * len(stage.replicas) for stage in again.plan.stages)
    assert again.recipe.restored_bytes == 120 * held
    assert restore_ns(again.recipe, bytes_per_s=RATE) == again.cost.moving_ns == 120_000 * held
    assert again.cost.total_ns == steps_left * iteration_ns + again.cost.moving_ns
    assert again.leanest.num_bytes == 120
    assert again.leanest.total_ns >= again.cost.total_ns
    assert held == (2 if is_fast else 1)
    line = describe_cost(again)
    assert f"{steps_left:,} iterations and moving {120 * held:,} bytes" in line
    assert ("no plan found moves less" in line) == (held == 1)
    summary = again.summarise_cost()
    assert (summary["steps_left"], summary["num_bytes"]) == (steps_left, 120 * held)
    assert summary["moving_least"]["num_bytes"] == 120


def test_where_money_is_minimised_moving_costs_too():
    """Tests that where money is minimised the plan costs least for iterations and moving, which is said."""
    problem = one_layer()
    devices = tuple(replace(device, price_per_hour=1.0) for device in problem.cluster.devices)
    cluster, options = replace(problem.cluster, devices=devices), replace(problem.options, objective="cost")
    again = lose(replace(problem, cluster=cluster, options=options), steps_left=10)
    assert len(again.plan.devices) == 1
    assert again.leanest.num_bytes == again.cost.num_bytes == 120
    assert describe_cost(again).endswith("no plan found moves less")
