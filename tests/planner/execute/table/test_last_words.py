"""What is repeated below torchrun's own lines."""

import json
from pathlib import Path

import pytest

from planner.execute.table.last_words import say_last


@pytest.mark.parametrize("place", ["error.json", "missing/error.json", None])
def test_torchrun_repeats_what_was_said_last(
    place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Tests that a refusal stands on standard error in any case, and in the file that torchrun reads if it named one
    that can be written.
    """
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    if place is not None:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / place))
    say_last("planner.execute: give a plan\n")
    assert capsys.readouterr().err == "planner.execute: give a plan\n"
    assert [each.name for each in tmp_path.iterdir()] == (["error.json"] if place == "error.json" else [])
    if place == "error.json":
        said = json.loads((tmp_path / place).read_text())["message"]
        assert said["message"] == "planner.execute: give a plan"
        assert isinstance(said["extraInfo"]["timestamp"], int)
