"""What `pipeplan tune` says in the end: tests of api/tuning/tuning_report.py."""

from dataclasses import replace

from api.tuning.short_run import choose_num_steps, count_processes
from api.tuning.tuning_report import describe_stages, summarise_result
from planner.problem import Problem
from tests.api.tuning.test_tuning_loop import follow
from tests.api.tuning_records import RecordedBench
from tests.api.worlds import make_plan, make_workload


def test_spread_and_error_are_those_of_the_runs():
    """Tests that a plan's figure is the median over runs, with what lies between them, and both errors."""
    bench = RecordedBench(proposals=[["a"]], predictions=[{"a": 90}], times={"a": [100, 110, 90]})
    result = follow(bench, runs=3, time_limit_s=3.5)
    (row,) = summarise_result(result, files={}, elapsed_s=1.0)["plans"]
    assert (row["measured_ns"], row["spread"], row["error"]) == (100_000_000, 0.2, -0.1)


def test_steps_and_processes():
    """Tests that short iterations are run more often than long ones, and that idle devices have no process."""
    assert choose_num_steps(10**6) > choose_num_steps(10**9) >= 3
    plan = make_plan(Problem(profile=make_workload().profile, cluster=make_workload().cluster, num_microbatches=3))
    assert count_processes(plan) == 2
    assert count_processes(replace(plan, schedule={**plan.schedule, "gpu1": ()})) == 1
    assert describe_stages(plan) == "2 x 1 (2-2)"
