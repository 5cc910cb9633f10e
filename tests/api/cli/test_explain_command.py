"""`pipeplan explain`: tests of api/cli/explain_command.py."""

import json

from planner.document import render_plan
from tests.api.cli.test_output import PLAN
from tests.api.worlds import WORDS, Shell, make_plan, make_problem, make_workload


def test_simulate_and_explain(shell: Shell):
    """Tests that the figures of both commands agree, as tables and as JSON."""
    played = json.loads(shell.run("simulate", "plan.json", "workload.json", "--json").out)
    explained = json.loads(shell.run("explain", "plan.json", "workload.json", "--json").out)
    assert played["makespan_ns"] == explained["makespan_ns"] == 31_000_000
    for row in explained["devices"]:
        assert sum(value for key, value in row.items() if key != "device") == 31_000_000
    assert "31.00" in shell.run("simulate", "plan.json", "workload.json").out
    assert "order" in shell.run("explain", "plan.json", "workload.json").out


def test_unplayable_plan(shell: Shell):
    """Tests that a plan that deadlocks is bad input for the commands that play it, in one message."""
    words = WORDS | {"gpu1": "1I0 1F0 1W0 1F1 1I1 1W1 1F2 1I2 1W2"}
    shell.write("bad.json", render_plan(make_plan(make_problem(make_workload()), words=words)))
    for command in ("simulate", "explain", "view", "compare"):
        outcome = shell.run(command, "bad.json", "workload.json")
        assert (outcome.code, outcome.out) == (2, ""), command
        assert outcome.err.startswith("error: bad.json: cannot be played on this workload: ")
        assert len(outcome.err.splitlines()) == 1


def test_shadow_prices(shell: Shell):
    """Tests that explain says what more is worth, as a table and as JSON, and tells what it asks meanwhile."""
    assert shell.run(*PLAN, "-o", "p.json").code == 0
    told = shell.run("explain", "p.json", "--shadow-prices", "--time-limit", "2", "--per-kind", "1")
    assert told.code == 0
    assert "planned again with: twice the link gpu0-gpu1" in told.err
    assert "What limits it" in told.out
    assert "worth at most" in told.out
    spoken = shell.run("explain", "p.json", "--shadow-prices", "-t", "2", "--per-kind", "1", "--json")
    prices = json.loads(spoken.out)["shadow_prices"]
    assert {"search", "memory", "link", "speed", "device", "microbatches"} == {price["kind"] for price in prices}
    assert all(json.loads(line)["event"] == "progress" for line in spoken.err.splitlines())
    assert "shadow_prices" not in json.loads(shell.run("explain", "p.json", "--json").out)
    assert shell.run("explain", "p.json", "--shadow-prices", "-t", "0").code == 2
