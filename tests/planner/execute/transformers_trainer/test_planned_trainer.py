"""The example of a `Trainer` of transformers, unchanged, alone and under a plan."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.free_ports import free_port
from tests.integration.clean_end import require_clean_end
from tests.integration.forked_ranks import Rank, run_forked
from tests.long_runs import long_only
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.test_enter import ROOT, environment, write

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed: pip install '.[models]'"
)

SCRIPT = ROOT / "examples" / "train_gpt2.py"
NAMES = ["transformer.wte", *(f"transformer.h.{number}" for number in range(4)), "transformer.ln_f"]
LIMIT_S = 180


def start(programs: list[tuple[str, list[str]]], folder: Path, **more: str) -> list[tuple[int, str]]:
    ranks = [
        Rank(
            program=program,
            arguments=arguments,
            environment=environment(**more) | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if more else {}),
            folder=folder,
            log=folder / f"{rank}.log",
            needs=["transformers.trainer"],
        )
        for rank, (program, arguments) in enumerate(programs)
    ]
    return run_forked(ranks, timeout_s=LIMIT_S)


def train_planned(plan: Path, folder: Path, *arguments: str) -> list[tuple[int, str]]:
    command = "planner.execute.transformers_trainer", [str(plan), *arguments]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    return start([command] * 2, folder, **where)


def history(folder: Path) -> list[dict[str, Any]]:
    told = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    return [{key: row[key] for key in row if key in KEPT} for row in told]


KEPT = ("step", "loss", "grad_norm", "learning_rate", "eval_loss")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_random_plan("0 1", cut=(3, 3), num_microbatches=4, seed=2)
    names = iter(NAMES)
    stages = tuple(replace(stage, layers=tuple(next(names) for _ in stage.layers)) for stage in made.stages)
    return write(replace(made, stages=stages), tmp_path_factory.mktemp("trainer") / "plan.json")


@pytest.mark.slow
def test_the_trainers_example_trains_under_a_plan(plan: Path, tmp_path: Path):
    """Tests that losses per token, norms, rates, evaluation and weights are those of one process, and that a run that
    goes on from the middle ends as the whole one."""
    from safetensors.numpy import load_file

    ((code, said),) = start([(str(SCRIPT), ["one"])], tmp_path)
    require_clean_end(code, said)
    for more in ([], ["--resume"]):
        for code, said in train_planned(plan, tmp_path, str(SCRIPT), "two", *more):
            require_clean_end(code, said)
        expected = history(tmp_path / "one")
        assert len(expected) == 8
        assert history(tmp_path / "two") == [pytest.approx(row, rel=1e-4) for row in expected]
        mine, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one"))
        assert mine.keys() == theirs.keys()
        assert max(abs(mine[key] - theirs[key]).max() for key in mine) < 1e-5
        (tmp_path / "two" / "checkpoint-6").rename(tmp_path / f"kept {len(more)}")


@long_only
def test_bfloat16_is_that_of_one_process(plan: Path, tmp_path: Path):
    """Tests that losses and norms under autocast are those of one process, to the rounding of bfloat16."""
    ((code, said),) = start([(str(SCRIPT), ["one", "--bf16"])], tmp_path)
    require_clean_end(code, said)
    for code, said in train_planned(plan, tmp_path, str(SCRIPT), "two", "--bf16"):
        require_clean_end(code, said)
    one, two = history(tmp_path / "one"), history(tmp_path / "two")
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-6)  # in float32 it is 7e-6 off
    assert two == [pytest.approx(row, rel=2**-8) for row in one]
    losses = [[row["loss"] for row in rows if "loss" in row] for rows in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=5e-5)
    assert len(losses[0]) == 6


def test_a_script_without_a_trainer_is_refused(plan: Path, tmp_path: Path):
    """Tests that a script that trains nothing under the plan does not end as if it had."""
    (tmp_path / "script.py").write_text("")
    for code, said in train_planned(plan, tmp_path, "script.py"):
        assert code == 2
        assert "script.py has trained nothing under the plan" in said
