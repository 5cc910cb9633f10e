"""What a run of a plan took: tests of planner/fidelity/executed_run.py."""

from pathlib import Path

import pytest

from planner.document import parse_plan
from planner.fidelity.executed_run import read_run
from planner.replanning.observations import read_observations
from tests.integration.forked_ranks import EXECUTOR
from tests.planner.execute.data.test_dealt_rows import read_losses, run_example


def test_a_dealt_run_by_command(tmp_path: Path):
    """Tests that a run that deals anew goes on from its checkpoint, and that its trace is not held against a plan."""
    model = ("--model", "examples.sft:make_training")
    whole = run_example("0/1", tmp_path, *model, "--steps", 3, "--trace", tmp_path / "t", program=EXECUTOR)
    run_example("0/1", tmp_path, *model, "--steps", 2, "--save", tmp_path / "c", program=EXECUTOR)
    rest = run_example("0/1", tmp_path, *model, "--steps", 1, "--load", tmp_path / "c", program=EXECUTOR)
    assert read_losses(rest[0]) == read_losses(whole[0])[2:]
    plan = parse_plan((tmp_path / "1.json").read_text())
    with pytest.raises(
        ValueError, match=r"ran 0F\d where the plan says 0\w\d .* without rebalancing in every iteration"
    ):
        read_run(tmp_path / "t", plan)
    with pytest.raises(ValueError, match="without rebalancing in every iteration"):
        read_observations(sorted((tmp_path / "t").glob("rank*.json")), plan)
