"""The steps of a planning run on one problem, one after the other: tests of planner/planning/runs/run.py."""

from dataclasses import replace

from planner.planning import Limits
from planner.planning.runs.run import ISLAND
from tests.planner.hasty import make_plan, make_plans
from tests.planner.planning.runs.test_driver import QUICK, sized


def test_a_plan_found_elsewhere_is_taken_in_at_its_size():
    """Tests that of the runs at all sizes the one whose microbatches a plan has takes it in, and no other."""
    batch = sized()
    batch = replace(batch, options=replace(batch.options, max_replicas=1, max_stages_per_device=2))
    best = make_plan(batch, limits=Limits(time_limit_s=60, max_rounds=3, threads=1))
    told = iter([replace(best, evidence=None)])
    plan, *_ = make_plans(batch, top=1, limits=QUICK, others=lambda: next(told, None))
    assert plan.evidence.makespan_ns <= best.evidence.makespan_ns
    names = {tally.name for tally in plan.evidence.improvers}
    assert ISLAND in names or plan.evidence.stopped_by == "proof"
