"""Torchtitan's own program, started with the shipped recipe on an exported folder: it trains, on processors.

PIPEPLAN_TORCHTITAN_PATHS names the folders that have torchtitan and what it needs, as PYTHONPATH does. One is made by

    python -m pip install --target NEEDS --no-deps torchtitan==0.3.0 tyro docstring-parser typeguard shtab torchdata \\
        torch_checkpointing spmd_types==0.2.3 'datasets<4.8' dill multiprocess xxhash einops pillow httpx httpcore
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.export.torchtitan import make_torchtitan_files
from planner.export.torchtitan_copies import titan_ranks
from planner.export.torchtitan_recipe import CONFIG, FOLDER
from planner.plan import Shard
from tests.planner.execute.test_enter import environment
from tests.planner.export.test_targets import copied, cut, language_model

HERE = Path(__file__).parents[2] / "integration"
PATHS = os.environ.get("PIPEPLAN_TORCHTITAN_PATHS")
STEPS = 3


@pytest.mark.slow
@pytest.mark.skipif(PATHS is None, reason="PIPEPLAN_TORCHTITAN_PATHS does not say where torchtitan 0.3 is")
@pytest.mark.parametrize(
    ("devices", "copies", "shard"),
    [("0 1 0 1", 1, "none"), ("0 1", 1, "none"), ("0 1", 2, "none"), ("0 1 0 1", 2, "weights")],
)
def test_torchtitan_trains_as_planned(devices: str, copies: int, shard: Shard, tmp_path: Path):
    """Tests that its trainer, on the recipe, runs the plan's orders, with losses and gradients of one process.

    So do copies of the pipeline, whole or with sharded weights.
    """
    problem = language_model(num_devices=2 * copies)
    plan = cut(problem, [2, 2, 2, 3] if len(devices) > 3 else [4, 5], devices)
    plan = copied(plan, copies, shard=shard)
    for name, text in make_torchtitan_files(problem, plan).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
            str(2 * copies),
            *(str(HERE / "torchtitan_worker.py"), str(tmp_path)),
            *("--module", "planner.export.torchtitan_recipe", "--config", "planned"),
        ],
        env=environment()
        | {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1]), str(PATHS)]),
            FOLDER: str(tmp_path),
            CONFIG: "torchtitan_base:tiny",
            "HOME": str(tmp_path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2 * copies)]
    for found, device in zip(ranks, titan_ranks(plan), strict=True):
        assert found["order"] == STEPS * [str(action) for action in plan.schedule[device]]
        assert found["apart"] < 1e-5
    last = titan_ranks(plan).index(plan.stages[-1].replicas[0][0])
    assert ranks[last]["losses"][0] == pytest.approx(ranks[last]["alone"], rel=1e-6)
    assert len(ranks[last]["losses"]) == STEPS
