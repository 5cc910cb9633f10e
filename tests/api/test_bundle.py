"""The bundle that is saved when our own verifier rejects a plan: tests of api/planning_run.py."""

import pytest

from tests.api.test_failures import assert_refused
from tests.api.worlds import Shell


def test_internal_error(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that a bug of ours gives 1, how to report it, and the traceback only if asked."""

    def break_down(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("integer division")

    monkeypatch.setattr("planner.verify.verify", break_down)
    outcome = shell.run("verify", "plan.json", "workload.json")
    assert_refused(outcome, code=1, words=("ZeroDivisionError", "--debug", "report"))
    monkeypatch.setenv("PIPEPLAN_DEBUG", "1")
    assert "Traceback" in shell.run("verify", "plan.json", "workload.json").err
