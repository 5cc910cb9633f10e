"""A model that acts otherwise backward than forward goes from profile to plan to run, and ends where a loop ends."""

import json
from pathlib import Path

import pytest

from tests.integration.forked_ranks import run_alone
from tests.planner.execute.test_enter import start_ranks

MODEL = "tests.integration.acting_training:make"


@pytest.mark.slow
def test_profile_plan_and_run_end_where_a_loop_ends(tmp_path: Path):
    """Tests that weights and buffers of two processes are, after three steps, those of a plain loop to 1e-12."""
    import torch
    from safetensors.torch import load_file

    from tests.integration.acting_training import train_plainly

    work, plan = tmp_path / "workload.json", tmp_path / "plan.json"
    quick = ["--devices", "2", "--repetitions", "1", "--attempts", "1", "--alone"]
    for command in (
        ["profile", MODEL, "-m", "4", *quick, "-o", work],
        ["plan", work, "--no-replication", "--max-rounds", "1", "-o", plan],
    ):
        run_alone("api", *map(str, command))
    stages = json.loads(plan.read_text())["stages"]
    count = len({device for stage in stages for group in stage["replicas"] for device in group})
    arguments = [plan, "--model", MODEL, "--steps", 3, "--save-weights", tmp_path / "weights"]
    for code, said in start_ranks([arguments] * count):
        assert code == 0, said
    found = {k: v for file in (tmp_path / "weights").glob("*.safetensors") for k, v in load_file(file).items()}
    wanted = train_plainly()
    assert set(found) == set(wanted)
    assert all(torch.allclose(found[k], v, rtol=0, atol=1e-12) for k, v in wanted.items())
