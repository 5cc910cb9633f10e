"""`pipeplan view`: tests of api/cli/view_command.py."""

import json

import pytest

from tests.api.worlds import Shell


def test_export_and_view(shell: Shell):
    """Tests that trace and picture go to standard output or to a file, and that two plans share a picture."""
    assert json.loads(shell.run("export", "trace", "plan.json", "workload.json").out)
    outcome = shell.run("view", "plan.json", "workload.json", "-o", "p.html", "--against", "plan.json")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert (shell.folder / "p.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("profile", "another", "plans of different models are not compared"),
        ("profile_sha256", "0" * 64, "made with other layers or times"),
        ("cluster_sha256", "0" * 64, "made for another machine"),
    ],
)
def test_plans_of_other_questions_share_no_picture(shell: Shell, field: str, value: str, cause: str):
    """Tests that a plan is not drawn by the times of another question."""
    other = json.loads((shell.folder / "plan.json").read_text())
    other["problem"][field] = value
    shell.write("other.json", json.dumps(other))
    outcome = shell.run("view", "plan.json", "workload.json", "-o", "p.html", "--against", "other.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--against other.json" in outcome.err
    assert cause in outcome.err


def test_view_as_text(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """Tests that --text draws the timeline no wider than the terminal, a row per device, and takes one plan only."""
    monkeypatch.setenv("COLUMNS", "70")
    outcome = shell.run("view", "plan.json", "workload.json", "--text")
    assert outcome.code == 0, outcome.err
    head, numbers, *rows = outcome.out.splitlines()
    assert head.startswith("a column is ")
    assert numbers.split()[:3] == ["|", "0", "1"]
    assert [row.split()[0] for row in rows] == ["gpu0", "gpu1"]
    assert rows[0].split()[2].startswith("F0")
    assert 50 < max(map(len, rows)) <= 70
    refused = shell.run("view", "plan.json", "workload.json", "--text", "--against", "plan.json")
    assert (refused.code, refused.out) == (2, "")
    assert "--text draws one plan in the terminal" in refused.err
