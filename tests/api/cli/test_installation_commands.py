"""`pipeplan demos` and `pipeplan doctor`: tests of api/cli/installation_commands.py."""

import json

from tests.api.worlds import Shell


def test_demos(shell: Shell):
    """Tests that every demo has a line."""
    outcome = shell.run("demos")
    assert (outcome.code, outcome.err) == (0, "")
    assert set(json.loads(shell.run("demos", "--json").out)) <= set(outcome.out.replace("demo:", "").split())


def test_doctor(shell: Shell):
    """Tests that the doctor finds this installation well."""
    outcome = shell.run("doctor", "--json")
    assert outcome.code == 0, outcome.out
    assert json.loads(outcome.out)["toy plan"]["is_well"] is True


def test_version_and_help(shell: Shell):
    """Tests that version and help go to standard output, and that no command shows the help."""
    assert shell.run("--version").out.startswith("pipeplan ")
    for command in ("plan", "verify", "simulate", "compare", "explain", "export", "view", "import", "demos", "doctor"):
        outcome = shell.run(command, "--help")
        assert (outcome.code, outcome.err) == (0, "")
        assert "Usage: pipeplan" in outcome.out
