"""Checkpoints on the command line, and a loop of one's own with several optimizers."""

from pathlib import Path

import pytest

from tests.integration.clean_end import require_clean_end
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.parallel.test_full_sharding import require_torch
from tests.planner.execute.run.test_execution import shard
from tests.planner.execute.test_enter import (
    PLAN,
    losses,
    messages,
    start_ranks,
    write,
)

MODELS = """
from dataclasses import replace
import torch
from execute_models import vectors

def one():
    training = vectors("wwww", num_microbatches=4)
    return replace(training, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01))

def factored():
    return replace(one(), optimizer=lambda parameters: torch.optim.Adafactor(parameters))

def several():
    def halves(parameters):
        return tuple(torch.optim.AdamW(part, lr=0.01) for part in (parameters[:1], parameters[1:]))
    return replace(one(), optimizer=halves)
"""

LOOP = """
import json, sys
from planner.execute.session import join
from models_of_a_loop import one, several

with join(sys.argv[1], several) as execution:
    found = [execution.step(several().batch(number)).losses for number in range(3)]
if any(found):
    open(sys.argv[2], "w").write("".join(json.dumps({"losses": row}) + "\\n" for row in found))
"""


@pytest.fixture
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "models_of_a_loop.py").write_text(MODELS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("_models")
def test_resume_goes_on_to_the_bit(tmp_path: Path):
    """Tests that --resume starts anew without a checkpoint, else goes on from the newest, to the losses of one run."""
    plan = write(PLAN, tmp_path / "plan.json")
    model = [plan, "--model", "models_of_a_loop:one"]
    kept = ["--checkpoint", tmp_path / "kept", "--checkpoint-every", 2, "--keep", 1, "--resume"]
    whole = start_ranks([[*model, "--steps", 6, "--losses", tmp_path / "whole"]] * 2)
    start = start_ranks([[*model, *kept, "--steps", 4, "--losses", tmp_path / "start"]] * 2)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step-00000004"]
    rest = start_ranks([[*model, *kept, "--steps", 6, "--losses", tmp_path / "rest"]] * 2)
    for code, said in (*whole, *start, *rest):
        require_clean_end(code, said)
    assert len(losses(tmp_path / "rest")) == 2
    assert losses(tmp_path / "start") + losses(tmp_path / "rest") == losses(tmp_path / "whole")
    assert len({str(row) for row in losses(tmp_path / "whole")}) == 6


@pytest.mark.usefixtures("_models")
def test_a_loop_of_ones_own_with_several_optimizers(tmp_path: Path):
    """Tests that a loop around `join` with two optimizers has the losses of the command with one for all parameters."""
    plan = write(PLAN, tmp_path / "plan.json")
    (tmp_path / "loop.py").write_text(LOOP)
    command = start_ranks(
        [[plan, "--model", "models_of_a_loop:one", "--steps", 3, "--losses", tmp_path / "command"]] * 2
    )
    own = start_ranks([[plan, tmp_path / "own"]] * 2, program=str(tmp_path / "loop.py"))
    for code, said in (*command, *own):
        require_clean_end(code, said)
    assert losses(tmp_path / "own") == losses(tmp_path / "command")


@pytest.mark.usefixtures("_models")
def test_a_sharded_plan_runs_by_the_command(tmp_path: Path):
    """Tests that losses with sharded optimizer state are those without, to the bit, across a checkpoint, and that an
    optimizer that cannot be sharded ends all ranks in the same words before anything is trained.
    """
    whole = make_random_plan("0/1", cut=(4,), num_microbatches=4)
    plans = {"whole": write(whole, tmp_path / "whole.json"), "sharded": write(shard(whole), tmp_path / "sharded.json")}
    asked = {
        "expected": [plans["whole"], "--steps", 4, "--losses", tmp_path / "expected"],
        "first": [plans["sharded"], "--steps", 2, "--losses", tmp_path / "first", "--save", tmp_path / "kept"],
        "second": [plans["whole"], "--steps", 2, "--losses", tmp_path / "second", "--load", tmp_path / "kept"],
    }
    for words in asked.values():
        for code, said in start_ranks([[*words, "--model", "models_of_a_loop:one"]] * 2):
            require_clean_end(code, said)
    assert losses(tmp_path / "first") + losses(tmp_path / "second") == losses(tmp_path / "expected")
    refused = start_ranks([[plans["sharded"], "--model", "models_of_a_loop:factored", "--steps", 1]] * 2)
    (first, one), (second, other) = refused
    assert (first, second) == (2, 2)
    assert messages(one) == messages(other)
    (said,) = messages(one)
    assert said.startswith(
        "planner.execute: stage 0 is planned with shard = 'optimizer', but its optimizer (Adafactor)"
    )


@pytest.mark.usefixtures("_models")
def test_a_fully_sharded_plan_runs_by_the_command(tmp_path: Path):
    """Tests that losses go on to the bit across a checkpoint, that the run says what the plan knows nothing of, and
    that ranks which were asked otherwise end in one message.
    """
    require_torch()
    plan = shard(make_random_plan("0/1", cut=(4,), num_microbatches=4, backward="B"))
    model = [write(plan, tmp_path / "plan.json"), "--model", "models_of_a_loop:one"]
    kept = ["--checkpoint", tmp_path / "kept", "--checkpoint-every", 2, "--resume"]
    whole = start_ranks([[*model, "--fully-shard", "--steps", 4, "--losses", tmp_path / "whole"]] * 2)
    start = start_ranks([[*model, *kept, "--fully-shard", "--steps", 2, "--losses", tmp_path / "start"]] * 2)
    rest = start_ranks([[*model, *kept, "--fully-shard", "--steps", 4, "--losses", tmp_path / "rest"]] * 2)
    for code, said in (*whole, *start, *rest):
        require_clean_end(code, said)
    assert losses(tmp_path / "start") + losses(tmp_path / "rest") == losses(tmp_path / "whole")
    told = "fully sharded stages (0): the plan counts their weights and gradients whole on every replica, and no time "
    assert [told in said for _, said in whole] == [True, False]
    (first, one), (second, other) = start_ranks([[*model, "--fully-shard"], model])
    assert (first, second) == (2, 2)
    assert messages(one) == messages(other)
    assert "has another fully_shard than rank 0 (d0): False instead of True" in messages(one)[0]


def test_an_end_between_two_names_loses_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that the older state is found after an end between both renamings, and stays until a new one is whole."""
    from planner.execute.state import checkpoint

    kept, rename = tmp_path / "kept", Path.rename

    def end_before_the_second(path: Path, target: Path) -> Path:
        if path.name.endswith(".part"):
            raise KeyboardInterrupt
        return rename(path, target)

    def write_part() -> Path:
        (tmp_path / ".kept.part").mkdir(exist_ok=True)
        (tmp_path / ".kept.part" / ".metadata").touch()
        return tmp_path / ".kept.part"

    monkeypatch.setattr(Path, "rename", end_before_the_second)
    write_part().replace(kept)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            checkpoint._put_in_place(write_part(), kept)
        assert checkpoint.find_newest(kept) == tmp_path / ".kept.old"
    monkeypatch.setattr(Path, "rename", rename)
    checkpoint._put_in_place(write_part(), kept)
    assert checkpoint.find_newest(kept) == kept
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
