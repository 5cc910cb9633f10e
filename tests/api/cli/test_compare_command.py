"""`pipeplan compare`: tests of api/cli/compare_command.py."""

import json

from planner.document import render_plan
from tests.api.worlds import WORDS, Shell, make_plan, make_problem, make_workload


def test_compare(shell: Shell):
    """Tests that plans stand side by side, with the baselines if asked, and the workload first or last."""
    gpipe = WORDS | {"gpu0": "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2"}
    shell.write("gpipe.json", render_plan(make_plan(make_problem(make_workload()), words=gpipe)))
    outcome = shell.run("compare", "plan.json", "gpipe.json", "workload.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "gpipe.json" in outcome.out
    rows = json.loads(shell.run("compare", "plan.json", "-w", "workload.json", "--baselines", "--json").out)
    assert rows[0]["name"] == "plan.json"
    assert "1F1B (even layers)" in {row["name"] for row in rows}
