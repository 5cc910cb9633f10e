"""What the commands say with `--json`: tests of api/reporting/summaries.py."""

import json

from planner.document import parse_plan
from planner.plan_kind import describe_kind, kind_of
from tests.api.reporting.test_alternative_plans import PLAN
from tests.api.worlds import Shell


def test_the_figures_in_json(shell: Shell):
    """Tests that the last event has a row per plan, in order, with kind, figures, reasons and file."""
    outcome = shell.run(*PLAN, "--top", "3", "--json", "-o", "sub.plan.json")
    rows = json.loads(outcome.err.splitlines()[-1])["kinds"]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert [row["file"] for row in rows] == ["sub.plan.json", "sub.plan.2.json", "sub.plan.3.json"]
    for row in rows:
        plan = parse_plan((shell.folder / row["file"]).read_text())
        assert plan.evidence is not None
        assert (row["makespan_ns"], row["gap"]) == (plan.evidence.makespan_ns, plan.evidence.gap)
        assert row["description"] == describe_kind(kind_of(plan))
        assert 0 < row["peak_fraction"] <= 1
    assert rows[0]["trades"] == []
    assert all(row["trades"] for row in rows[1:])
    assert rows[0]["makespan_ns"] <= rows[1]["makespan_ns"] <= rows[2]["makespan_ns"]
