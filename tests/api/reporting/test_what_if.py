"""`pipeplan what-if`: the service's changes, on the command line."""

import json
from dataclasses import fields

import pytest

from api.reporting.what_if import parse_change
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
    problem = apply_change(make_problem(load_workload("workload.json")), Change(num_microbatches=6))
    plan = parse_plan((shell.folder / "after.json").read_text())
    verdict = verify(problem, plan)
    assert verdict.passed
    assert verdict.timeline is not None
    assert verdict.timeline.makespan_ns == told["after"]["objective_ns"]


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--change is missing; write FIELD=VALUE, e.g. --change devices=1"),
        (("--change", "gpus=1"), "--change gpus=1: write FIELD=VALUE; fields: devices, memory_bytes, link_speed"),
        (("--change", "devices"), "--change devices: write FIELD=VALUE"),
        (("--change", "devices=two"), "--change devices=two: 'two' is not a number; give a whole number"),
        (("--change", "memory_bytes=1TB"), "'1TB' is not a number; give bytes or a number of GiB"),
        (("--change", "memory_bytes=nanGiB"), "'nanGiB' is not a number; give bytes or a number of GiB"),
        (("--change", "memory_bytes=infGiB"), "'infGiB' is not a number; give bytes or a number of GiB"),
        (("--change", "link_speed=fast"), "'fast' is not a number; give a factor"),
        (("--change", "link_speed=nan"), "link_speed = nan is out of range"),
        (("--change", "devices=1", "--change", "devices=2"), "devices is given twice; leave one out"),
        (("--change", "devices=-2"), "change: devices = -2 removes all 2 devices; keep at least one"),
        (("--change", "lost=gpu9"), "change: lost = gpu9: no device or host of the cluster"),
        (("--change", "devices=1", "-m", "4"), "write --change num_microbatches=N"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], said: str, shell: Shell):
    """Tests that every mistake ends with exit code 2 and one message that says how to mend it."""
    outcome = shell.run(*ASK, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_a_workload_takes_no_second(shell: Shell):
    """Tests that two workloads are refused."""
    outcome = shell.run("what-if", "workload.json", "workload.json", "--change", "devices=1")
    assert outcome.code == 2
    assert "workload.json: is not a plan; give PLAN [WORKLOAD], or a workload alone" in outcome.err


def test_a_broken_plan_is_refused(shell: Shell):
    """Tests that a plan that breaks a rule of its question is no base for a what-if."""
    tree = json.loads((shell.folder / "plan.json").read_text())
    device = next(iter(tree["schedule"]))
    tree["schedule"][device] = tree["schedule"][device][:-1]
    shell.write("plan.json", json.dumps(tree))
    outcome = shell.run(*ASK, "--change", "devices=1")
    assert outcome.code == 2
    assert "the plan breaks a rule" in outcome.err


def test_every_field_of_the_service_can_be_typed():
    """Tests that the command line takes each field of the service's change, and bytes in several units."""
    texts = ["devices=-1", "memory_bytes=1.5GiB", "link_speed=2", "num_microbatches=8", "lost=a", "lost=b"]
    change = parse_change(texts)
    assert change == Change(devices=-1, memory_bytes=3 * 2**29, link_speed=2.0, num_microbatches=8, lost=("a", "b"))
    cut = ["global_batch_size=32", "microbatch_size=4"]
    assert parse_change(cut) == Change(global_batch_size=32, microbatch_size=4)
    assert {text.partition("=")[0] for text in [*texts, *cut]} == {item.name for item in fields(Change)}
    assert parse_change(["memory_bytes=-12MiB"]).memory_bytes == -12 * 2**20
    assert parse_change(["memory_bytes=77"]).memory_bytes == 77
