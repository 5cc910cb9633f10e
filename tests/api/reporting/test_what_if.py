"""`pipeplan what-if`: the service's changes, on the command line."""

import json

from planner.document import parse_plan
from planner.verify import verify
from planner.what_if.change import Change, apply_change
from profiles.load import load_workload
from tests.api.worlds import Shell, make_problem

ASK = ("what-if", "plan.json", "workload.json", "-t", "2", "--max-rounds", "1")


def test_before_and_after_a_plan(shell: Shell):
    """Tests that a plan is compared with the best found for the changed question, which -o keeps and verifies."""
    outcome = shell.run(*ASK, "--change", "num_microbatches=6", "--json", "-o", "after.json")
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    assert told["change"]["num_microbatches"] == 6
    assert told["before"]["lower_bound_ns"] is None  # the plan has no evidence
    assert told["saved_ns"] == told["before"]["objective_ns"] - told["after"]["objective_ns"] < 0
    assert told["saved_ns"] <= told["saved_at_most_ns"]
    assert told["batch_ratio"] == 6 / load_workload("workload.json").num_microbatches
    problem = apply_change(make_problem(load_workload("workload.json")), Change(num_microbatches=6))
    plan = parse_plan((shell.folder / "after.json").read_text())
    verdict = verify(problem, plan)
    assert verdict.passed
    assert verdict.timeline is not None
    assert verdict.timeline.makespan_ns == told["after"]["objective_ns"]


def test_another_batch_is_said(shell: Shell):
    """Tests that time saved by fewer samples is not told as a gain alone, and an equal batch needs no such line."""
    outcome = shell.run(*ASK, "--change", "num_microbatches=1")
    assert "the plan found saves" in outcome.out
    count = load_workload("workload.json").num_microbatches
    assert f"an iteration then has {1 / count:.4g} times the samples: each takes" in outcome.out
    assert "times the samples" not in shell.run(*ASK, "--change", "link_speed=2").out


def test_a_workload_is_planned_first(shell: Shell):
    """Tests that a workload is planned before and after, and that the table says what the change saves at most."""
    outcome = shell.run("what-if", "workload.json", "-t", "4", "--max-rounds", "1", "--change", "devices=2")
    assert outcome.code == 0, outcome.err
    assert "What if: 2 devices more" in outcome.out
    before, after = (line.split() for line in outcome.out.splitlines() if line.startswith(("before", "after")))
    assert float(before[1]) > float(after[1])
    assert before[2] != "–"
    assert "the plan found saves" in outcome.out
    assert "no plan with the change saves more than" in outcome.out


def test_a_lost_device(shell: Shell):
    """Tests that the question is planned again for the devices that are left, and what they cost at least is said."""
    outcome = shell.run(*ASK, "--change", "lost=gpu1", "--change", "memory_bytes=8GiB")
    assert outcome.code == 0, outcome.err
    assert "What if: 8.00 GiB more memory on every device, without gpu1" in outcome.out
    assert "the plan found costs" in outcome.out
    assert "no plan with the change costs less than" in outcome.out


def test_no_plan_can_exist(shell: Shell):
    """Tests that a change under which nothing fits ends with exit code 3."""
    outcome = shell.run(*ASK, "--change", "memory_bytes=-8GiB")
    assert (outcome.code, outcome.out) == (3, "")


def test_a_broken_plan_is_refused(shell: Shell):
    """Tests that a plan that breaks a rule of its question is no base for a what-if."""
    tree = json.loads((shell.folder / "plan.json").read_text())
    device = next(iter(tree["schedule"]))
    tree["schedule"][device] = tree["schedule"][device][:-1]
    shell.write("plan.json", json.dumps(tree))
    outcome = shell.run(*ASK, "--change", "devices=1")
    assert outcome.code == 2
    assert "the plan breaks a rule" in outcome.err
