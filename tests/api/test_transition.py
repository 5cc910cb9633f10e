"""What going over to a new plan costs decides between plans of different kinds."""

from dataclasses import replace

import pytest
from rich.console import Console

import api.replanning
from api.planning_run import Effort
from api.progress import RunSummary
from api.replanning import Transition, plan_again
from planner.plan import Plan
from planner.problem import Options
from planner.replanning.migration import restore_ns
from planner.simulate import simulate
from tests.planner.export.chains import make_chain, make_plan


@pytest.mark.parametrize(("steps_left", "is_fast"), [(1, False), (10**6, True)], ids=["one step left", "many left"])
def test_restoring_is_part_of_what_a_plan_costs(steps_left: int, is_fast: bool, monkeypatch: pytest.MonkeyPatch):
    """Tests that of the plans found the fastest is taken if many steps are left, and the lightest to restore if one is.

    Tests that what is restored is all state of every device, since all processes begin anew.
    """
    problem = make_chain("ww", num_devices=3, num_microbatches=4, options=Options(uneven_replication=False))
    present = make_plan(problem, "d2: 0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", stages="0,1@d2")
    order = "0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3"
    light = make_plan(problem, f"d0: {order}", stages="0,1@d0")
    twice = replace(light.stages[0], replicas=(("d0",), ("d1",)))
    heavy = replace(light, stages=(twice,), schedule=dict.fromkeys(("d0", "d1"), light.schedule["d0"]))
    assert simulate(problem, heavy).makespan_ns < simulate(problem, light).makespan_ns

    def run_plan(*_: object, **__: object) -> tuple[Plan, RunSummary]:
        return heavy, RunSummary(elapsed_s=1.0, first_plan_s=1.0, top=2, others=(light,))

    monkeypatch.setattr(api.replanning, "run_plan", run_plan)
    again = plan_again(
        problem,
        present,
        lost=["d2"],
        effort=Effort(time_limit_s=1, gap=None, seed=0, style="quiet"),
        target="executor",
        console=Console(stderr=True),
        transition=Transition(steps_left=steps_left, bytes_per_s=1e6, is_restart=True),
    )
    assert again.plan == (heavy if is_fast else light)
    assert again.recipe.restored_bytes == (480 if is_fast else 240)
    assert restore_ns(again.recipe, bytes_per_s=1e6) == again.recipe.restored_bytes * 1_000
