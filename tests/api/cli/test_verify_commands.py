"""`pipeplan verify` and `pipeplan simulate`: tests of api/cli/verify_commands.py."""

import json

import pytest

from planner.document import render_plan
from tests.api.cli.test_output import PLAN
from tests.api.worlds import WORDS, Shell, make_plan, make_problem, make_workload


def test_verify_rejects(shell: Shell):
    """Tests that a broken plan gives 6, with expected and actual in the table and in JSON."""
    words = WORDS | {"gpu0": "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2"}
    shell.write("bad.json", render_plan(make_plan(make_problem(make_workload()), words=words)))
    outcome = shell.run("verify", "bad.json", "workload.json")
    assert (outcome.code, outcome.err) == (6, "")
    assert "✗ rejected" in outcome.out
    spoken = json.loads(shell.run("verify", "bad.json", "workload.json", "--json").out)
    assert spoken["passed"] is False
    assert {"rule", "subject", "expected", "actual", "message"} <= set(spoken["violations"][0])


def test_verify_the_plan_alone(shell: Shell):
    """Tests that a plan needs no workload to be verified, played, drawn and certified, unless it brings none along."""
    assert shell.run(*PLAN, "-o", "p.json").code == 0
    for command in ("verify", "simulate", "explain", "view"):
        assert shell.run(command, "p.json", *(("-o", "p.html") if command == "view" else ())).code == 0, command
    proved = shell.run("verify", "--certificate", "p.json")
    assert (proved.code, proved.err) == (0, "")
    assert "computed again, equal" in proved.out
    assert json.loads(shell.run("verify", "p.json", "--certificate", "--no-baselines", "--json").out)["passed"] is True
    assert shell.run("verify", "--certificate", "p.json", "workload.json").code == 0
    refused = shell.run("verify", "--certificate", "plan.json")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "name the workload" in refused.err
    assert shell.run("verify", "p.json", "--cluster", "workload.json").code == 2


def test_verify_certificate_rejects(shell: Shell):
    """Tests that a wrong bound, and another workload than the plan's, give 6 with what is stated and what follows."""
    assert shell.run(*PLAN, "-o", "p.json").code == 0
    tree = json.loads((shell.folder / "p.json").read_text())
    bound = tree["evidence"]["lower_bound_ns"]
    tree["evidence"]["lower_bound_ns"] = bound - 7
    shell.write("bad.json", json.dumps(tree))
    outcome = shell.run("verify", "--certificate", "bad.json")
    assert (outcome.code, outcome.err) == (6, "")
    assert str(bound) in outcome.out
    assert str(bound - 7) in outcome.out
    said = json.loads(shell.run("verify", "--certificate", "bad.json", "--json").out)
    assert ("lower_bound_ns", bound - 7, bound) in {
        (d["field"], d["stated"], d["derived"]) for d in said["differences"]
    }
    assert shell.run("verify", "bad.json").code == 6, "the gap does not follow from the bound"
    assert shell.run("verify", "--certificate", "p.json", "demo:alexnet-two-gpus").code == 6


def test_only_what_was_computed_is_said_to_be_as_stated(shell: Shell):
    """Tests that the summary counts and names the rows of baselines that were not derived again."""
    assert shell.run(*PLAN, "-o", "p.json").code == 0
    assert "every figure that follows from the plan is as stated" in shell.run("verify", "--certificate", "p.json").out
    unplayed = shell.run("verify", "--certificate", "p.json", "--no-baselines").out
    tree = json.loads((shell.folder / "p.json").read_text())
    rows = tree["evidence"]["baselines"]
    assert f"0 of {len(rows)} baselines computed again" in " ".join(unplayed.split())
    rows[0]["name"] = "the best ever"
    shell.write("renamed.json", json.dumps(tree))
    assert shell.run("verify", "--certificate", "renamed.json").code == 6
    tree["evidence"]["planner_version"] = "0.1.9"
    shell.write("older.json", json.dumps(tree))
    older = shell.run("verify", "--certificate", "older.json")
    said = " ".join(older.out.split())
    assert older.code == 0
    assert f"{len(rows) - 1} of {len(rows) + 1} baselines computed again, not data parallel, the best ever" in said
    assert "every figure" not in said + " ".join(unplayed.split())
    told = json.loads(shell.run("verify", "--certificate", "older.json", "--json").out)
    assert told["baselines_computed"] == len(rows) - 1
    assert told["baselines_not_computed"] == ["data parallel", "the best ever"]


@pytest.mark.parametrize("option", ["--baselines", "--no-baselines"])
def test_baselines_belong_to_the_certificate(shell: Shell, option: str):
    """Tests that nobody takes baselines for played where only the rules were checked."""
    outcome = shell.run("verify", "plan.json", "workload.json", option)
    assert outcome.code == 2
    assert "--baselines: only --certificate plays them" in outcome.err
